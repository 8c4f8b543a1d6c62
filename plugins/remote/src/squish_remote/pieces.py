"""Byte ranges as requests: near ones are merged, long ones split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

Range = tuple[int, int]
"""(offset, length)"""


@frozen
class Piece:
    """One request from `start` to `stop`; `useful` of its bytes are needed, the others lie between ranges."""

    start: int
    stop: int
    useful: int


def joined(ranges: Iterable[Range], gap: int, most: int) -> list[Piece]:
    """Pieces that cover the ranges in offset order: those at most `gap` bytes apart in one, up to `most` bytes.

    A range that alone is longer is one piece by itself.
    """
    pieces: list[Piece] = []
    for offset, length in sorted(set(ranges)):
        last = pieces[-1] if pieces else None
        stop = offset + length
        if last is not None and offset - last.stop <= gap and max(stop, last.stop) - last.start <= most:
            useful = last.useful + max(0, stop - max(offset, last.stop))
            pieces[-1] = Piece(last.start, max(stop, last.stop), useful)
        else:
            pieces.append(Piece(offset, stop, length))
    return pieces


def cut(piece: Piece, most: int) -> Sequence[Range]:
    """(start, stop) of the requests for a piece: equal ones of about `most` bytes, at most half as long again."""
    length = piece.stop - piece.start
    size = -(-length // max(1, round(length / most)))
    return [(start, min(start + size, piece.stop)) for start in range(piece.start, piece.stop, size)]
