"""Stored rows in another order: one segment per row, built on access, and read many rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

from squish_core.io.source import Source
from squish_core.model import Segment, Segments

if TYPE_CHECKING:
    import numpy as np


class PermutedRows(Segments):
    """The rows of one byte range in another order, as segments built on access.

    Parameters
    ----------
    file, offset
        Location of the first stored row.
    row_bytes
        Size of a row in bytes.
    order
        Index of the stored row for each row.
    """

    __slots__ = ("file", "offset", "order", "row_bytes")

    def __init__(self, file: int, offset: int, row_bytes: int, order: np.ndarray) -> None:
        self.file, self.offset, self.row_bytes, self.order = file, offset, row_bytes, order

    @property
    def nbytes(self) -> int:
        return len(self.order) * self.row_bytes

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Segment, ...]: ...
    def __getitem__(self, index: int | slice) -> Segment | tuple[Segment, ...]:
        if isinstance(index, slice):
            return tuple(map(self._segment, self.order[index].tolist()))
        return self._segment(int(self.order[index]))

    def __iter__(self) -> Iterator[Segment]:
        return map(self._segment, self.order.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PermutedRows) and (self.file, self.row_bytes) == (other.file, other.row_bytes):
            shift = (other.offset - self.offset) / self.row_bytes
            return len(self) == len(other) and bool((self.order == other.order + shift).all())
        return isinstance(other, Segments | tuple | list) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def read(self, source: Source, start: int, length: int) -> memoryview:
        """Return a range of the permuted bytes."""
        first, stop = start // self.row_bytes, -(-(start + length) // self.row_bytes)
        data = memoryview(bytearray((stop - first) * self.row_bytes))
        self.read_into(source, first * self.row_bytes, data)
        skipped = start - first * self.row_bytes
        return data[skipped : skipped + length].toreadonly()

    def read_into(self, source: Source, start: int, out: memoryview) -> None:
        """Copy whole rows of the permuted bytes, gathered in one pass where the source is mapped or they lie close."""
        import numpy as np

        first, row = start // self.row_bytes, self.row_bytes
        order = self.order[first : first + len(out) // row]
        low, high = (int(order.min()), int(order.max()) + 1) if len(order) else (0, 0)
        if len(order) and (source.cheap_views or high - low <= 2 * len(order)):
            stored = np.frombuffer(source.view(self.offset + low * row, (high - low) * row), np.uint8)
            rows = np.frombuffer(out, np.uint8).reshape(-1, row)
            np.take(stored.reshape(-1, row), order - low, axis=0, out=rows, mode="clip")  # "raise" would copy twice
        else:
            for index, segment in enumerate(map(self._segment, order.tolist())):
                out[index * row : (index + 1) * row] = source.view(segment.offset, segment.length)

    def _segment(self, row: int) -> Segment:
        return Segment(self.file, self.offset + row * self.row_bytes, self.row_bytes)
