"""The 32-element GGML block types: one or two float16 parameters, then packed integers."""

from __future__ import annotations

import numpy as np

from .panels import Bytes, Floats, Scratch, half, spread

# Entry b expands the eight bits of b, lowest first, to one byte each, which completes a nibble to q (bit 4)
# or, in the signed table, to q - 16 (-16 if the bit is clear).
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
FIFTH_BIT = (_BITS << 4).view(np.uint64).ravel()
FIFTH_BIT_SIGNED = ((1 - _BITS) * np.uint8(0xF0)).view(np.uint64).ravel()


def nibbles(panel: Bytes, start: int, scratch: Scratch) -> Bytes:
    """Read 16 bytes as 32 nibbles, low nibbles first."""
    lanes = spread(panel[:, start : start + 16], 16, (0, 4), 0x0F, scratch)
    return lanes.view(np.uint8).reshape(-1, 32)


def _five_bits(panel: Bytes, start: int, table: np.ndarray, scratch: Scratch) -> Bytes:
    """Read 4 bytes of fifth bits, then 16 bytes of nibbles."""
    quants = nibbles(panel, start + 4, scratch)
    index = scratch("index", len(panel), 4, dtype=np.intp)
    index[:] = panel[:, start : start + 4]
    high = scratch("high", len(panel), 4, dtype=np.uint64)
    np.take(table, index, out=high, mode="clip")  # "clip" lets take() write to `out` unbuffered
    lanes = quants.view(np.uint64)
    np.bitwise_or(lanes, high, out=lanes)
    return quants


def decode_q4_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qs[16]}: d * (q - 8)."""
    quants = nibbles(panel, 2, scratch).view(np.int8)
    quants -= np.int8(8)
    out[:] = quants
    out *= half(panel, 0)


def decode_q4_1(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, m; u8 qs[16]}: d * q + m."""
    out[:] = nibbles(panel, 4, scratch)
    out *= half(panel, 0)
    out += half(panel, 2)


def decode_q5_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qh[4], qs[16]}: d * (q - 16)."""
    out[:] = _five_bits(panel, 2, FIFTH_BIT_SIGNED, scratch).view(np.int8)
    out *= half(panel, 0)


def decode_q5_1(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, m; u8 qh[4], qs[16]}: d * q + m."""
    out[:] = _five_bits(panel, 4, FIFTH_BIT, scratch)
    out *= half(panel, 0)
    out += half(panel, 2)


def decode_q8_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; i8 qs[32]}: d * q."""
    out[:] = panel[:, 2:].view(np.int8)
    out *= half(panel, 0)


def decode_q8_1(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, s; i8 qs[32]}: d * q; s is d times the sum of the quants, for dot products only."""
    out[:] = panel[:, 4:].view(np.int8)
    out *= half(panel, 0)
