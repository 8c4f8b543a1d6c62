"""Byte ranges of rows: cut, concatenate and permute them without reading a byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from squish_core.codecs.permuted import PermutedRows
from squish_core.model import Segment

if TYPE_CHECKING:
    import numpy as np


def permute(segments: Sequence[Segment], row_bytes: int, order: np.ndarray) -> Sequence[Segment]:
    """Put rows in another order."""
    if len(segments) == 1:
        return PermutedRows(segments[0].file, segments[0].offset, row_bytes, order)
    return concatenate(cut(segments, row * row_bytes, row_bytes) for row in order.tolist())


def cut(segments: Iterable[Segment], start: int, length: int) -> tuple[Segment, ...]:
    """Cut a byte range out of consecutive segments.

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


def concatenate(groups: Iterable[Iterable[Segment]]) -> tuple[Segment, ...]:
    """Concatenate segments, merging adjacent ones.

    >>> concatenate([[Segment(0, 0, 4)], [Segment(0, 4, 4)]])
    (Segment(file=0, offset=0, length=8),)
    """
    merged: list[Segment] = []
    for segment in (segment for group in groups for segment in group):
        last = merged[-1] if merged else None
        if last is not None and (last.file, last.offset + last.length) == (segment.file, segment.offset):
            merged[-1] = Segment(last.file, last.offset, last.length + segment.length)
        else:
            merged.append(segment)
    return tuple(merged)
