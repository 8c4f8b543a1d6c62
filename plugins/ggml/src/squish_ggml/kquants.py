"""The 256-element GGML block types: float16 super-scales over packed scales of 16 or 32 elements."""

from __future__ import annotations

import numpy as np

from .panels import Bytes, Floats, Lanes, Scratch, half, spread

# One byte, repeated in the four bytes of a uint32 lane.
LOW_4, LOW_6, BITS_4_5 = np.uint32(0x0F0F0F0F), np.uint32(0x3F3F3F3F), np.uint32(0x30303030)
NIBBLES = np.array([[0], [4]], np.uint32)


def _scale_lanes(panel: Bytes, start: int) -> np.ndarray:
    """Read 12 bytes of packed scales as uint32 (3, panel)."""
    return np.ascontiguousarray(panel[:, start : start + 12].view(np.uint32).T)


def scales_and_minima(panel: Bytes, scratch: Scratch) -> tuple[Floats, Floats]:
    """Unpack the 8 + 8 six-bit factors at byte 4, multiplied by d and dmin, each (panel, 8, 1)."""
    lanes = _scale_lanes(panel, 4)
    packed = scratch("factors", 2, len(panel), 2, dtype=np.uint32)
    np.bitwise_and(lanes[:2], LOW_6, out=packed[..., 0])
    upper = (lanes[:2] >> np.uint32(2)) & BITS_4_5
    np.bitwise_or(upper, (lanes[2] >> NIBBLES) & LOW_4, out=packed[..., 1])
    factors = packed.view(np.uint8).astype(np.float32)
    factors *= panel[:, :4].view("<f2").T[..., None].astype(np.float32)
    return factors[0][..., None], factors[1][..., None]


def _signed_scales(panel: Bytes, start: int, scratch: Scratch) -> Floats:
    """Unpack the 16 six-bit scales of Q3_K and subtract 32, (panel, 16)."""
    lanes = _scale_lanes(panel, start)
    low = (lanes[None, :2] >> NIBBLES[..., None]) & LOW_4
    high = (lanes[2] << np.uint32(4), lanes[2] << np.uint32(2), lanes[2], lanes[2] >> np.uint32(2))
    packed = scratch("scales", len(panel), 4, dtype=np.uint32)
    for index, lane in enumerate(high):
        np.bitwise_or(low[index // 2, index % 2], lane & BITS_4_5, out=packed[:, index])
    signed = packed.view(np.int8)
    signed -= np.int8(32)
    return signed.astype(np.float32)


def _affine(out: Floats, quants: np.ndarray, scales: Floats, minima: Floats | None = None) -> None:
    """Write scale * quant - minimum; scales and minima are (panel, groups, 1)."""
    out[:] = quants.reshape(out.shape)
    groups = out.reshape(len(out), scales.shape[1], -1)
    groups *= scales
    if minima is not None:
        groups -= minima


def decode_q2_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 scales[16], qs[64]; f16 d, dmin}: d * (scale & 15) * q - dmin * (scale >> 4)."""
    _affine(out, q2_k_quants(panel, scratch).view(np.uint8), *q2_k_scales_and_minima(panel))


def q2_k_quants(panel: Bytes, scratch: Scratch) -> Lanes:
    """Unpack the codes of Q2_K in order, one byte each."""
    return spread(panel[:, 16:80], 32, (0, 2, 4, 6), 0x03, scratch)


def q2_k_scales_and_minima(panel: Bytes) -> tuple[Floats, Floats]:
    """Unpack the 16 + 16 four-bit factors of Q2_K, multiplied by d and dmin, each (panel, 16, 1)."""
    packed = panel[:, :16]
    scales, minima = (packed & np.uint8(0x0F)).astype(np.float32), (packed >> np.uint8(4)).astype(np.float32)
    scales *= half(panel, 80)
    minima *= half(panel, 82)
    return scales[..., None], minima[..., None]


def decode_q3_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 hmask[32], qs[64], scales[12]; f16 d}: d * scale * (q - 4), with q's third bit in hmask."""
    _affine(out, q3_k_quants(panel, scratch), q3_k_scales(panel, scratch)[..., None])


def q3_k_quants(panel: Bytes, scratch: Scratch) -> np.ndarray:
    """Unpack the codes of Q3_K in order, one signed byte each."""
    quants = spread(panel[:, :32], 32, (0, 1, 2, 3, 4, 5, 6, 7), 0x01, scratch)
    quants <<= np.uint64(2)
    quants |= spread(panel[:, 32:96], 32, (0, 2, 4, 6), 0x03, scratch)
    signed = quants.view(np.int8)
    signed -= np.int8(4)
    return signed


def q3_k_scales(panel: Bytes, scratch: Scratch) -> Floats:
    """Scales of Q3_K in f32, sixteen for a block."""
    scales = _signed_scales(panel, 96, scratch)
    scales *= half(panel, 108)
    return scales


def decode_q4_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, dmin; u8 scales[12], qs[128]}: d * scale * q - dmin * minimum."""
    _affine(out, q4_k_quants(panel, scratch).view(np.uint8), *scales_and_minima(panel, scratch))


def q4_k_quants(panel: Bytes, scratch: Scratch) -> Lanes:
    """Unpack the codes of Q4_K in order, one byte each."""
    return spread(panel[:, 16:144], 32, (0, 4), 0x0F, scratch)


def decode_q5_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d, dmin; u8 scales[12], qh[32], qs[128]}: d * scale * q - dmin * minimum."""
    _affine(out, q5_k_quants(panel, scratch).view(np.uint8), *scales_and_minima(panel, scratch))


def q5_k_quants(panel: Bytes, scratch: Scratch) -> Lanes:
    """Unpack the codes of Q5_K in order, one byte each."""
    quants = spread(panel[:, 16:48], 32, (0, 1, 2, 3, 4, 5, 6, 7), 0x01, scratch)
    quants <<= np.uint64(4)
    quants |= spread(panel[:, 48:176], 32, (0, 4), 0x0F, scratch)
    return quants


def decode_q6_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 ql[128], qh[64]; i8 scales[16]; f16 d}: d * scale * (q - 32)."""
    _affine(out, q6_k_quants(panel, scratch), q6_k_scales(panel)[..., None])


def q6_k_quants(panel: Bytes, scratch: Scratch) -> np.ndarray:
    """Unpack the codes of Q6_K in order, one signed byte each."""
    quants = spread(panel[:, 128:192], 32, (0, 2, 4, 6), 0x03, scratch)
    quants <<= np.uint64(4)
    quants |= spread(panel[:, :128], 64, (0, 4), 0x0F, scratch)
    signed = quants.view(np.int8)
    signed -= np.int8(32)
    return signed


def q6_k_scales(panel: Bytes) -> Floats:
    """Scales of Q6_K in f32, sixteen for a block."""
    scales = panel[:, 192:208].view(np.int8).astype(np.float32)
    scales *= half(panel, 208)
    return scales


def decode_q8_k(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f32 d; i8 qs[256]; i16 bsums[16]}: d * q; the sums are for dot products only."""
    out[:] = panel[:, 4:260].view(np.int8)
    out *= panel[:, :4].view("<f4")
