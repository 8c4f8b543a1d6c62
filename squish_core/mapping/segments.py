"""Byte ranges of rows: cut, joined, and put in another order without touching a byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

from squish_core.model import Segment

if TYPE_CHECKING:
    import numpy as np


class PermutedRows(Sequence[Segment]):
    """The rows of one byte range in another order, as segments that are made when they are looked at.

    Parameters
    ----------
    file, offset
        Where the first stored row lies.
    row_bytes
        Bytes of a row.
    order
        Stored row of each row.
    """

    __slots__ = ("file", "offset", "order", "row_bytes")

    def __init__(self, file: int, offset: int, row_bytes: int, order: np.ndarray) -> None:
        self.file, self.offset, self.row_bytes, self.order = file, offset, row_bytes, order

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
        if isinstance(other, PermutedRows) and self.order is other.order:
            return (self.file, self.offset, self.row_bytes) == (other.file, other.offset, other.row_bytes)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _segment(self, row: int) -> Segment:
        return Segment(self.file, self.offset + row * self.row_bytes, self.row_bytes)


def permuted(segments: Sequence[Segment], row_bytes: int, order: np.ndarray) -> Sequence[Segment]:
    """Rows in another order."""
    if len(segments) == 1:
        return PermutedRows(segments[0].file, segments[0].offset, row_bytes, order)
    return joined(cut(segments, row * row_bytes, row_bytes) for row in order.tolist())


def cut(segments: Iterable[Segment], start: int, length: int) -> tuple[Segment, ...]:
    """A range of the bytes that segments hold in order.

    >>> cut([Segment(0, 100, 4), Segment(0, 200, 4)], 2, 4)
    (Segment(file=0, offset=102, length=2), Segment(file=0, offset=200, length=2))
    """
    pieces = []
    for segment in segments:
        low, high = max(start, 0), min(start + length, segment.length)
        if low < high:
            pieces.append(Segment(segment.file, segment.offset + low, high - low))
        start -= segment.length
    return tuple(pieces)


def joined(groups: Iterable[Iterable[Segment]]) -> tuple[Segment, ...]:
    """All segments in order; those that touch are one.

    >>> joined([[Segment(0, 0, 4)], [Segment(0, 4, 4)]])
    (Segment(file=0, offset=0, length=8),)
    """
    made: list[Segment] = []
    for segment in (segment for group in groups for segment in group):
        last = made[-1] if made else None
        if last is not None and (last.file, last.offset + last.length) == (segment.file, segment.offset):
            made[-1] = Segment(last.file, last.offset, last.length + segment.length)
        else:
            made.append(segment)
    return tuple(made)
