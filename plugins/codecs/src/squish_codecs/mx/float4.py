"""Exact repacking of float4 codes: the same codes and scales in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from squish_core.api import CodeLayout, Codes, dtypes

from ..packing.bits import row_major

HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([HALF, -HALF])
"""The value of each f4_e2m1 code."""
TABLE = tuple(VALUES.tolist())


def float4_layout(rank: int, group: int, scale_dtype: str) -> CodeLayout:
    """Return the layout of float4 codes with one scale per group along rows.

    Source: OCP Microscaling Formats 1.0 (element FP4, E2M1).

    Parameters
    ----------
    rank : int
        Number of axes.
    group : int
        Codes per scale.
    scale_dtype : str
        Dtype of the scales.

    Returns
    -------
    CodeLayout

    Examples
    --------
    >>> layout = float4_layout(2, 32, "f8_e8m0")
    >>> layout.bits, layout.group, layout.table[:4]
    (4, (1, 32), (0.0, 0.5, 1.0, 1.5))
    """
    return CodeLayout(bits=4, group=(*(1 for _ in range(rank - 1)), group), scale_dtype=scale_dtype, table=TABLE)


def float4_codes(scale: np.ndarray, group: int, pairs: Callable[[], np.ndarray]) -> Codes:
    """Build `Codes` from packed float4.

    Parameters
    ----------
    scale : numpy.ndarray
        The scales [..., groups].
    group : int
        Codes per scale.
    pairs : callable
        Returns u8 [..., in / 2] with the even code in the low nibble.

    Returns
    -------
    Codes

    Examples
    --------
    >>> scale = np.array([[2]], np.float32)
    >>> codes = float4_codes(scale, 4, lambda: np.array([[0x21, 0xA3]], np.uint8))
    >>> codes.shape, codes.values.tolist()
    ((1, 4), [[1, 2, 3, 10]])
    """
    *lead, count = scale.shape

    def unpack() -> np.ndarray:
        data = pairs()
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*lead, count * group)

    layout = float4_layout(scale.ndim, group, dtypes.from_numpy(scale.dtype))
    return Codes(layout=layout, shape=(*lead, count * group), scale=scale, table=VALUES, unpack=unpack, pack=pairs)


def is_float4(codes: Codes, group: int, dtype: str) -> bool:
    """Return whether codes are float4 with this group size and scale dtype, without a global scale.

    Parameters
    ----------
    codes : Codes
        The codes to check.
    group : int
        Codes per scale.
    dtype : str
        Dtype of the scales.

    Returns
    -------
    bool

    Examples
    --------
    >>> scale = np.array([[2]], np.float32)
    >>> codes = float4_codes(scale, 4, lambda: np.array([[0x21, 0xA3]], np.uint8))
    >>> is_float4(codes, 4, "f32"), is_float4(codes, 4, "f16")
    (True, False)
    """
    return (
        codes.table is not None
        and np.array_equal(codes.table, VALUES)
        and codes.offsets is None
        and codes.global_scale is None
        and codes.group == (*(1 for _ in codes.shape[1:]), group)
        and codes.scale.dtype == dtypes.to_numpy(dtype)
    )


def float4_pairs(codes: Codes) -> np.ndarray:
    """Pack float4 codes in pairs.

    Parameters
    ----------
    codes : Codes
        Float4 codes.

    Returns
    -------
    numpy.ndarray
        u8 [..., in / 2] with the even code in the low nibble.

    Examples
    --------
    >>> scale = np.array([[2]], np.float32)
    >>> codes = float4_codes(scale, 4, lambda: np.array([[0x21, 0xA3]], np.uint8))
    >>> [hex(pair) for pair in float4_pairs(codes)[0]]
    ['0x21', '0xa3']
    """
    if codes.words is not None:
        return row_major(codes.words).view(np.uint8)
    return codes.values[..., 0::2] | codes.values[..., 1::2] << 4
