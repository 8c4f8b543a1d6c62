"""Whether stored zero points or biases say nothing: all stand for the middle of the codes."""

from __future__ import annotations

import numpy as np

from squish_core.api import Parts

from .decode import unpack_codes
from .scheme import Scheme, Shape


def has_middle_zeros(scheme: Scheme, parts: Parts, shape: Shape) -> bool:
    """Return whether a tensor stores zero points or biases, and zero is the middle of its codes everywhere.

    Reads the zero points, or the biases and scales.

    Parameters
    ----------
    scheme : Scheme
        The layout of the parts.
    parts : Parts
        The parts of the tensor.
    shape : tuple of int
        Its logical shape.

    Returns
    -------
    bool

    Examples
    --------
    >>> scheme = Scheme.of({"bits": 4, "group_size": 32, "offset": "zero_point"})
    >>> [has_middle_zeros(scheme, {"offset": np.array([[8, zero]], np.uint8)}, (1, 64)) for zero in (8, 9)]
    [True, False]
    """
    if scheme.offset == "none":
        return False
    if scheme.offset == "bias":
        scale, bias = (parts[role][...].astype(np.float64) for role in ("scale", "offset"))
        return bool((bias == -scheme.middle * scale).all())
    zeros = parts["offset"][...]
    if scheme.packed_zeros:
        _, grid = scheme.parts(shape)["scale"]
        zeros = unpack_codes(scheme, zeros, grid, scheme.zero_axis)
    return bool((zeros.astype(np.float32) == scheme.middle - scheme.zero).all())
