"""Sources that log reads, damaged sources, and files in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squish_core.file import File
from squish_core.io.local import open_source
from squish_core.io.source import BytesSource, Source
from squish_core.io.wrapped import WrappedSource
from squish_core.limits import DEFAULT
from squish_core.model import CodecSpec, Encoding, FileRef, Index, Part, Segment, TensorSpec
from squish_core.plugins.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from squish_core.tensor import Tensor

Range = tuple[str, int, int]
"""(file name, offset, length)"""


class CountingSource(WrappedSource):
    """Wraps a source and records every range read or viewed in `log`; members share the log."""

    def __init__(self, inner: Source, log: list[Range] | None = None) -> None:
        super().__init__(inner)
        self.log: list[Range] = [] if log is None else log

    def unmapped(self) -> Source:
        twin: CountingSource = super().unmapped()  # type: ignore[assignment]
        twin.inner = self.inner.unmapped()
        return twin

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self._note(offset, len(out))
        self.inner.read_into(offset, out, what)

    def _read(self, offset: int, length: int) -> bytes:
        self._note(offset, length)
        return self.inner.read(offset, length)

    def _view(self, offset: int, length: int) -> memoryview:
        self._note(offset, length)
        return self.inner.view(offset, length)

    def _wrapped(self, member: Source) -> Source:
        return CountingSource(member, self.log)

    def _note(self, offset: int, length: int) -> None:
        self.log.append((self.filename, offset, length))


class DamagedSource(BytesSource):
    """Replaces the content of the file `original`, with the same folder."""

    def __init__(self, data: bytes, original: Source) -> None:
        super().__init__(data, original.name)
        self._original = original

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return self._original.members(folder)

    def _open_member(self, name: str) -> Source:
        return self._original.member(name)


class DamagedFolder(Source):
    """A folder with the content of one file replaced."""

    is_dir = True

    def __init__(self, folder: Source, name: str, data: bytes) -> None:
        super().__init__(folder.name, 0)
        self.path, self._folder, self._replacements = folder.path, folder, {name: data}

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return self._folder.members(folder)

    def _open_member(self, name: str) -> Source:
        folder, _, filename = name.rpartition("/")
        inner = self._folder.member(filename, folder)
        return DamagedSource(self._replacements[name], inner) if name in self._replacements else inner


def source_of(sample: bytes | str | Path) -> Source:
    """Open a sample as a source."""
    return open_source(sample)


def touched(log: Iterable[Range], file: str, segment: Segment) -> int:
    """Number of distinct bytes of a segment that were read."""
    start, stop = segment.offset, segment.offset + segment.length
    total, reached = 0, start
    for low, high in sorted((offset, offset + length) for name, offset, length in log if name == file):
        low, high = max(low, reached), min(high, stop)
        if low < high:
            total, reached = total + high - low, high
    return total


def fetched_part(log: Iterable[Range], index: Index, part: Part) -> int:
    """Number of stored bytes of a part that were read, with repeats."""
    places = [(index.files[item.file].name, item.offset, item.offset + item.length) for item in part.segments]
    return sum(
        max(0, min(offset + length, stop) - max(offset, start))
        for name, offset, length in log
        for file, start, stop in places
        if file == name
    )


def assert_read_once(tensors: Iterable[Tensor], source: CountingSource) -> None:
    """Assert that decoding a tensor reads no stored byte twice."""
    for tensor in tensors:
        source.log.clear()
        tensor.numpy()
        for role, part in tensor.bound.encoding.parts.items():
            read = fetched_part(source.log, tensor.file.index, part)
            assert read <= part.stored, f"{tensor.name}/{role}: {read} bytes read of {part.stored}"


def touched_part(log: Iterable[Range], index: Index, part: Part) -> int:
    """Number of stored bytes of a part that were read."""
    log = list(log)
    return sum(touched(log, index.files[segment.file].name, segment) for segment in part.segments)


def memory_file(
    registry: Registry, tensors: Mapping[str, tuple[TensorSpec, CodecSpec, Mapping[str, np.ndarray]]]
) -> tuple[File, CountingSource]:
    """Make an open file of parts in memory that logs reads.

    Parameters
    ----------
    registry
        The plugins to read with.
    tensors
        Name -> shape and dtype, codec, and the array of each part.

    Returns
    -------
    file : File
        The tensors; their bytes begin at an odd offset, since unaligned parts are valid.
    source : CountingSource
        Logs the ranges that are read.

    Examples
    --------
    >>> from squish_core.model import CodecSpec, TensorSpec
    >>> spec = TensorSpec(name="w", shape=(2,), dtype="f32")
    >>> file, source = memory_file(squish.registry(), {"w": (spec, CodecSpec("dense"), {"data": np.ones(2, "f4")})})
    >>> file["w"].numpy().tolist()
    [1.0, 1.0]
    """
    blob, specs = b"\0", {}  # data at an odd offset: unaligned parts are valid
    for name, (spec, codec, arrays) in tensors.items():
        layout = registry.codec(codec).parts(spec)
        parts = {}
        for role, (dtype, shape) in layout.items():
            raw = arrays[role].tobytes()
            parts[role] = Part(dtype=dtype, shape=tuple(shape), segments=(Segment(0, len(blob), len(raw)),))
            blob += raw
        encoding = Encoding(codec=codec, parts=parts)
        specs[name] = TensorSpec(name=name, shape=spec.shape, dtype=spec.dtype, encodings=(encoding,))
    source = CountingSource(BytesSource(blob, "memory"))
    index = Index(format="memory", version="", files=(FileRef("memory", len(blob)),), tensors=specs)
    return File(source, index, registry, DEFAULT), source


def as_bytes(buffer: Any) -> bytes:
    """Return the bytes of a Buffer."""
    return bytes(buffer.raw)
