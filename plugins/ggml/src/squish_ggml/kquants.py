"""The 256-element GGML block types: float16 parameters over packed scales of 16 or 32 elements."""

from __future__ import annotations

import numpy as np

from .panels import Bytes, Floats, Scratch, gather, half, spread

# The same byte in each of the four bytes of a uint32 lane.
LOW_4, LOW_6, BITS_4_5 = np.uint32(0x0F0F0F0F), np.uint32(0x3F3F3F3F), np.uint32(0x30303030)
TWO, FOUR = np.uint32(2), np.uint32(4)


def _lanes(panel: Bytes, start: int, scratch: Scratch) -> list[np.ndarray]:
    """Read 12 bytes of packed scales as three uint32 a block; each byte is used by itself."""
    lanes = gather(panel, start, start + 12, scratch, "lanes").view(np.uint32)
    return [lanes[:, index] for index in range(3)]


def _scales_and_minima(panel: Bytes, scratch: Scratch) -> tuple[Floats, Floats]:
    """Unpack the 8 + 8 six-bit factors at byte 4, multiplied with d and dmin, each (panel, 8, 1)."""
    scale, minimum, high = _lanes(panel, 4, scratch)
    factors = scratch("factors", 2, len(panel), 2, dtype=np.uint32)
    factors[0, :, 0] = scale & LOW_6
    factors[0, :, 1] = (high & LOW_4) | ((scale >> TWO) & BITS_4_5)
    factors[1, :, 0] = minimum & LOW_6
    factors[1, :, 1] = ((high >> FOUR) & LOW_4) | ((minimum >> TWO) & BITS_4_5)
    scales, minima = factors.view(np.uint8)
    return (half(panel, 0) * scales)[..., None], (half(panel, 2) * minima)[..., None]


def _signed_scales(panel: Bytes, start: int, scratch: Scratch) -> np.ndarray:
    """Unpack the 16 six-bit scales of Q3_K, minus 32, int8 (panel, 16)."""
    first, second, high = _lanes(panel, start, scratch)
    packed = scratch("scales", len(panel), 4, dtype=np.uint32)
    packed[:, 0] = (first & LOW_4) | ((high << FOUR) & BITS_4_5)
    packed[:, 1] = (second & LOW_4) | ((high << TWO) & BITS_4_5)
    packed[:, 2] = ((first >> FOUR) & LOW_4) | (high & BITS_4_5)
    packed[:, 3] = ((second >> FOUR) & LOW_4) | ((high >> TWO) & BITS_4_5)
    return packed.view(np.int8) - np.int8(32)


def _fields(
    panel: Bytes, span: tuple[int, int], width: int, shifts: tuple[int, ...], mask: int, scratch: Scratch, name: str
) -> np.ndarray:
    """Split the bytes of a span, `width` at a time, into 256 bit fields, flat uint64 lanes over the panel."""
    packed = gather(panel, *span, scratch, name + " packed").reshape(-1, width)
    return spread(packed, shifts, mask, scratch, name).reshape(-1).view(np.uint64)


def _affine(out: Floats, quants: np.ndarray, scales: Floats, minima: Floats | None = None) -> None:
    """Write scale * quant - minimum, the parameters (panel, groups, 1)."""
    out[:] = quants.reshape(out.shape)
    groups = out.reshape(len(out), scales.shape[1], -1)
    groups *= scales
    if minima is not None:
        groups -= minima


def decode_q2_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 scales[16], qs[64]; f16 d, dmin}: d * (scale & 15) * q - dmin * (scale >> 4)."""
    quants = _fields(panel, (16, 80), 32, (0, 2, 4, 6), 0x03, scratch, "quants")
    packed = panel[:, :16]
    scales, minima = half(panel, 80) * (packed & 0x0F), half(panel, 82) * (packed >> 4)
    _affine(out, quants.view(np.uint8), scales[..., None], minima[..., None])


def decode_q3_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 hmask[32], qs[64], scales[12]; f16 d}: d * scale * (q - 4), with q's third bit in hmask."""
    quants = _fields(panel, (32, 96), 32, (0, 2, 4, 6), 0x03, scratch, "quants")
    quants |= _fields(panel, (0, 32), 32, (-2, -1, 0, 1, 2, 3, 4, 5), 0x04, scratch, "high")
    signed = quants.view(np.int8)
    signed -= np.int8(4)
    _affine(out, signed, (half(panel, 108) * _signed_scales(panel, 96, scratch))[..., None])


def decode_q4_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, dmin; u8 scales[12], qs[128]}: d * scale * q - dmin * minimum."""
    quants = _fields(panel, (16, 144), 32, (0, 4), 0x0F, scratch, "quants")
    _affine(out, quants.view(np.uint8), *_scales_and_minima(panel, scratch))


def decode_q5_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, dmin; u8 scales[12], qh[32], qs[128]}: d * scale * q - dmin * minimum."""
    quants = _fields(panel, (48, 176), 32, (0, 4), 0x0F, scratch, "quants")
    quants |= _fields(panel, (16, 48), 32, (-4, -3, -2, -1, 0, 1, 2, 3), 0x10, scratch, "high")
    _affine(out, quants.view(np.uint8), *_scales_and_minima(panel, scratch))


def decode_q6_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 ql[128], qh[64]; i8 scales[16]; f16 d}: d * scale * (q - 32)."""
    quants = _fields(panel, (0, 128), 64, (0, 4), 0x0F, scratch, "quants")
    quants |= _fields(panel, (128, 192), 32, (-4, -2, 0, 2), 0x30, scratch, "high")
    signed = quants.view(np.int8)
    signed -= np.int8(32)
    _affine(out, signed, (half(panel, 208) * panel[:, 192:208].view(np.int8))[..., None])


def decode_q8_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f32 d; i8 qs[256]; i16 bsums[16]}: d * q; the sums serve dot products only."""
    out[:] = panel[:, 4:260].view(np.int8)
    out *= panel[:, :4].view("<f4")
