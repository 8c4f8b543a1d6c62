"""Checks of an open file that collect findings: its structure, and the digest and decoding of each tensor.

Content that decodes without an error may be wrong, too: values that no model has, and files named by another digest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define

from squish_core.checking.maps import Span, file_at, map_spans
from squish_core.codecs.bound import MEMORY_LIMIT
from squish_core.codecs.regions import PANEL_BYTES, decode_all
from squish_core.codes import ErrorCode
from squish_core.dtypes import FLOATS, bits
from squish_core.errors import FormatError, MissingPluginError, Problem, SquishError
from squish_core.file import File, file_problems
from squish_core.guard import computing, guarded
from squish_core.io.buffer import as_array
from squish_core.io.digest import Digest, Verdict, check_digest, compare_digests, is_supported
from squish_core.io.wrapped import CachedSource, Listener, RangeCache
from squish_core.model import Part, TensorSpec
from squish_core.tensor import Tensor
from squish_core.text import counted

if TYPE_CHECKING:
    import numpy as np

    from squish_core.tensor import OpenFile


_INFINITY = {"f2": 0x7C00, "bf2": 0x7F80, "f4": 0x7F80_0000, "f8": 0x7FF0 << 48}
"""Bit pattern of infinity, by dtype; every NaN is above it."""
_DIGEST_NAME = re.compile(r"(sha256[-:])?([0-9a-f]{64}|[0-9a-f]{40})")
_STORES = ("blobs", "sha256")
"""Folders in which a file's whole name is a digest: the caches of the hub and of Ollama, and OCI layouts."""
_PIECE = 1 << 22


@define
class ValueCheck:
    """Counts NaN and infinite values of an array, panel by panel, and checks whether all are zero."""

    total: int = 0
    nan: int = 0
    infinite: int = 0
    is_zero: bool = True

    def add(self, values: np.ndarray) -> None:
        """Add a panel of any dtype; integers have neither NaN nor infinities."""
        import numpy as np

        self.total += values.size
        if not values.size:
            return
        if values.dtype.kind in "biu":
            self.is_zero = self.is_zero and not values.any()
            return
        if values.dtype.kind == "c":
            values = values.view(values.real.dtype)
        if values.itemsize == 1:
            values = values.astype(np.float32)
        # Two maxima of integers take a fraction of the time of isnan and isinf, which make arrays.
        bits = np.ascontiguousarray(values).view(f"<i{values.itemsize}")
        magnitudes = (1 << 8 * values.itemsize - 1) - 1
        largest = max(int(bits.max()), int(bits.view(f"<u{values.itemsize}").max()) & magnitudes)
        self.is_zero = self.is_zero and not largest
        infinity = _INFINITY[f"{'f' if values.dtype.kind == 'f' else 'bf'}{values.itemsize}"]
        if largest >= infinity:
            finite = int(np.count_nonzero(bits & magnitudes < infinity))
            nan = int(np.count_nonzero(bits & magnitudes > infinity))
            self.nan += nan
            self.infinite += values.size - finite - nan

    def problems(self, where: str, is_matrix: bool) -> Iterator[Problem]:
        """Warnings: NaN and infinite values, and a matrix of zeros."""
        kinds = [f"{count:,} {word}" for count, word in ((self.nan, "NaN"), (self.infinite, "infinite")) if count]
        if kinds:
            message = f"{' and '.join(kinds)} of {counted(self.total, 'value')}"
            yield Problem(code=ErrorCode.NOT_FINITE, severity="warning", where=where, message=message)
        elif is_matrix and self.total and self.is_zero:
            yield Problem(code="zeros", severity="warning", where=where, message="its values are all zeros")


