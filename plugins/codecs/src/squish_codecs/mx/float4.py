"""Exact repacking of float4 codes: the same codes and scales in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import evolve

from squish_core.api import CodeLayout, Codes, Exactness, Params, dtypes

from ..packing.bits import row_major

HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([HALF, -HALF])
"""The value of each f4_e2m1 code."""
TABLE = tuple(VALUES.tolist())


def float4_layout(rank: int, group: int, scale_dtype: str, global_scale: str | None = None) -> CodeLayout:
    """Return the layout of float4 codes with one scale per group along rows.

    Parameters
    ----------
    rank : int
        Number of axes.
    group : int
        Codes per scale.
    scale_dtype : str
        Dtype of the scales.
    global_scale : str, optional
        How a scale of the tensor applies: ``"multiply"`` or ``"divide"``.

    Returns
    -------
    CodeLayout
    """
    return CodeLayout(
        bits=4, group=(*(1 for _ in range(rank - 1)), group), scale_dtype=scale_dtype, table=TABLE,
        global_scale=global_scale,
    )  # fmt: skip


def float4_params(layout: CodeLayout) -> Params | None:
    """Return the parameters of `mx` for a code layout.

    Parameters
    ----------
    layout : CodeLayout
        The layout of the codes.

    Returns
    -------
    dict or None
        None unless the codes are float4 in blocks of `mx`.
    """
    rank = len(layout.group)
    forms: dict[tuple[int, str], dict[str, object]] = {
        (32, "f8_e8m0"): {}, (16, "f8_e8m0"): {"block_size": 16}, (32, "f8_e4m3"): {"scale_dtype": "f8_e4m3"},
        (16, "f8_e4m3"): {"block_size": 16, "scale_dtype": "f8_e4m3"},
    }  # fmt: skip
    kind = layout.global_scale
    params = next((forms[form] for form in forms if layout == float4_layout(rank, *form, kind)), None)
    return params if params is None or kind is None else {**params, "global_scale": kind}


def float4_codes(
    scale: np.ndarray, group: int, pairs: Callable[[], np.ndarray],
    global_scale: tuple[str, np.ndarray] | None = None,
) -> Codes:  # fmt: skip
    """Build `Codes` from packed float4.

    Parameters
    ----------
    scale : numpy.ndarray
        The scales [..., groups].
    group : int
        Codes per scale.
    pairs : callable
        Returns u8 [..., in / 2] with the even code in the low nibble.
    global_scale : tuple, optional
        How a scale of the tensor applies, and its value.

    Returns
    -------
    Codes
    """
    *lead, count = scale.shape

    def unpack() -> np.ndarray:
        data = pairs()
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*lead, count * group)

    kind, factor = global_scale or (None, None)
    layout = float4_layout(scale.ndim, group, dtypes.from_numpy(scale.dtype), kind)
    return Codes(
        layout=layout, shape=(*lead, count * group), scale=scale, table=VALUES, global_scale=factor, unpack=unpack,
        pack=pairs,
    )  # fmt: skip


def split_global_scale(codes: Codes) -> tuple[Codes, np.ndarray | None]:
    """Separate codes from their global scale.

    Parameters
    ----------
    codes : Codes
        Codes with or without a global scale.

    Returns
    -------
    tuple
        The same codes without a global scale, and that scale or None.
    """
    if codes.global_scale is None:
        return codes, None
    layout = evolve(codes.layout, global_scale=None)
    return evolve(codes, layout=layout, global_scale=None), codes.global_scale  # type: ignore[call-arg]


def convert_global_scale(scale: np.ndarray, kind: str, target: str) -> tuple[np.ndarray, Exactness] | None:
    """Return a global scale that multiplies as one that divides, or the other way round.

    Parameters
    ----------
    scale : numpy.ndarray
        The scale of a tensor, or those of the matrices of a stack.
    kind, target : str
        ``"multiply"`` or ``"divide"``: how it applies, and how it is to apply.

    Returns
    -------
    tuple or None
        The scale as f32 and its exactness: the values are equal unless the reciprocal rounds them. None if the
        reciprocal is not a normal number.

    Examples
    --------
    >>> import numpy as np
    >>> scale, exactness = convert_global_scale(np.float32(4), "divide", "multiply")
    >>> float(scale), str(exactness)
    (0.25, 'values(f32)')
    """
    scale = np.asarray(scale, np.float32)
    if kind == target:
        return scale, Exactness("values", "f32")
    with np.errstate(all="ignore"):
        reciprocal = np.asarray(np.float32(1) / scale)
        if not (np.abs(reciprocal) >= np.finfo(np.float32).tiny).all() or not np.isfinite(reciprocal).all():
            return None
        steps = np.arange(0x7F, dtype=np.uint8).view(dtypes.to_numpy("f8_e4m3")).astype(np.float32)[:, None]
        divisor, factor = (scale, reciprocal) if kind == "divide" else (reciprocal, scale)
        is_exact = (steps / divisor.reshape(-1) == steps * factor.reshape(-1)).all()
    return reciprocal, Exactness("values", "f32") if is_exact else Exactness("bounded")


def is_float4(codes: Codes, group: int, dtype: str) -> bool:
    """Whether codes are float4 with this group size and scale dtype, without a global scale.

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
    """
    return (
        codes.table is not None and np.array_equal(codes.table, VALUES) and codes.offsets is None
        and codes.global_scale is None
        and codes.group == (*(1 for _ in codes.shape[1:]), group) and codes.scale.dtype == dtypes.to_numpy(dtype)
    )  # fmt: skip


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
    """
    if codes.words is not None:
        return row_major(codes.words).view(np.uint8)
    return codes.values[..., 0::2] | codes.values[..., 1::2] << 4
