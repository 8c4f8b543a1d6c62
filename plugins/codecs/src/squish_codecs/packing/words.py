"""Converts packed codes between word layouts with whole-array shifts, without unpacking.

"Rows" are unsigned little-endian words [..., words per row]: each row is a bit stream, first code in the lowest bits.
"""

from __future__ import annotations

import numpy as np

from .bits import Packing, row_major

Array = np.ndarray


def to_rows(packing: Packing, words: Array, count: int, axis: int) -> Array | None:
    """Convert words along `axis` (-1 or -2) to rows with any strides; None if that needs unpacking."""
    if not _fills_words(packing, count):
        return None
    lanes = words.view(f"<u{packing.width // 8}")
    if axis == -1:
        return _reorder(packing, lanes, reading=True)
    unit = packing.unit
    if not _square(packing, lanes.shape[-1], lanes.ndim):
        return None
    # [columns, rows / unit]: a block is the words of `unit` neighboring columns.
    columns = lanes.swapaxes(-1, -2)
    lines = _transpose_blocks([columns[..., slot::unit, :] for slot in range(unit)], packing)
    out = np.empty((*lines[0].shape, unit), lanes.dtype)
    for slot, line in zip(_order(packing), lines):
        out[..., slot] = line
    return out.reshape(*out.shape[:-2], -1).swapaxes(-1, -2)


def from_rows(packing: Packing, rows: Array, count: int, axis: int) -> Array | None:
    """Convert rows to words along `axis` with `count` codes; inverse of `to_rows`."""
    if not _fills_words(packing, count):
        return None
    lanes = as_words(rows, packing.width)
    if lanes is None or (axis == -2 and not _square(packing, 0, lanes.ndim)):
        return None
    if axis == -1:
        return _reorder(packing, lanes, reading=False).view(packing.dtype)
    unit, columns = packing.unit, row_major(lanes.swapaxes(-1, -2))
    lines = _transpose_blocks([columns[..., slot::unit] for slot in _order(packing)], packing)
    out = np.empty((*columns.shape[:-2], unit * columns.shape[-2], columns.shape[-1] // unit), lanes.dtype)
    for slot, line in enumerate(lines):
        out[..., slot::unit, :] = line
    return out.swapaxes(-1, -2).view(packing.dtype)


def as_words(rows: Array, width: int) -> Array | None:
    """View rows in words of `width` bits; None if a row is not a whole number of words."""
    if rows.dtype.itemsize * 8 == width:
        return rows
    if rows.shape[-1] * rows.dtype.itemsize % (width // 8):
        return None
    return row_major(rows).view(f"<u{width // 8}")


def flip_sign_bits(rows: Array, bits: int) -> Array | None:
    """Flip the highest bit of every code; None if codes span rows."""
    if not rows.size:
        return rows
    width = rows.dtype.itemsize * 8
    unit = Packing(bits, f"u{width}", "lsb")
    run = unit.words(unit.unit)
    if rows.shape[-1] % run:
        return None
    high = sum(1 << bits - 1 + bits * slot for slot in range(unit.unit))
    pattern = np.frombuffer(high.to_bytes(run * width // 8, "little"), rows.dtype)
    if (pattern == pattern[0]).all():
        return rows ^ pattern[0]
    return rows ^ np.tile(pattern, rows.shape[-1] // run)


def _fills_words(packing: Packing, count: int) -> bool:
    """Return whether `count` codes fill words completely, as a stream or in a fixed order."""
    return packing.order not in ("padded", "planes") and count * packing.bits % packing.width == 0


def _square(packing: Packing, columns: int, rank: int) -> bool:
    """Return whether codes form square blocks that can be transposed."""
    return rank >= 2 and packing.width % packing.bits == 0 and columns % packing.unit == 0


def _order(packing: Packing) -> list[int]:
    """Return the code number at each position of a word, lowest first."""
    if packing.order == "lsb":
        return list(range(packing.unit))
    if packing.order == "msb":
        return list(range(packing.unit - 1, -1, -1))
    return [int(code) for code in packing.order]


def _reorder(packing: Packing, lanes: Array, *, reading: bool) -> Array:
    """Convert words between the packing's order and lsb order, with one shift per distance."""
    if packing.order == "lsb":
        return lanes
    one = (1 << packing.bits) - 1
    moves: dict[int, int] = {}
    for slot, code in enumerate(_order(packing)):
        source, target = (slot, code) if reading else (code, slot)
        moves[target - source] = moves.get(target - source, 0) | one << source * packing.bits
    out = np.zeros_like(lanes)
    for distance, mask in moves.items():
        moved, shift = lanes & lanes.dtype.type(mask), lanes.dtype.type(abs(distance) * packing.bits)
        out |= moved << shift if distance > 0 else moved >> shift
    return out


def _transpose_blocks(lines: list[Array], packing: Packing) -> list[Array]:
    """Transpose blocks of `unit` x `unit` codes, one word per line, by halves, quarters, ...

    Source: Warren, Hacker's Delight, 7-3.
    """
    lines, half = list(lines), packing.unit // 2
    kind = lines[0].dtype.type
    while half:
        shift = half * packing.bits
        field = (1 << shift) - 1
        low = kind(sum(field << start for start in range(0, packing.width, 2 * shift)))
        for first in range(packing.unit):
            if not first & half:
                one, other = lines[first], lines[first + half]
                swap = ((one >> kind(shift)) ^ other) & low
                lines[first], lines[first + half] = one ^ (swap << kind(shift)), other ^ swap
        half //= 2
    return lines
