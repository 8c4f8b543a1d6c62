"""Stored arrays: the bytes of a part, read on indexing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.permuted import PermutedRows
from squish_core.errors import CodecError, LimitError, TensorError
from squish_core.io.buffer import Buffer, as_array
from squish_core.io.source import Source
from squish_core.limits import MIB, Limits
from squish_core.model import Part, Segment

if TYPE_CHECKING:
    import numpy as np

    from squish_core.codecs.byte_codec import ByteCodec
    from squish_core.io.sink import Sink


SMALL = 256 * MIB
"""Decoded size up to which the compression ratio is not limited."""


class StoredArray:
    """One part as a lazy array: `array[a:b]` reads only the bytes of those rows, without a copy if possible."""

    def __init__(
        self, part: Part, source_for: Callable[[int], Source], byte_codec: Callable[[str], ByteCodec], limits: Limits
    ) -> None:
        self.part, self._source_for, self._byte_codec, self._limits = part, source_for, byte_codec, limits
        self._decoded: tuple[int, memoryview] | None = None
        self._run: Segment | None = None  # the part's only byte range, once its size is checked
        self._ranges: Mapping[int, memoryview] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape before filters."""
        return self.part.shape

    @property
    def dtype(self) -> np.dtype:
        """NumPy dtype."""
        return dtypes.to_numpy(self.part.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        return np.array(self[...], dtype=dtype, copy=copy)

    def __getitem__(self, key: Any) -> np.ndarray:
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys or not self.part.shape:
            return self._array(0, self.part.shape)[key if self.part.shape else ...]
        # Narrow along leading axes as long as the bytes stay one range.
        offset, shape = 0, self.part.shape
        if _selects_all(keys, shape):
            return self._array(0, shape)
        lead: list[Any] = []
        for position, item in enumerate(keys):
            if not isinstance(item, slice):
                break
            start, stop, step = item.indices(shape[position])
            if step != 1:
                break
            inner = dtypes.nbytes(self.part.dtype, shape[position + 1 :])
            stop = max(start, stop)
            offset += start * inner
            shape = (*shape[:position], stop - start, *shape[position + 1 :])
            lead.append(slice(None))
            if stop - start != 1:
                break
        array, rest = self._array(offset, shape), keys[len(lead) :]
        return array if _selects_all(rest, shape[len(lead) :]) else array[(*lead, *rest)]

    def buffer(self) -> Buffer:
        """Return the part as a Buffer."""
        part = self.part
        raw = self.bytes(0, part.nbytes)
        if not part.in_place or part.data is not None:
            return Buffer(raw, part.dtype, part.shape)
        (segment,) = part.segments
        view = self._source_for(segment.file).writable_view(segment.offset, segment.length)
        return Buffer(raw, part.dtype, part.shape, view)

    def chunks(self, size: int = 4 * MIB) -> Iterator[memoryview]:
        """Yield the unfiltered bytes in order."""
        total = self.part.nbytes
        if self.part.filters:
            size = max(size, 16 * MIB)  # several frames per chunk decode in parallel
        for start in range(0, total, size):
            yield self.bytes(start, min(size, total - start))

    def stored_chunks(self, size: int = 4 * MIB) -> Iterator[memoryview]:
        """Yield the stored bytes in order."""
        if self.part.data is not None:
            yield memoryview(self.part.data)
            return
        for segment in self.part.segments:
            source = self._source_for(segment.file)
            for start in range(0, segment.length, size):
                yield source.view(segment.offset + start, min(size, segment.length - start))

    @property
    def is_permuted(self) -> bool:
        """Whether it consists of rows in another order, which are read many at a time."""
        return isinstance(self.part.segments, PermutedRows)

    @property
    def is_cheap(self) -> bool:
        """Whether reading it again costs nothing, because it is in memory or mapped."""
        return self.part.data is not None or all(source.cheap_views for source in self._sources())

    @property
    def is_remote(self) -> bool:
        """Whether reading it goes over a network."""
        return any(source.is_remote for source in self._sources())

    def check_size(self) -> None:
        """Raise TruncatedError if a file that contains it has become shorter."""
        for source in self._sources():
            source.check_size()

    def in_memory(self) -> StoredArray:
        """Return the same part with its stored bytes in memory."""
        pieces = list(self.stored_chunks(1 << 62))
        data: Any = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        return StoredArray(evolve(self.part, segments=(), data=data), self._source_for, self._byte_codec, self._limits)

    def with_ranges(self, ranges: Mapping[int, memoryview]) -> StoredArray:
        """Return the same part with ranges of its unfiltered bytes in memory, by their starts."""
        array = copy(self)
        array._ranges = ranges
        return array

    def runs(self) -> Iterator[tuple[Source, int, int]]:
        """Source, offset and length of each stored byte range."""
        return ((self._source_for(run.file), run.offset, run.length) for run in self.part.segments)

    def _sources(self) -> list[Source]:
        """Return the files with its bytes."""
        segments = self.part.segments
        files = [segments.file] if isinstance(segments, PermutedRows) else [segment.file for segment in segments]
        return [self._source_for(file) for file in dict.fromkeys(files)]

    def read_into(self, out: memoryview) -> None:
        """Copy the part into `out`, through pread if it has no filters."""
        part = self.part
        if part.filters or part.data is not None or self.is_permuted:
            out[:] = self.bytes(0, part.nbytes)
            return
        self._check_size()
        position = 0
        for segment in part.segments:
            self._source_for(segment.file).read_into(segment.offset, out[position : position + segment.length])
            position += segment.length

    def write_to(self, sink: Sink) -> None:
        """Append the part, which has no filters, to a sink."""
        segments = self.part.segments
        if self.part.data is not None:
            sink.write(self.part.data)
        elif isinstance(segments, PermutedRows):
            self._check_size()
            source = self._source_for(segments.file)
            in_order = not source.cheap_views  # bytes that arrive may be hashed
            sink.fill(partial(segments.read_into, source), segments.nbytes, segments.row_bytes, in_order=in_order)
        else:
            for source, offset, length in self.runs():
                sink.copy(source, offset, length)

    def bytes(self, start: int, length: int) -> memoryview:
        """Return a range of the unfiltered bytes."""
        part, ranges = self.part, self._ranges
        for low, view in ((start, ranges[start]),) if start in ranges else ranges.items():
            if low <= start and start + length <= low + len(view):
                return view[start - low : start - low + length]
        if part.filters:
            low, chunk = self._decoded or (0, memoryview(b""))
            if self._decoded is None or not low <= start <= start + length <= low + len(chunk):
                low, chunk = self._decoded = self._decode(start, start + length)
            return chunk[start - low : start - low + length]
        if self._run is None:
            self._check_size()
            if part.data is not None:
                return memoryview(part.data)[start : start + length]
            if len(part.segments) == 1:
                (self._run,) = part.segments
        if isinstance(part.segments, PermutedRows):
            return part.segments.read(self._source_for(part.segments.file), start, length)
        if self._run is not None and 0 < length <= self._run.length - start:
            return self._source_for(self._run.file).view(self._run.offset + start, length)
        pieces = list(self._pieces(start, length))
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _array(self, offset: int, shape: Sequence[int]) -> np.ndarray:
        shape = tuple(shape)
        raw = self.bytes(offset, dtypes.nbytes(self.part.dtype, shape))
        return as_array(raw, self.part.dtype, shape, self.part.byteorder)

    def _pieces(self, start: int, length: int) -> Iterator[memoryview]:
        stop = start + length
        for segment in self.part.segments:
            low, high = max(start, 0), min(stop, segment.length)
            if low < high:
                yield self._source_for(segment.file).view(segment.offset + low, high - low)
            start, stop = start - segment.length, stop - segment.length

    def _check_size(self) -> None:
        if self.part.stored != self.part.nbytes:
            expected = f"{self.part.nbytes} bytes for {self.part.dtype} {list(self.part.shape)}"
            found = f"{self.part.stored} bytes"
            raise TensorError("the stored bytes do not fit the shape", expected=expected, found=found, code="size")

    def _decode(self, start: int, stop: int) -> tuple[int, memoryview]:
        """Decode the filter for a range; returns the start of the decoded bytes, and the bytes.

        The size is checked against the limits before memory is allocated.
        """
        part, limits = self.part, self._limits
        size = part.nbytes
        if len(part.filters) > 1:
            raise CodecError("more than one filter on a part is not supported", found=len(part.filters), code="filter")
        check_decoded(size, part.stored, limits)
        data = (
            memoryview(b"".join(self.stored_chunks()))
            if len(part.segments) != 1
            else next(iter(self.stored_chunks(1 << 62)), memoryview(b""))
        )
        codec, params = self._byte_codec(part.filters[0].codec), part.filters[0].params
        low, high = codec.covering(data, params, size=size, start=start, stop=stop)
        if (low, high) != (0, size):
            out = bytearray(high - low)
            codec.decode_range(data, params, size=size, start=low, out=memoryview(out))
            return low, memoryview(out).toreadonly()
        if size > max(32 * MIB, 64 * len(data)):
            # Ratios this high are rare: check the decoded size before allocating memory.
            decoded = codec.decoded_size(data, params, most=size)
            if decoded is not None and decoded != size:
                raise CodecError(
                    "decoded size mismatch", expected=f"{size} bytes", found=f"{decoded} bytes", code="size"
                )
        out = bytearray(size)
        codec.decode(data, params, out=memoryview(out), ratio=limits.ratio)
        return 0, memoryview(out).toreadonly()


def _selects_all(keys: Sequence[Any], shape: Sequence[int]) -> bool:
    """Return whether an index selects everything along these axes."""
    if len(keys) > len(shape):
        return False
    for item, size in zip(keys, shape):
        if type(item) is not slice or item.start or item.step not in (None, 1) or item.stop not in (None, size):
            return False
    return True


def check_decoded(size: int, stored: int, limits: Limits) -> None:
    """Raise LimitError if `size` decoded bytes exceed the limits, absolutely or relative to `stored` bytes."""
    limit = min(max(SMALL, stored * limits.ratio), limits.decoded)
    if size > limit:
        raise LimitError(
            "would decode to more than the limits allow",
            expected=f"at most {limit} bytes",
            found=f"{size} bytes",
            code="ratio",
            limit="decoded" if size > limits.decoded else "ratio",
        )
