"""Exact repacking of float4 codes: the same four bits and the same small scales in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from squish_core.api import Codes, dtypes

from ..packing.bits import row_major

HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([HALF, -HALF])
"""The value of each code of f4_e2m1."""


def float4_codes(scale: np.ndarray, group: int, pairs: Callable[[], np.ndarray]) -> Codes:
    """Codes of which `pairs` gives the bytes u8 [..., in / 2], the even one low; `scale` is for `group` of them."""
    *lead, count = scale.shape

    def unpack() -> np.ndarray:
        data = pairs()
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*lead, count * group)

    return Codes(
        bits=4, signed=False, shape=(*lead, count * group), group=(*(1 for _ in lead), group), scale=scale,
        table=VALUES, unpack=unpack, pack=pairs,
    )  # fmt: skip


def is_float4(codes: Codes, group: int, dtype: str) -> bool:
    """Whether these are float4 codes with scales of this dtype for so many."""
    return (
        codes.table is not None and np.array_equal(codes.table, VALUES) and codes.offset is None
        and codes.group == (*(1 for _ in codes.shape[1:]), group) and codes.scale.dtype == dtypes.to_numpy(dtype)
    )  # fmt: skip


def float4_pairs(codes: Codes) -> np.ndarray:
    """Their bytes u8 [..., in / 2], the even one low."""
    if codes.words is not None:
        return row_major(codes.words).view(np.uint8)
    return codes.values[..., 0::2] | codes.values[..., 1::2] << 4
