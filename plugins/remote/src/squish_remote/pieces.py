"""Requests for byte ranges: adjacent ranges are merged, long ones split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

Range = tuple[int, int]
"""(offset, length)"""


@frozen
class Piece:
    """One request from `start` to `stop`; `useful` of its bytes are needed, the others are gaps between ranges."""

    start: int
    stop: int
    useful: int


def merge(ranges: Iterable[Range], gap: int, limit: int) -> list[Piece]:
    """Merge ranges at most `gap` bytes apart into pieces of up to `limit` bytes, in offset order.

    A range longer than `limit` is a piece by itself.
    """
    pieces: list[Piece] = []
    for offset, length in sorted(set(ranges)):
        last = pieces[-1] if pieces else None
        stop = offset + length
        if last is not None and offset - last.stop <= gap and max(stop, last.stop) - last.start <= limit:
            useful = last.useful + max(0, stop - max(offset, last.stop))
            pieces[-1] = Piece(last.start, max(stop, last.stop), useful)
        else:
            pieces.append(Piece(offset, stop, length))
    return pieces


def split(piece: Piece, limit: int) -> Sequence[Range]:
    """Split a piece into requests (start, stop) of equal length: about `limit` bytes, at most 1.5 times that."""
    length = piece.stop - piece.start
    size = -(-length // max(1, round(length / limit)))
    return [(start, min(start + size, piece.stop)) for start in range(piece.start, piece.stop, size)]
