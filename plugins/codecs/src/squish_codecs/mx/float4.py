"""Exact repacking of float4 codes: the same four bits and the same small scales in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from squish_core.api import CodeLayout, Codes, Params, dtypes

from ..packing.bits import row_major

HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([HALF, -HALF])
"""The value of each code of f4_e2m1."""
TABLE = tuple(VALUES.tolist())


def float4_layout(rank: int, group: int, scale_dtype: str) -> CodeLayout:
    """Float4 codes with a scale of this dtype for each `group` along rows."""
    return CodeLayout(bits=4, group=(*(1 for _ in range(rank - 1)), group), scale_dtype=scale_dtype, table=TABLE)


def float4_params(layout: CodeLayout) -> Params | None:
    """Parameters of `mx` that hold codes of this layout; None where they are not float4 in its blocks."""
    rank = len(layout.group)
    forms: dict[tuple[int, str], dict[str, object]] = {
        (32, "f8_e8m0"): {}, (16, "f8_e8m0"): {"block_size": 16}, (32, "f8_e4m3"): {"scale_dtype": "f8_e4m3"},
        (16, "f8_e4m3"): {"block_size": 16, "scale_dtype": "f8_e4m3"},
    }  # fmt: skip
    return next((params for form, params in forms.items() if layout == float4_layout(rank, *form)), None)


def float4_codes(scale: np.ndarray, group: int, pairs: Callable[[], np.ndarray]) -> Codes:
    """Codes of which `pairs` gives the bytes u8 [..., in / 2], the even one low; `scale` is for `group` of them."""
    *lead, count = scale.shape

    def unpack() -> np.ndarray:
        data = pairs()
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*lead, count * group)

    layout = float4_layout(scale.ndim, group, dtypes.from_numpy(scale.dtype))
    return Codes(layout=layout, shape=(*lead, count * group), scale=scale, table=VALUES, unpack=unpack, pack=pairs)


def is_float4(codes: Codes, group: int, dtype: str) -> bool:
    """Whether these are float4 codes with scales of this dtype for so many."""
    return (
        codes.table is not None and np.array_equal(codes.table, VALUES) and codes.offsets is None
        and codes.group == (*(1 for _ in codes.shape[1:]), group) and codes.scale.dtype == dtypes.to_numpy(dtype)
    )  # fmt: skip


def float4_pairs(codes: Codes) -> np.ndarray:
    """Their bytes u8 [..., in / 2], the even one low."""
    if codes.words is not None:
        return row_major(codes.words).view(np.uint8)
    return codes.values[..., 0::2] | codes.values[..., 1::2] << 4