def check_values(panels: Iterable[np.ndarray]) -> ValueCheck:
    """Check the panels of an array."""
    check = ValueCheck()
    for panel in panels:
        check.add(panel)
    return check


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Return whether at least two axes are longer than 1: biases and tokens of zeros are usual, matrices are not."""
    return sum(size > 1 for size in shape) > 1


def name_problem(path: Path) -> Problem | None:
    """Return the problem of a file whose name is a digest, but not its own; None for any other file.

    `sha256-<64 digits>` anywhere; in a store, 64 digits of SHA-256, or 40 of the SHA-1 of a Git blob.
    """
    path = Path(os.path.realpath(path))  # Path.resolve would also ask for its status, and ignore the answer
    match = _DIGEST_NAME.fullmatch(path.name)
    if match is None or (match[1] is None and path.parent.name not in _STORES) or (match[1] and len(match[2]) == 40):
        return None
    kind = "SHA-256" if len(match[2]) == 64 else "Git's SHA-1"
    found = _digest(path, kind)
    if found == match[2]:
        return None
    message = (
        f"the file's name is not the {kind} of its bytes (found {found}). It is damaged or was replaced; "
        "delete it and download it again."
    )
    return Problem(code=ErrorCode.DIGEST, severity="error", where=f"{path.parent.name}/{path.name}", message=message)


def _digest(path: Path, kind: str) -> str:
    from hashlib import sha1, sha256  # loads OpenSSL, which takes longer than opening a file

    with path.open("rb") as file:
        hasher = sha256() if kind == "SHA-256" else sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while piece := file.read(_PIECE):
            hasher.update(piece)
    return hasher.hexdigest()


class SourceReader:
    """Reads a file through a cache, so that bytes that are both checked and used are fetched once.

    `file` is the file to read through. `cache` keeps what is read, up to `MEMORY_LIMIT`, until it `is_complete`; the
    file of an earlier reader brings its cache. `listener` gets what is read. A source with cheap views, and a mapped
    file, are read directly.
    """

    def __init__(self, file: File, *, wraps: bool = True, listener: Listener | None = None) -> None:
        source, self.cache, self.file = file.source, RangeCache(MEMORY_LIMIT), file
        self.is_wrapped = wraps and not source.cheap_views and file.original is file
        if self.is_wrapped:
            if isinstance(source, CachedSource):
                self.cache, source = source.cache, source.inner
            self.file = File(CachedSource(source, self.cache, listener), file.index, file.registry, file.limits)


ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the tensor, and with the bytes done and their total (None: unknown)."""
Findings = tuple[list[Problem], int, int, int]
"""Problems, and the numbers of decoded tensors, digests and unverified digests."""


def as_problem(error: SquishError, severity: str = "error") -> Problem:
    """Convert an error to a finding, with its location separate from the message."""
    place = error.where() or (f"byte {error.offset}" if error.offset is not None else "file")
    return Problem(code=error.code or "format", severity=severity, where=place, message=error.reason())


def check_part(file: OpenFile, name: str, role: str, part: Part) -> bool:
    """Check the digest of a part: True if it matches or is missing, False for an unknown algorithm; FormatError if it
    differs."""
    if part.digest is None:
        return True
    with guarded(FormatError, "hashing", file=file.name, tensor=name, part=role):
        array = file.array(part)
        chunks_of: dict[str, Any] = {"stored": array.stored_chunks, "decoded": array.chunks}
        verdict = check_digest(part.digest, chunks_of.pop(part.digest_of)())
        if verdict.state == "wrong":
            error = digest_error(part, verdict)
            [(other_kind, chunks)] = chunks_of.items()
            with suppress(SquishError):  # damaged bytes may not decode, or their plugin is not installed
                if part.filters and check_digest(part.digest, chunks()).state == "ok":
                    error.hint = f"It matches the {other_kind} bytes; this format hashes the {part.digest_of} ones."
            raise error
        return verdict.state == "ok"


def digest_error(part: Part, verdict: Verdict) -> FormatError:
    """Return the error for a part whose digest differs."""
    return FormatError(
        "the digest does not match",
        offset=part.segments[0].offset if part.segments else None,
        expected=verdict.expected,
        found=verdict.found,
        code=ErrorCode.DIGEST,
        hint="The bytes are damaged, or the digest covers other bytes.",
    )


def check_empty(file: OpenFile, name: str, role: str, part: Part) -> None:
    """Decode the filters of an empty part, which reading skips."""
    if part.filters and not part.nbytes:
        with guarded(FormatError, "decoding", file=file.name, tensor=name, part=role):
            file.array(part).bytes(0, 0)


