"""GGML's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from squish_core.api import BLOCK_TYPES

from .grids import GRIDS, grid
from .stored import Stored, constant, half

Blocks = Callable[[Tensor], Tensor]


def fields(data: Tensor, width: int, shifts: Sequence[int], mask: int) -> Tensor:
    """Return bit fields of runs of `width` bytes: all bytes at the first shift, then at the next: [blocks, values]."""
    runs = data.reshape(len(data), -1, 1, width)
    shift = constant(tuple(shifts), torch.uint8, data.device).reshape(1, 1, -1, 1)
    return ((runs >> shift) & mask).reshape(len(data), -1)


def fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """Return codes [blocks, 32] from four bytes of fifth bits, followed by nibbles."""
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    high = ((blocks[:, start : start + 4, None] >> shifts) & 1).reshape(len(blocks), 32)
    return fields(blocks[:, start + 4 : start + 20], 16, (0, 4), 15) | (high << 4)


def q4_0(blocks: Tensor) -> Tensor:
    """Return `d * (q - 8)`."""
    return (fields(blocks[:, 2:], 16, (0, 4), 15).float() - 8) * half(blocks, 0)


def q4_1(blocks: Tensor) -> Tensor:
    """Return `d * q + m`."""
    return fields(blocks[:, 4:], 16, (0, 4), 15).float() * half(blocks, 0) + half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    """Return `d * (q - 16)`."""
    return (fifth_bits(blocks, 2).float() - 16) * half(blocks, 0)


def q5_1(blocks: Tensor) -> Tensor:
    """Return `d * q + m`."""
    return fifth_bits(blocks, 4).float() * half(blocks, 0) + half(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    """Return `d * q`."""
    return blocks[:, 2:].contiguous().view(torch.int8).float() * half(blocks, 0)


def scaled(codes: Tensor, scales: Tensor, minima: Tensor | None = None) -> Tensor:
    """Return `scale * q - minimum`, by groups."""
    values = codes.reshape(*scales.shape, -1).float() * scales[..., None]
    return (values if minima is None else values - minima[..., None]).reshape(len(codes), -1)


def six_bits(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales and minima of Q4_K and Q5_K: 12 bytes from byte 4 on, times d and dmin."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), 1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), 1)
    return scales.float() * half(blocks, 0), minima.float() * half(blocks, 2)


def q2_k(blocks: Tensor) -> Tensor:
    """Return `d * scale * q - dmin * minimum`."""
    packed = blocks[:, :16]
    scales, minima = (packed & 15).float() * half(blocks, 80), (packed >> 4).float() * half(blocks, 82)
    return scaled(fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 3), scales, minima)


def q3_k(blocks: Tensor) -> Tensor:
    """Return `d * scale * (q - 4)`."""
    high = fields(blocks[:, :32], 32, range(8), 1)
    codes = fields(blocks[:, 32:96], 32, (0, 2, 4, 6), 3) | (high << 2)
    low, top = blocks[:, 96:104], blocks[:, 104:108]
    parts = [((low[:, 4 * (n % 2) : 4 * (n % 2) + 4] >> (4 * (n // 2))) & 15) for n in range(4)]
    packed = [part | (((top >> (2 * n)) & 3) << 4) for n, part in enumerate(parts)]
    return scaled(codes.float() - 4, (torch.cat(packed, 1).float() - 32) * half(blocks, 108))


def q4_k(blocks: Tensor) -> Tensor:
    """Return `d * scale * q - dmin * minimum`."""
    return scaled(fields(blocks[:, 16:], 32, (0, 4), 15), *six_bits(blocks))


def q5_k(blocks: Tensor) -> Tensor:
    """Return `d * scale * q - dmin * minimum`."""
    codes = fields(blocks[:, 48:], 32, (0, 4), 15) | (fields(blocks[:, 16:48], 32, range(8), 1) << 4)
    return scaled(codes, *six_bits(blocks))


def q6_k(blocks: Tensor) -> Tensor:
    """Return `d * scale * (q - 32)`."""
    codes = fields(blocks[:, :128], 64, (0, 4), 15) | (fields(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * half(blocks, 208)
    return scaled(codes.float() - 32, scales)


def q8_1(blocks: Tensor) -> Tensor:
    """Return `d * q`."""
    return blocks[:, 4:].contiguous().view(torch.int8).float() * half(blocks, 0)


def q8_k(blocks: Tensor) -> Tensor:
    """Return `d * q`, d in f32."""
    step = blocks[:, :4].contiguous().view(torch.float32)
    return blocks[:, 4:260].contiguous().view(torch.int8).float() * step


def q1_0(blocks: Tensor) -> Tensor:
    """Return `d` or `-d`."""
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    bits = ((blocks[:, 2:, None] >> shifts) & 1).reshape(len(blocks), -1)
    return (bits.float() * 2 - 1) * half(blocks, 0)


def q2_0(blocks: Tensor) -> Tensor:
    """Return `d * (q - 1)`, with four neighboring codes in a byte."""
    return (fields(blocks[:, 2:], 1, (0, 2, 4, 6), 3).float() - 1) * half(blocks, 0)


def tq1_0(blocks: Tensor) -> Tensor:
    """Return `d * (digit - 1)`: a byte holds five base-3 digits as a fraction, the last bytes four."""
    digits = []
    for start, width, count in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        powers = constant((1, 3, 9, 27, 81)[:count], torch.uint8, blocks.device)
        rows = blocks[:, None, start : start + width] * powers[:, None]
        digits.append(((rows.int() * 3) >> 8).reshape(len(blocks), -1))
    return (torch.cat(digits, 1).float() - 1) * half(blocks, 52)


def tq2_0(blocks: Tensor) -> Tensor:
    """Return `d * (q - 1)`."""
    return (fields(blocks[:, :64], 32, (0, 2, 4, 6), 3).float() - 1) * half(blocks, 64)


E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values of f4_e2m1, doubled; the scales are halved to match."""
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def entries(codes: Tensor, table: Sequence[float]) -> Tensor:
    """Return the table's number for each code."""
    return constant(tuple(table), torch.float32, codes.device)[codes.int()]


