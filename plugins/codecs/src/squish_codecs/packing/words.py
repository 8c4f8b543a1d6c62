"""Packed codes from one layout of words into another, a word at a time: shifts of whole arrays, never a code alone.

"Rows" are unsigned little-endian words [..., words of a row]: each row one bit stream, first code in the lowest bits.
"""

from __future__ import annotations

import numpy as np

from .bits import Packing, row_major

Array = np.ndarray


def to_rows(packing: Packing, words: Array, count: int, axis: int) -> Array | None:
    """Words along `axis` (-1 or -2) as rows, of any strides; None where only unpacking could tell them apart."""
    if not _whole(packing, count):
        return None
    lanes = words.view(f"<u{packing.width // 8}")
    if axis == -1:
        return _ordered(packing, lanes, reading=True)
    unit = packing.unit
    if not _square(packing, lanes.shape[-1], lanes.ndim):
        return None
    # Stored [columns, rows / unit]: the lines of a block are the words at `unit` neighboring columns.
    stored = lanes.swapaxes(-1, -2)
    turned = _turned([stored[..., place::unit, :] for place in range(unit)], packing)
    out = np.empty((*turned[0].shape, unit), lanes.dtype)
    for place, line in zip(_order(packing), turned):
        out[..., place] = line
    return out.reshape(*out.shape[:-2], -1).swapaxes(-1, -2)


def from_rows(packing: Packing, rows: Array, count: int, axis: int) -> Array | None:
    """The inverse of `to_rows`: words along `axis`, where there are `count` codes."""
    if not _whole(packing, count):
        return None
    lanes = as_words(rows, packing.width)
    if lanes is None or (axis == -2 and not _square(packing, 0, lanes.ndim)):
        return None
    if axis == -1:
        return _ordered(packing, lanes, reading=False).view(packing.dtype)
    unit, stored = packing.unit, row_major(lanes.swapaxes(-1, -2))
    turned = _turned([stored[..., place::unit] for place in _order(packing)], packing)
    out = np.empty((*stored.shape[:-2], unit * stored.shape[-2], stored.shape[-1] // unit), lanes.dtype)
    for place, line in enumerate(turned):
        out[..., place::unit, :] = line
    return out.swapaxes(-1, -2).view(packing.dtype)


def as_words(rows: Array, width: int) -> Array | None:
    """Rows in words of `width` bits; None where a row is no whole number of them."""
    if rows.dtype.itemsize * 8 == width:
        return rows
    if rows.shape[-1] * rows.dtype.itemsize % (width // 8):
        return None
    return row_major(rows).view(f"<u{width // 8}")


def flipped(rows: Array, bits: int) -> Array | None:
    """Rows with the highest bit of every code turned; None where codes run on from row to row."""
    if not rows.size:
        return rows
    width = rows.dtype.itemsize * 8
    unit = Packing(bits, f"u{width}", "lsb")
    run = unit.words(unit.unit)
    if rows.shape[-1] % run:
        return None
    high = sum(1 << bits - 1 + bits * place for place in range(unit.unit))
    pattern = np.frombuffer(high.to_bytes(run * width // 8, "little"), rows.dtype)
    if (pattern == pattern[0]).all():
        return rows ^ pattern[0]
    return rows ^ np.tile(pattern, rows.shape[-1] // run)


def _whole(packing: Packing, count: int) -> bool:
    """Whether `count` codes fill words to the last bit, as one stream or in an order within each word."""
    return packing.order not in ("padded", "planes") and count * packing.bits % packing.width == 0


def _square(packing: Packing, columns: int, rank: int) -> bool:
    """Whether blocks of as many rows as columns can be turned round."""
    return rank >= 2 and packing.width % packing.bits == 0 and columns % packing.unit == 0


def _order(packing: Packing) -> list[int]:
    """Which code of a word lies at each place, lowest first."""
    if packing.order == "lsb":
        return list(range(packing.unit))
    if packing.order == "msb":
        return list(range(packing.unit - 1, -1, -1))
    return [int(code) for code in packing.order]


def _ordered(packing: Packing, lanes: Array, *, reading: bool) -> Array:
    """Words with their codes in order, or from that into the packing's; a shift for each distance that codes go."""
    if packing.order == "lsb":
        return lanes
    one = (1 << packing.bits) - 1
    moves: dict[int, int] = {}
    for place, code in enumerate(_order(packing)):
        source, target = (place, code) if reading else (code, place)
        moves[target - source] = moves.get(target - source, 0) | one << source * packing.bits
    out = np.zeros_like(lanes)
    for distance, mask in moves.items():
        moved, shift = lanes & lanes.dtype.type(mask), lanes.dtype.type(abs(distance) * packing.bits)
        out |= moved << shift if distance > 0 else moved >> shift
    return out


def _turned(lines: list[Array], packing: Packing) -> list[Array]:
    """Blocks of `unit` x `unit` codes, a word a line, with lines and columns exchanged: by halves, quarters, ...

    Source: Warren, Hacker's Delight, 7-3.
    """
    lines, half = list(lines), packing.unit // 2
    kind = lines[0].dtype.type
    while half:
        shift = half * packing.bits
        field = (1 << shift) - 1
        low = kind(sum(field << place for place in range(0, packing.width, 2 * shift)))
        for first in range(packing.unit):
            if not first & half:
                one, other = lines[first], lines[first + half]
                swap = ((one >> kind(shift)) ^ other) & low
                lines[first], lines[first + half] = one ^ (swap << kind(shift)), other ^ swap
        half //= 2
    return lines
