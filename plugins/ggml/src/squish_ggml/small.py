"""Sign, ternary and 4-bit codebook blocks: Q1_0, Q2_0, TQ*, MXFP4, NVFP4, IQ4_*."""

from __future__ import annotations

import numpy as np

from .encoders import round_half_away, store_half
from .legacy import nibbles
from .panels import Bytes, Floats, Scratch, half

# Float4 values times two are integers; the scales are halved to match.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
E2M1_TABLE, IQ4_TABLE = (np.resize(values, 256).tobytes() for values in (E2M1, IQ4))
TRITS = np.array([1, 3, 9, 27, 81], np.uint8)


def _halved_powers() -> Floats:
    """Return 2**(code - 128) for each byte; 0 and 1 are subnormal."""
    codes = np.arange(256, dtype=np.uint32)
    bits = np.where(codes < 2, np.uint32(0x200000) << (codes & 1), (np.maximum(codes, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def _halved_e4m3() -> Floats:
    """Return half the unsigned e4m3 value of each byte; 0x7F is 0."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-10, (1 + mantissa / 8) * 2.0 ** (exponent - 8))
    return np.where((codes == 0) | (codes == 0x7F), 0, values).astype(np.float32)


POWERS, E4M3 = _halved_powers(), _halved_e4m3()


def decode_q1_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qs[16]}: d if the bit is set, else -d."""
    signs = np.unpackbits(panel[:, 2:], axis=1, bitorder="little").view(np.int8)
    signs *= np.int8(2)
    signs -= np.int8(1)
    out[:] = signs
    out *= half(panel, 0)


def encode_q1_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """Store the mean magnitude and the signs; both zeros are positive."""
    # Sequential like ggml; sum() adds pairwise.
    total: Floats = np.add.accumulate(np.abs(values), axis=1)[:, -1:]
    store_half(panel, 0, total / np.float32(128))
    panel[:, 2:] = np.packbits(values >= 0, axis=1, bitorder="little")


def decode_q2_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qs[16]}: four consecutive 2-bit codes per byte, lowest first: d * (code - 1)."""
    codes = scratch("codes", len(panel), 16, 4)
    np.right_shift(panel[:, 2:, None], np.array([0, 2, 4, 6], np.uint8), out=codes)
    codes &= np.uint8(3)
    _write_ternary(codes.reshape(len(panel), 64), half(panel, 0), out)


def encode_q2_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """Encode so that the largest magnitude maps to 1; the code for 2 is not used."""
    digits, step = _ternary(values, scratch)
    fields = digits.reshape(-1, 16, 4) << np.array([0, 2, 4, 6], np.uint8)
    panel[:, 2:] = np.bitwise_or.reduce(fields, axis=2)
    store_half(panel, 0, step)


def decode_tq1_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 qs[48], qh[4]; f16 d}: five base-3 digits per byte, four in `qh`: d * (digit - 1)."""
    digits = scratch("digits", len(panel), 256)
    at = 0
    for start, width, count in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        rows = panel[:, None, start : start + width] * TRITS[:count, None]
        digits[:, at : at + width * count] = ((rows.astype(np.uint16) * np.uint16(3)) >> 8).reshape(len(panel), -1)
        at += width * count
    _write_ternary(digits, half(panel, 52), out)


def encode_tq1_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """Encode with the largest magnitude as 1; a byte stores base-3 digits as a fraction of 243, rounded up."""
    digits, step = _ternary(values, scratch)
    at = 0
    for start, width, count in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        rows = digits[:, at : at + width * count].reshape(-1, count, width)
        number = (rows * TRITS[:5][::-1][:count, None]).sum(axis=1, dtype=np.uint8)
        panel[:, start : start + width] = (number.astype(np.uint16) * 256 + 242) // 243
        at += width * count
    store_half(panel, 52, step)


def decode_tq2_0(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 qs[64]; f16 d}: four 2-bit codes per byte, 32 elements apart: d * (code - 1)."""
    codes = scratch("codes", len(panel), 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    np.right_shift(panel[:, :64].reshape(-1, 2, 1, 32), shifts, out=codes)
    codes &= np.uint8(3)
    _write_ternary(codes.reshape(len(panel), 256), half(panel, 64), out)


def encode_tq2_0(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """Encode so that the largest magnitude maps to 1."""
    digits, step = _ternary(values, scratch)
    fields = digits.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    panel[:, :64] = np.bitwise_or.reduce(fields, axis=2).reshape(-1, 64)
    store_half(panel, 64, step)


def decode_mxfp4(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 e; u8 qs[16]}: e2m1(code) * 2**(e - 127)."""
    out[:] = _lookup(nibbles(panel, 1, scratch), E2M1_TABLE)
    out *= POWERS[panel[:, :1]]


def encode_mxfp4(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """Encode. Scale: the exponent of the largest magnitude minus two. Codes: the nearest value, the first on ties."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    exponent = np.where(largest > 0, np.floor(np.log2(largest)) - 2 + 127, 0).astype(np.uint8)
    codes = _nearest_e2m1(values, POWERS[exponent])
    panel[:, :1] = exponent
    panel[:, 1:] = codes[:, :16] | codes[:, 16:] << 4


def decode_nvfp4(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{u8 d[4], qs[32]}: e2m1(code) * e4m3(d) per 16 elements."""
    packed = panel[:, 4:].reshape(-1, 4, 1, 8)
    codes = scratch("codes", len(panel), 4, 2, 8)
    np.right_shift(packed, np.array([0, 4], np.uint8)[:, None], out=codes)
    codes &= np.uint8(15)
    blocks = out.reshape(-1, 4, 16)
    blocks[:] = _lookup(codes.reshape(-1, 4, 16), E2M1_TABLE)
    blocks *= E4M3[panel[:, :4]][..., None]


def encode_nvfp4(panel: Bytes, values: Floats, scratch: Scratch) -> None:
    """Encode so that the largest magnitude of 16 elements maps to 6, within the range of e4m3; then like MXFP4."""
    groups = values.reshape(-1, 16)
    # fmax ignores NaN.
    largest: Floats = np.fmax.reduce(np.abs(groups), axis=1, keepdims=True)
    scale = _to_e4m3(largest / np.float32(6))
    codes = _nearest_e2m1(groups, E4M3[scale])
    panel[:, :4] = scale.reshape(-1, 4)
    panel[:, 4:] = (codes[:, :8] | codes[:, 8:] << 4).reshape(-1, 32)


def decode_iq4_nl(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; u8 qs[16]}: d * table[code]."""
    out[:] = _lookup(nibbles(panel, 2, scratch), IQ4_TABLE)
    out *= half(panel, 0)


def decode_iq4_xs(panel: Bytes, out: Floats, scratch: Scratch) -> None:
    """{f16 d; u16 scales_h; u8 scales_l[4], qs[128]}: d * (scale - 32) * table[code] per 32 elements."""
    group = np.arange(8)
    low = panel[:, 4:8][:, group // 2] >> (4 * (group % 2)).astype(np.uint8) & 15
    high = panel[:, 2:4][:, group // 4] >> (2 * (group % 4)).astype(np.uint8) & 3
    scale = half(panel, 0) * ((low | high << 4).astype(np.float32) - 32)
    codes = scratch("codes", len(panel), 8, 2, 16)
    np.right_shift(panel[:, 8:].reshape(-1, 8, 1, 16), np.array([0, 4], np.uint8)[:, None], out=codes)
    codes &= np.uint8(15)
    blocks = out.reshape(-1, 8, 32)
    blocks[:] = _lookup(codes.reshape(-1, 8, 32), IQ4_TABLE)
    blocks *= scale[..., None]


def _lookup(codes: Bytes, table: bytes) -> np.ndarray:
    """Map bytes through a table of 256 signed bytes; indexing would widen each code to a pointer."""
    return np.frombuffer(codes.tobytes().translate(table), np.int8).reshape(codes.shape)


def _nearest_e2m1(values: Floats, halves: Floats) -> Bytes:
    """Return the code of the nearest value, the first on ties; `halves` is a column of half the scales."""
    best, codes = np.abs(halves * np.float32(0) - values), np.zeros(values.shape, np.uint8)
    for code, value in enumerate(E2M1):
        error = np.abs(halves * np.float32(value) - values)
        nearer = error < best
        codes[nearer] = code
        np.copyto(best, error, where=nearer)
    return codes


def _to_e4m3(values: Floats) -> Bytes:
    """Convert positive values to e4m3, rounding half up, from 256 to 448 as in ggml; all other values become 0."""
    positive = np.where(values > 0, np.minimum(values, np.float32(448)), np.float32(0))
    tiny = np.minimum(positive * np.float32(512) + np.float32(0.5), 7)
    normal = ((positive.view(np.uint32) >> 19) + 1 >> 1) - (120 << 3)  # exponent bias: 127 becomes 7
    codes = np.where(positive < 2**-6, tiny, np.where(normal < 0x78, normal, 0x7E))
    return codes.astype(np.uint8)


def _write_ternary(digits: Bytes, scale: Floats, out: Floats) -> None:
    digits -= np.uint8(1)
    out[:] = digits.view(np.int8)
    out *= scale


def _ternary(values: Floats, scratch: Scratch) -> tuple[Bytes, Floats]:
    """Return codes 0, 1, 2 for -1, 0, 1 steps, and the step."""
    step = np.abs(values).max(axis=1, keepdims=True)
    levels = scratch("levels", *values.shape, dtype=np.float32)
    np.multiply(values, np.where(step == 0, np.float32(0), np.float32(1) / step), out=levels)
    round_half_away(levels, scratch)
    digits = scratch("digits", *values.shape)
    np.copyto(digits.view(np.int8), levels, casting="unsafe")
    digits += np.uint8(1)
    return digits, step