class Check:
    """A check of an open file that collects findings."""

    def __init__(self, file: File, progress: ProgressCallback | None) -> None:
        self.file, self.problems, self.digests, self.unverified = file, list(file.problems), 0, 0
        self.decoded = 0
        self._progress = progress
        self._scratch: np.ndarray | None = None
        self._done = 0
        self._total: int | None = None

    def structure(self) -> None:
        """Run the format's own `verify`, and report tensors that cannot be read."""
        container = self.file.registry.container(self.file.format)
        with self._collect(), computing(FormatError, "verifying", file=self.file.name):
            self.problems += container.verify(self.file.index, self.file.source, self.file.limits)
            self.problems += file_problems(self.file)
        reported = {(problem.where, problem.message) for problem in self.problems}
        for name, spec in self.file.index.tensors.items():
            if spec.problem and not spec.undeclared and (name, spec.problem) not in reported:
                self.problems.append(
                    Problem(code=ErrorCode.UNREADABLE, severity="error", where=name, message=spec.problem)
                )
            if spec.undeclared and (name, spec.undeclared.message) not in reported:
                self.problems.append(spec.undeclared)
        for child in self.file.children.values():
            inner = Check(child, None)
            inner.structure()
            self.problems += inner.problems

    def data(self, scheduler: str | None = None) -> None:
        """Check the digests of all parts and decode all tensors, by panels; in other processes with a `scheduler`."""
        tensors = [self.file[name] for name in self.file]
        if scheduler is None:
            self.tensors(tensors)
        else:
            sizes = [tensor.nbytes for tensor in tensors]

            def done(number: int, nbytes: int) -> None:
                if self._progress:
                    self._progress(tensors[number].name, nbytes, sum(sizes))

            for findings in map_spans(check_span, [self.file], sizes, scheduler, self.file.registry, done=done):
                self.add(*findings)
        self._file_names()
        for child in self.file.children.values():
            inner = Check(child, None)
            inner.problems = []  # `structure` has already listed the problems from opening
            inner.data()
            self.add(inner.problems, 0, inner.digests, inner.unverified)

    def findings(self) -> Findings:
        """Problems, and the numbers of decoded tensors, digests and unverified digests."""
        return self.problems, self.decoded, self.digests, self.unverified

    def add(self, problems: list[Problem], decoded: int, digests: int, unverified: int) -> None:
        """Add the findings of another check."""
        self.problems += problems
        self.decoded += decoded
        self.digests += digests
        self.unverified += unverified

    def tensors(self, tensors: list[Tensor]) -> None:
        """Check the digests and the decoding of some tensors."""
        self._total = sum(tensor.nbytes for tensor in tensors)
        reader = SourceReader(self.file, wraps=self.file.source.is_remote)
        parts = (part for tensor in tensors for _, part in _parts(tensor.spec))
        with reader.file.reading_ahead(parts) if reader.is_wrapped else nullcontext():
            for tensor in tensors:
                self._tensor(reader, reader.file[tensor.name])

    def _tensor(self, reader: SourceReader, tensor: Tensor) -> None:
        """Check one tensor; bytes that are fetched for its digests are not fetched again for decoding."""
        reader.cache.clear()
        if not self._is_sound(tensor):
            for role, part in _parts(tensor.spec):
                self._digest(tensor, role, part)
            reader.cache.is_complete = True
            if not tensor.spec.problem and not tensor.spec.undeclared:
                with self._collect():
                    self._decode(tensor)
                    self.decoded += 1
            self._scales(tensor)
        self._done += tensor.nbytes
        if self._progress:
            self._progress(tensor.name, self._done, self._total)

    def _is_sound(self, tensor: Tensor) -> bool:
        """Return whether a tensor that is one part with its values has no finding, and count it; reads it once.

        Any other tensor is checked in steps, which say what is wrong.
        """
        spec = tensor.spec
        if len(spec.encodings) != 1 or spec.extras or spec.problem or spec.undeclared:
            return False
        part = spec.stored_values(spec.encodings[0])
        if part is None or part.filters or part.nbytes > self.file.limits.decoded:
            return False
        if part.digest is not None and not is_supported(part.digest):
            return False
        values, size = ValueCheck(), bits(part.dtype) // 8
        digest = None if part.digest is None else Digest(part.digest.partition(":")[0].lower())
        try:
            with tensor.guard("decoding"):
                for chunk in tensor.file.array(part).chunks():
                    if digest is not None:
                        digest.update(chunk)
                    values.add(as_array(chunk, part.dtype, (len(chunk) // size,)))
        except SquishError:
            return False
        matches = digest is None or compare_digests(str(part.digest), digest).state == "ok"
        if not matches or any(values.problems(tensor.name, part.dtype in FLOATS and is_matrix(spec.shape))):
            return False
        self.digests += digest is not None
        self.decoded += 1
        return True

    def not_checked(self, deep: bool) -> Iterator[str]:
        """Descriptions of what this run did not check."""
        index = self.file.index
        digests = sum([part.digest is not None for spec in index.tensors.values() for _, part in _parts(spec)])
        if not deep:
            yield f"the values of {counted(len(self.file), 'tensor')} ({{option:deep=True}} decodes them)"
            if digests:
                yield f"{counted(digests, 'digest')} ({{option:deep=True}} checks them)"
            return
        if undecoded := len(self.file) - self.decoded:
            yield f"the values of {counted(undecoded, 'tensor')}, which cannot be decoded here"
        if self.unverified:
            yield f"{counted(self.unverified, 'digest')} that cannot be checked here"
        if not digests and all(ref.digest is None for ref in index.files):
            yield "whether the values are the original ones (the file has no digests)"

    def _digest(self, tensor: Tensor, role: str, part: Part) -> None:
        if part.digest is None:
            return
        self.digests += 1
        self.unverified += 1  # until it is compared
        with self._collect():
            try:
                is_comparable = check_part(tensor.file, tensor.name, role, part)
            except SquishError as error:
                self.unverified -= error.code == ErrorCode.DIGEST
                raise
            if is_comparable:
                self.unverified -= 1
            else:
                message = f"the digest {part.digest[:40]!r} has an unknown algorithm"
                where = f"{tensor.name}/{role}"
                self.problems.append(Problem(code="unverified", severity="note", where=where, message=message))

    def _decode(self, tensor: Tensor) -> None:
        import numpy as np

        with tensor.guard("decoding"):
            bound = tensor.bound.in_memory() if self.file.source.is_remote else tensor.bound
            bound.check_limits()
            for role, part in bound.encoding.parts.items():
                check_empty(tensor.file, tensor.name, role, part)
            if self._scratch is None:
                self._scratch = np.empty(2 * PANEL_BYTES, np.uint8)  # new memory for each panel would cost page faults
            values = ValueCheck()
            decode_all(bound.codec, bound.parts, tensor.spec, self._scratch, values.add)
            self.problems += values.problems(tensor.name, bound.dtype in FLOATS and is_matrix(tensor.shape))
            self.problems += (
                Problem(code="doubt", severity="warning", where=tensor.name, message=doubt)
                for doubt in bound.codec.doubts(bound.parts, tensor.spec)
            )

    def _scales(self, tensor: Tensor) -> None:
        """Look for NaN and infinite numbers in the parts of floats that are not the values themselves."""
        encodings = tensor.spec.encodings
        values = encodings[0].parts.get("data") if encodings and encodings[0].codec.id == "dense" else None
        with suppress(SquishError), tensor.guard("decoding"):  # decoding has reported parts that cannot be read
            for role, part in _parts(tensor.spec):
                if part is not values and part.dtype in FLOATS and bits(part.dtype) >= 8:
                    array = tensor.file.array(part)
                    size = bits(part.dtype) // 8
                    panels = (
                        as_array(chunk, part.dtype, (len(chunk) // size,), part.byteorder) for chunk in array.chunks()
                    )
                    self.problems += check_values(panels).problems(f"{tensor.name}/{role}", False)

    def _file_names(self) -> None:
        """Compare the names of files on disk that are digests with their bytes."""
        source = self.file.source
        if source.path is None:
            return
        folder = source.path if source.is_dir else source.path.parent
        for ref in self.file.index.files:
            path = folder / ref.name
            absent = suppress(FileNotFoundError, NotADirectoryError)  # a member of an archive
            with self._collect(), computing(FormatError, "hashing", file=str(path)), absent:
                if problem := name_problem(path):
                    self.problems.append(problem)

    @contextmanager
    def _collect(self) -> Iterator[None]:
        """Turn a SquishError raised in the block into a finding."""
        try:
            yield
        except SquishError as error:
            # A missing plugin leaves a tensor unchecked; the file itself may be fine.
            self.problems.append(as_problem(error, "warning" if isinstance(error, MissingPluginError) else "error"))


def _parts(spec: TensorSpec) -> list[tuple[str, Part]]:
    """Return all stored parts of a tensor, with their roles."""
    return [item for parts in (*[each.parts for each in spec.encodings], spec.extras) for item in parts.items()]


def check_span(span: Span) -> Findings:
    """Check some tensors of a file in a worker process."""
    file = file_at(span.files[0])
    check = Check(file, None)
    check.problems = []
    check.tensors([file[name] for name in islice(file, span.start, span.stop)])
    return check.findings()
