"""Encoders of the simple GGML block types: round to nearest, bit-identical to ggml's reference."""

from __future__ import annotations

import numpy as np

from .panels import Bytes, Floats, Scratch


def _inverse(step: Floats) -> Floats:
    """Return 1 / step, or 0 for an all-zero block."""
    return np.where(step == 0, np.float32(0), np.float32(1) / step)


def store_half(panel: Bytes, at: int, values: Floats) -> None:
    panel[:, at : at + 2] = values.astype("<f2").view(np.uint8)


def _store_nibbles(panel: Bytes, start: int, levels: Floats, scratch: Scratch) -> None:
    """Clamp levels to 0..15; pack elements 0..15 in the low nibbles, 16..31 in the high ones."""
    quants = scratch("quants", *levels.shape)
    np.copyto(quants, levels, casting="unsafe")
    np.minimum(quants, np.uint8(15), out=quants)
    high = quants[:, 16:]
    np.left_shift(high, np.uint8(4), out=high)
    np.bitwise_or(quants[:, :16], high, out=panel[:, start : start + 16])


def _store_fives(panel: Bytes, start: int, levels: Floats, scratch: Scratch) -> None:
    """Clamp levels to 0..31; pack the fifth bits in 4 bytes, then the nibbles like `_store_nibbles`."""
    quants = scratch("quants", *levels.shape)
    np.copyto(quants, levels, casting="unsafe")
    np.minimum(quants, np.uint8(31), out=quants)
    panel[:, start : start + 4] = np.packbits(quants >> np.uint8(4), axis=1, bitorder="little")
    panel[:, start + 4 : start + 20] = (quants[:, :16] & np.uint8(15)) | quants[:, 16:] << np.uint8(4)


def round_half_away(levels: Floats, scratch: Scratch) -> None:
    """Round in place to the nearest integer, ties away from zero."""
    # trunc(x) + trunc(2 * fraction) is exact; trunc(x + 0.5) would round 0.49999997 up.
    integers = np.trunc(levels, out=scratch("integers", *levels.shape, dtype=np.float32))
    levels -= integers
    levels += levels
    np.trunc(levels, out=levels)
    levels += integers


def _around_zero(values: Floats, steps: int, scratch: Scratch) -> tuple[Floats, Floats]:
    """Return unclamped levels and the step; the value of largest magnitude (the first on ties) maps to -steps."""
    levels = np.abs(values, out=scratch("levels", *values.shape, dtype=np.float32))
    largest = np.take_along_axis(values, levels.argmax(axis=1)[:, None], axis=1)
    step = largest / np.float32(-steps)
    np.multiply(values, _inverse(step), out=levels)
    levels += np.float32(steps + 0.5)
    return levels, step


def _above_lowest(values: Floats, steps: int, scratch: Scratch) -> tuple[Floats, Floats, Floats]:
    """Return unclamped levels, the step and the minimum; the minimum maps to 0, the maximum to `steps`."""
    lowest = values.min(axis=1, keepdims=True)
    step = (values.max(axis=1, keepdims=True) - lowest) / np.float32(steps)
    levels = np.subtract(values, lowest, out=scratch("levels", *values.shape, dtype=np.float32))
    levels *= _inverse(step)
    levels += np.float32(0.5)
    return levels, step, lowest


def encode_q4_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qs[16]}."""
    levels, step = _around_zero(values, 8, scratch)
    store_half(panel, 0, step)
    _store_nibbles(panel, 2, levels, scratch)


def encode_q4_1(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """{f16 d, m; u8 qs[16]}."""
    levels, step, lowest = _above_lowest(values, 15, scratch)
    store_half(panel, 0, step)
    store_half(panel, 2, lowest)
    _store_nibbles(panel, 4, levels, scratch)


def encode_q5_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qh[4], qs[16]}."""
    levels, step = _around_zero(values, 16, scratch)
    store_half(panel, 0, step)
    _store_fives(panel, 2, levels, scratch)


def encode_q5_1(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """{f16 d, m; u8 qh[4], qs[16]}."""
    levels, step, lowest = _above_lowest(values, 31, scratch)
    store_half(panel, 0, step)
    store_half(panel, 2, lowest)
    _store_fives(panel, 4, levels, scratch)


def encode_q8_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """{f16 d; i8 qs[32]}: the largest magnitude maps to 127; ties round away from zero."""
    levels = np.abs(values, out=scratch("levels", *values.shape, dtype=np.float32))
    step = levels.max(axis=1, keepdims=True) / np.float32(127)
    np.multiply(values, _inverse(step), out=levels)
    round_half_away(levels, scratch)
    store_half(panel, 0, step)
    np.copyto(panel[:, 2:].view(np.int8), levels, casting="unsafe")