def mxfp4(blocks: Tensor) -> Tensor:
    """Return `2^(e - 127) * f4`."""
    exponent = blocks[:, :1].int()  # the bits of a float: the exponent less one, subnormal below 2
    bits = torch.where(exponent < 2, 0x200000 << (exponent & 1), (exponent - 1) << 23)
    return entries(fields(blocks[:, 1:], 16, (0, 4), 15), E2M1) * bits.view(torch.float32)


HALF_E4M3 = tuple(
    0.0 if code == 127 else code % 8 / 1024 if code & 120 == 0 else (8 + code % 8) * 2.0 ** ((code >> 3 & 15) - 11)
    for code in range(256)
)
"""Half the scale that each byte of NVFP4 stands for: e4m3 without its sign, 0 for 0x7F."""


def nvfp4(blocks: Tensor) -> Tensor:
    """Return `e4m3 * f4` for each 16 values."""
    codes = entries(fields(blocks[:, 4:], 8, (0, 4), 15), E2M1)
    return scaled(codes, entries(blocks[:, :4], HALF_E4M3))


def iq4_nl(blocks: Tensor) -> Tensor:
    """Return `d * table[q]`."""
    return entries(fields(blocks[:, 2:], 16, (0, 4), 15), IQ4) * half(blocks, 0)


def iq4_xs(blocks: Tensor) -> Tensor:
    """Return `d * (scale - 32) * table[q]`."""
    group = torch.arange(8, device=blocks.device)
    low = (blocks[:, 4:8][:, group // 2] >> (4 * (group % 2)).to(torch.uint8)) & 15
    high = (blocks[:, 2:4][:, group // 4] >> (2 * (group % 4)).to(torch.uint8)) & 3
    scale = half(blocks, 0) * ((low | (high << 4)).float() - 32)
    return scaled(entries(fields(blocks[:, 8:], 16, (0, 4), 15), IQ4), scale)


BLOCKS: Mapping[str, Blocks] = {
    "q4_0": q4_0, "q4_1": q4_1, "q5_0": q5_0, "q5_1": q5_1, "q8_0": q8_0, "q8_1": q8_1, "q2_k": q2_k, "q3_k": q3_k,
    "q4_k": q4_k, "q5_k": q5_k, "q6_k": q6_k, "q8_k": q8_k, "q1_0": q1_0, "q2_0": q2_0, "tq1_0": tq1_0,
    "tq2_0": tq2_0, "mxfp4": mxfp4, "nvfp4": nvfp4, "iq4_nl": iq4_nl, "iq4_xs": iq4_xs,
}  # fmt: skip
"""Block type -> its decoder."""


def decode(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of blocks."""
    name = stored.codec.id.removeprefix("ggml.")
    _, _, _, nbytes = BLOCK_TYPES[name]
    blocks = stored.row_bytes("data", start, stop).reshape(-1, nbytes)
    values = GRIDS[name](blocks, grid(name, blocks.device)) if name in GRIDS else BLOCKS[name](blocks)
    return values.reshape(stop - start, stored.columns)
