"""Unpack codes of 1 to 8 bits from packed words, for every packing of squish-codecs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from squish_codecs.api import Packing
from torch import Tensor

from .stored import constant

BitPositions = tuple[int, tuple[tuple[int, ...], ...]]


@lru_cache
def bit_positions(packing: Packing) -> BitPositions:
    """Return the bytes of the shortest run of whole codes, and for each code the positions of its bits in the run.

    The positions are found by packing codes with a single bit set.
    """
    unit, bits = packing.unit, packing.bits
    codes = np.zeros((bits, unit, unit), np.uint8)
    codes[:, np.arange(unit), np.arange(unit)] = 1 << np.arange(bits)[:, None]
    run = np.ascontiguousarray(packing.pack(codes)).view(np.uint8)
    positions = np.unpackbits(run, axis=-1, bitorder="little").argmax(-1)
    return run.shape[-1], tuple(map(tuple, positions.tolist()))


def unpack(data: Tensor, packing: Packing, count: int) -> Tensor:
    """Return the first `count` codes (uint8) of each line of bytes [..., bytes]."""
    if packing.bits == packing.width == 8 and packing.order == "lsb":
        return data[..., :count]
    size, positions = bit_positions(packing)
    padding = -data.shape[-1] % size
    if padding:
        data = torch.nn.functional.pad(data, (0, padding))
    runs = data.reshape(*data.shape[:-1], -1, size)
    position = constant(positions, torch.int64, data.device)
    byte, shift = position // 8, (position % 8).to(torch.uint8)
    if all(_is_field(starts) for starts in zip(*positions)):
        codes = (runs[..., byte[0]] >> shift[0]) & ((1 << packing.bits) - 1)
    else:
        codes = torch.zeros((), dtype=torch.uint8, device=data.device)
        for bit in range(packing.bits):
            codes = codes | (((runs[..., byte[bit]] >> shift[bit]) & 1) << bit)
    return codes.reshape(*data.shape[:-1], -1)[..., :count]


def _is_field(positions: tuple[int, ...]) -> bool:
    """Return whether the bits of a code are adjacent in one byte, lowest first."""
    first = positions[0]
    return first % 8 + len(positions) <= 8 and positions == tuple(range(first, first + len(positions)))


def signed(codes: Tensor, bits: int) -> Tensor:
    """Return codes in two's complement as f32."""
    half = 1 << (bits - 1)
    return (codes ^ half).float() - half
