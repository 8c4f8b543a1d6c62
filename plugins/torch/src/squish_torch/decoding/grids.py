"""GGML's IQ1, IQ2 and IQ3 blocks: indices into grids of 8 or 4 numbers, which come from gguf-py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from squish_core.api import CodecSpec, TensorSpec

from .stored import constant, copied, half

DELTA = 0.125
"""Amount that IQ1 adds to the numbers of its grid, or subtracts."""
SIGNS = tuple(index | (index.bit_count() & 1) << 7 for index in range(128))
"""Seven stored signs and the eighth, which makes the number of negative ones even."""


def has_grids(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether gguf-py is installed."""
    return find_spec("gguf") is not None


@lru_cache(16)
def grid(name: str, device: torch.device) -> Tensor:
    """Return the grid of a block type, f32 [entries, numbers]."""
    from gguf import quants

    kind: Any = getattr(quants, name.upper())
    kind.init_grid()
    return copied(kind.grid.reshape(kind.grid_shape), device)


def bits_of(codes: Tensor, width: int) -> Tensor:
    """Return fields of `width` bits of bytes, lowest first: [..., bytes] to [..., fields], as i32."""
    shifts = torch.arange(0, 8, width, device=codes.device)
    return ((codes.int()[..., None] >> shifts) & ((1 << width) - 1)).flatten(-2)


def words(blocks: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Return bytes as 16-bit or 32-bit integers, as i32 (16-bit ones are unsigned)."""
    values = blocks[:, start:stop].contiguous().view(dtype).int()
    return values & 0xFFFF if dtype == torch.int16 else values


def signs_of(codes: Tensor) -> Tensor:
    """Return 1 or -1 for each bit of bytes [...]: [..., 8]."""
    return 1 - 2 * bits_of(codes[..., None], 1).float()


def bit_fields(codes: Tensor, shifts: Sequence[int], mask: int) -> Tensor:
    """Return fields of integers [...]: [..., fields]."""
    return (codes[..., None] >> constant(tuple(shifts), torch.int64, codes.device)) & mask


def signed_entries(step: Tensor, entries: Tensor, signs: Tensor) -> Tensor:
    """Return `step * entry * sign` by groups: step [blocks, groups]."""
    values = entries.reshape(*step.shape, -1)
    return (step[..., None] * values * signs.reshape(values.shape)).flatten(1)


def seven_signs(codes: Tensor) -> Tensor:
    """Return the eight signs of 7-bit indices."""
    return signs_of(constant(SIGNS, torch.int64, codes.device)[codes])


def iq2_xxs(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (0.5 + scale) / 4 * entry * sign`; scale and signs of 32 values share a word."""
    runs = blocks[:, 2:].reshape(-1, 8)
    word = words(runs, 4, 8, torch.int32).reshape(-1, 8)
    step = half(blocks, 0) * (0.5 + ((word >> 28) & 15)) * 0.25
    return signed_entries(step, table[runs[:, :4].int()], seven_signs(bit_fields(word, (0, 7, 14, 21), 127)))


def iq2_xs(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (0.5 + scale) / 4 * entry * sign`; a 9-bit index and its signs share a word."""
    word = words(blocks, 2, 66, torch.int16)
    step = half(blocks, 0) * (0.5 + bits_of(blocks[:, 66:], 4)) * 0.25
    return signed_entries(step, table[word & 511], seven_signs(word >> 9))


def iq2_s(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (0.5 + scale) / 4 * entry * sign`; indices have ten bits."""
    index = blocks[:, 2:34].int() | (bits_of(blocks[:, 66:74], 2) << 8)
    step = half(blocks, 0) * (0.5 + bits_of(blocks[:, 74:], 4)) * 0.25
    return signed_entries(step, table[index], signs_of(blocks[:, 34:66]))


def iq3_xxs(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (0.5 + scale) / 2 * entry * sign`; scale and signs of 32 values share a word."""
    word = words(blocks, 66, 98, torch.int32)
    step = half(blocks, 0) * (0.5 + ((word >> 28) & 15)) * 0.5
    return signed_entries(step, table[blocks[:, 2:66].int()], seven_signs(bit_fields(word, (0, 7, 14, 21), 127)))


def iq3_s(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (1 + 2 * scale) * entry * sign`; indices have nine bits."""
    index = blocks[:, 2:66].int() | (bits_of(blocks[:, 66:74], 1) << 8)
    step = half(blocks, 0) * (1 + 2 * bits_of(blocks[:, 106:], 4))
    return signed_entries(step, table[index], signs_of(blocks[:, 74:106]))


def iq1_s(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (2 * scale + 1) * (entry + delta)`; indices have eleven bits."""
    word = words(blocks, 34, 50, torch.int16)
    step = half(blocks, 0) * (2 * ((word >> 12) & 7) + 1)
    delta = torch.where(word & 0x8000 == 0, DELTA, -DELTA)
    index = blocks[:, 2:34].int() | (bit_fields(word, (0, 3, 6, 9), 7).flatten(1) << 8)
    entries = table[index].reshape(*step.shape, -1)
    return (step[..., None] * (entries + delta[..., None])).flatten(1)


def iq1_m(blocks: Tensor, table: Tensor) -> Tensor:
    """Return `d * (2 * scale + 1) * (entry + delta)`; d is in the highest bits of the scales."""
    word = words(blocks, 48, 56, torch.int16)
    shifts = constant((12, 8, 4, 0), torch.int64, blocks.device)
    raw = ((word & 0xF000) >> shifts).sum(1, keepdim=True).to(torch.int16)
    step = raw.view(torch.float16).float() * (2 * bit_fields(word, (0, 3, 6, 9), 7).flatten(1) + 1)
    high = bits_of(blocks[:, 32:48], 4)
    delta = torch.where(high & 8 == 0, DELTA, -DELTA)
    entries = table[blocks[:, :32].int() | ((high & 7) << 8)] + delta[..., None]
    return (step[..., None] * entries.reshape(*step.shape, -1)).flatten(1)


GRIDS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "iq1_m": iq1_m, "iq1_s": iq1_s, "iq2_s": iq2_s, "iq2_xs": iq2_xs, "iq2_xxs": iq2_xxs, "iq3_s": iq3_s,
    "iq3_xxs": iq3_xxs,
}  # fmt: skip
"""Block type -> its decoder, from blocks and the grid."""
