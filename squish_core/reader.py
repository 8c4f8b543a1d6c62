"""What reads an open file: its bytes, its Index, the registry and the limits in force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.stored import StoredArray
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, Problem, SquishError
from squish_core.guard import guarded
from squish_core.io.digest import check_digest
from squish_core.io.source import Source
from squish_core.limits import MIB, Limits
from squish_core.model import Encoding, Index, Part, TensorSpec
from squish_core.plugins.registry import Registry


class Reader:
    """Reads the parts that an Index declares; `File` and its tensors share one."""

    def __init__(self, source: Source, index: Index, registry: Registry, limits: Limits) -> None:
        self.source, self.index, self.registry, self.limits = source, index, registry, limits

    @property
    def name(self) -> str:
        """Path or name of the file."""
        return self.source.name

    @property
    def format(self) -> str:
        """Container id."""
        return self.index.format

    def source_for(self, number: int) -> Source:
        """Source of one of the Index's files."""
        ref = self.index.files[number]
        if not self.source.is_dir and ref.name == self.source.filename:
            return self.source
        folder, _, name = ref.name.rpartition("/")
        source = self.source.member(name, folder)
        if source.size < ref.size:
            raise FormatError(
                "is smaller than when it was opened", file=source.name,
                expected=ref.size, found=source.size, code=ErrorCode.CHANGED,
            )  # fmt: skip
        return source

    def array(self, part: Part) -> StoredArray:
        """A part as a virtual array."""
        return StoredArray(part, self.source_for, self.registry.byte_codec, self.limits)

    def bind(self, spec: TensorSpec, encoding: Encoding) -> BoundEncoding:
        """An encoding with its codec and its stored parts."""
        parts = {role: self.array(part) for role, part in encoding.parts.items()}
        return BoundEncoding(self.registry.codec(encoding.codec), spec, encoding, parts, self.limits)

    def guard(self, kind: type[SquishError], what: str, **context: Any) -> guarded:
        """The boundary around plugin code, with this file's name."""
        return guarded(kind, what, file=self.name, **context)


def file_problems(reader: Reader, numbers: Iterable[int] | None = None) -> Iterator[Problem]:
    """Findings for files (of an Index; all, or those with these numbers) whose bytes are not those of the digest that
    the header names. Reads the files that have one whole."""
    files = reader.index.files
    for number in range(len(files)) if numbers is None else numbers:
        ref = files[number]
        if ref.digest is None:
            continue
        source = reader.source_for(number)
        chunks = (source.view(start, min(4 * MIB, source.size - start)) for start in range(0, source.size, 4 * MIB))
        verdict = check_digest(ref.digest, chunks)
        if verdict.state == "wrong":
            message = f"the file's digest does not match (expected {verdict.expected}, found {verdict.found})"
            yield Problem(code=ErrorCode.DIGEST, severity="error", where=ref.name, message=message)
        elif verdict.state == "unverified":
            message = f"the file's digest {ref.digest[:40]!r} is of an unknown kind"
            yield Problem(code="unverified", severity="note", where=ref.name, message=message)
