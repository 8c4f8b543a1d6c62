"""Reading an open file: its source, Index, registry and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.stored import StoredArray
from squish_core.codes import ErrorCode
from squish_core.dtypes import DType
from squish_core.errors import CodecError, FormatError, Problem, SquishError
from squish_core.guard import computing, guarded
from squish_core.io.buffer import Buffer
from squish_core.io.digest import check_digest
from squish_core.io.source import Backing, Source
from squish_core.limits import DEFAULT, MIB, Limits
from squish_core.model import Encoding, Index, Part, TensorSpec
from squish_core.plugins.registry import Registry


class Reader:
    """Reads the parts in an Index; the base of `File`."""

    def __init__(self, source: Source, index: Index, registry: Registry, limits: Limits = DEFAULT) -> None:
        self.source, self.index, self.registry, self.limits = source, index, registry, limits
        self._is_loading = False

    @property
    def name(self) -> str:
        """Path or name of the file."""
        return self.source.name

    @property
    def path(self) -> Path | None:
        """Path of the file or folder; None for bytes in memory."""
        return self.source.path

    @property
    def format(self) -> str:
        """Container id."""
        return self.index.format

    @property
    def format_spec(self) -> str:
        """The format with its read options, as `open(format=)` takes it."""
        options = ",".join(f"{key}={value}" for key, value in self.index.reading.items())
        return f"{self.format}:{options}" if options else self.format

    @property
    def size(self) -> int:
        """Total size in bytes, assets included; of a compressed file, the size of its content."""
        return sum(ref.size for ref in self.index.files)

    @property
    def version(self) -> str:
        """Version or dialect of the format according to the file; "" if there is none."""
        return self.index.version

    def source_for(self, number: int) -> Source:
        """Source of a file of the Index."""
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
        """A part as a lazy array."""
        return StoredArray(part, self.values_source, self.registry.byte_codec, self.limits)

    @property
    def values_source(self) -> Callable[[int], Source]:
        """`source_for`; the first call tells the format that values are read, if the Index asks for it."""
        return self._loading_source if self.index.pending_caches else self.source_for

    def _loading_source(self, number: int) -> Source:
        if not self._is_loading:
            self._is_loading = True
            self.registry.container(self.format).loading(self.source)
        return self.source_for(number)

    def bind(self, spec: TensorSpec, encoding: Encoding) -> BoundEncoding:
        """Bind an encoding to its codec and stored parts."""
        parts = {role: self.array(part) for role, part in encoding.parts.items()}
        return BoundEncoding(self.registry.codec(encoding.codec), spec, encoding, parts, self.limits)

    @contextmanager
    def reading_ahead(self, parts: Iterable[Part]) -> Iterator[None]:
        """Announce that parts will be read in about this order, each once; a remote source fetches them ahead.

        Parameters
        ----------
        parts
            What will be read in the `with` block.

        Returns
        -------
        context manager
            At its end nothing more is fetched.

        Examples
        --------
        >>> file = squish.open("model.gguf")
        >>> with file.reading_ahead(file["blk.0.ffn_up.weight"].bound.encoding.parts.values()):
        ...     values = file["blk.0.ffn_up.weight"].numpy()
        """
        sources: dict[int, Source] = {}
        if not self.source.cheap_views:
            segments = dict.fromkeys(segment for part in parts for segment in part.segments if segment.length)
            for number, run in groupby(segments, key=lambda segment: segment.file):
                sources[number] = self.source_for(number)
                sources[number].read_ahead([(segment.offset, segment.length) for segment in run])
        try:
            yield
        finally:
            for source in sources.values():
                source.read_ahead(())

    def guard(self, kind: type[SquishError], what: str, **context: Any) -> guarded:
        """Context manager around plugin code, with this file's name."""
        return guarded(kind, what, file=self.name, **context)


class TensorFacts:
    """One tensor according to the Index; `Tensor` also reads its values."""

    def __init__(self, file: Reader, spec: TensorSpec) -> None:
        self.file, self.spec = file, spec

    @property
    def name(self) -> str:
        """Name."""
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.spec.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.elements

    @property
    def dtype(self) -> DType:
        """Logical dtype; f32 for quantized tensors unless the format says otherwise."""
        return DType(self.spec.dtype)

    @property
    def codec(self) -> str:
        """Codec id of the first encoding, or "unknown"."""
        return self.spec.encodings[0].codec.id if self.spec.encodings else "unknown"

    @property
    def nbytes(self) -> int:
        """Stored size of the first encoding, in bytes."""
        if self.spec.encodings:
            return self.spec.encodings[0].stored
        return sum(part.stored for part in self.spec.extras.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per logical element, scales included."""
        return 8 * self.nbytes / self.spec.elements if self.spec.elements else 0.0

    def backing(self, encoding: Encoding) -> tuple[Backing, ...]:
        """The files that views of an encoding's parts depend on."""
        parts = [part for part in encoding.parts.values() if part.data is None and not part.filters]
        numbers = {segment.file for part in parts for segment in part.segments if segment.length}
        files = (self.file.source_for(number).backing() for number in sorted(numbers))
        return tuple(backing for backing in files if backing is not None)

    def guard(self, what: str, **context: Any) -> Any:
        return computing(CodecError, what, file=self.file.name, tensor=self.spec.name, **context)


class Assets(Mapping[str, Buffer]):
    """Asset name -> Buffer, read on indexing."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitem__(self, name: str) -> Buffer:
        part = self._reader.index.assets[name]
        with guarded(FormatError, "reading an asset", file=self._reader.name, part=name):
            return self._reader.array(part).buffer()

    def __contains__(self, name: object) -> bool:
        return name in self._reader.index.assets

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.index.assets)

    def __len__(self) -> int:
        return len(self._reader.index.assets)

    def __repr__(self) -> str:
        return f"<Assets {', '.join(self) or 'none'}>"


def file_problems(reader: Reader, numbers: Iterable[int] | None = None) -> Iterator[Problem]:
    """Check the digests of whole files that the header lists: those of all files, or of those with these numbers."""
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
            message = f"the file's digest {ref.digest[:40]!r} has an unknown algorithm"
            yield Problem(code="unverified", severity="note", where=ref.name, message=message)
