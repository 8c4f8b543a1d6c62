"""Global scales: one scale of a tensor beside those of its blocks."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from squish_core.api import Codes, Exactness, dtypes


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

    Examples
    --------
    >>> from squish_core.api import CodeLayout
    >>> layout = CodeLayout(bits=4, group=(1, 4), scale_dtype="f32", table="f4_e2m1", global_scale="multiply")
    >>> codes = Codes(
    ...     layout=layout, shape=(1, 4), scale=np.ones((1, 1), np.float32), global_scale=np.float32(3),
    ...     unpack=lambda: np.zeros((1, 4), np.uint8),
    ... )
    >>> unscaled, scale = split_global_scale(codes)
    >>> unscaled.layout.global_scale, float(scale)
    (None, 3.0)
    """
    if codes.global_scale is None:
        return codes, None
    layout = evolve(codes.layout, global_scale=None)
    return evolve(codes, layout=layout, global_scale=None), codes.global_scale


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
