"""Parameters of microscaled floats, and their code layouts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from attrs import evolve

from squish_core.api import CodeLayout, Codes, Params, dtypes

from .float4 import float4_layout

LEGAL: dict[str, tuple[Any, ...]] = {
    "element": ("f4_e2m1", "f8_e4m3", "f8_e5m2"),
    "block_size": (32, 16),
    "scale_dtype": ("f8_e8m0", "f8_e4m3"),
    "global_scale": ("none", "multiply", "divide"),
    "scaling": ("ocp", "saturating"),
}
"""Values of the parameters of `mx`; the first is the default."""


def mx_layout(rank: int, element: str, group: int, scale_dtype: str) -> CodeLayout:
    """Return the layout of float4 or float8 codes with one scale per group along rows.

    Source: OCP Microscaling Formats 1.0 (MXFP4 and MXFP8); NVFP4 has groups of 16 with f8_e4m3 scales.

    Parameters
    ----------
    rank : int
        Number of axes.
    element : str
        Dtype whose codes they are, such as ``"f8_e4m3"``.
    group : int
        Codes per scale.
    scale_dtype : str
        Dtype of the scales.

    Returns
    -------
    CodeLayout

    Examples
    --------
    >>> layout = mx_layout(2, "f8_e4m3", 32, "f8_e8m0")
    >>> layout.bits, layout.group, layout.table
    (8, (1, 32), 'f8_e4m3')
    """
    if element == "f4_e2m1":
        return float4_layout(rank, group, scale_dtype)
    groups = (*(1 for _ in range(rank - 1)), group)
    return CodeLayout(bits=dtypes.bits(element), group=groups, scale_dtype=scale_dtype, table=element)


def mx_params(layout: CodeLayout) -> Params | None:
    """Return the parameters of `mx` for a code layout.

    Parameters
    ----------
    layout : CodeLayout
        The layout of the codes.

    Returns
    -------
    dict or None
        Those that differ from the defaults; None unless the codes are floats in blocks of `mx`.

    Examples
    --------
    >>> mx_params(mx_layout(2, "f4_e2m1", 16, "f8_e4m3"))
    {'block_size': 16, 'scale_dtype': 'f8_e4m3'}
    >>> mx_params(CodeLayout(bits=4, group=(1, 32), scale_dtype="f16")) is None
    True
    """
    unscaled, kind = evolve(layout, global_scale=None), layout.global_scale or LEGAL["global_scale"][0]
    for element, group, scale in product(*(LEGAL[name] for name in ("element", "block_size", "scale_dtype"))):
        if unscaled == mx_layout(len(layout.group), element, group, scale):
            return non_defaults(element=element, block_size=group, scale_dtype=scale, global_scale=kind)
    return None


def float8_codes(layout: CodeLayout, scale: np.ndarray, elements: Callable[[], np.ndarray]) -> Codes:
    """Build `Codes` from float8 elements.

    Parameters
    ----------
    layout : CodeLayout
        The layout of the codes, with one scale per group along rows.
    scale : numpy.ndarray
        The scales [..., groups].
    elements : callable
        Returns the elements [..., in].

    Returns
    -------
    Codes
    """
    *lead, count = scale.shape
    shape = (*lead, count * layout.group[-1])
    return Codes(layout=layout, shape=shape, scale=scale, unpack=lambda: elements().view(np.uint8))


def non_defaults(**params: Any) -> dict[str, Any]:
    """Return the parameters that differ from their default."""
    return {name: value for name, value in params.items() if value != LEGAL[name][0]}
