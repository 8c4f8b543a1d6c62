"""Code layouts of affine schemes."""

from __future__ import annotations

import math

from attrs import evolve

from squish_core.api import CodeLayout

from .scheme import Scheme, Shape


def affine_layout(scheme: Scheme, shape: Shape) -> CodeLayout:
    """Return the code layout of an affine tensor.

    Parameters
    ----------
    scheme : Scheme
        The parameters of the tensor.
    shape : tuple of int
        Its logical shape.

    Returns
    -------
    CodeLayout

    Examples
    --------
    >>> layout = affine_layout(Scheme.of({"bits": 4, "group_size": 32}), (64, 128))
    >>> layout.bits, layout.signed, layout.group, layout.scale_dtype
    (4, True, (1, 32), 'f32')
    """
    group, run = flat_groups(shape, scheme.group_size) if scheme.flat else (_groups(scheme.upright, shape), 0)
    if scheme.symmetric:  # its zero points are no news
        scheme = evolve(scheme, offset="none", zero=scheme.middle, symmetric=False)
    offset = f"{'i' if scheme.signed else 'u'}{scheme.bits}" if scheme.packed_zeros else scheme.offset_dtype
    return CodeLayout(
        bits=scheme.bits,
        signed=scheme.signed,
        group=group,
        run=run,
        scale_dtype=scheme.scale_dtype,
        offset_kind=scheme.offset,
        offset_dtype=None if scheme.offset == "none" else offset,
        zero=scheme.zero,
        word=scheme.word,
    )


def flat_groups(shape: Shape, size: int) -> tuple[Shape, int]:
    """Return the extent per axis of groups of `size` row-major neighbors (0: all), and `size` if they cross rows."""
    if not size or not shape:
        return (0,) * len(shape), 0
    sizes, rest = [], size
    for extent in (max(extent, 1) for extent in reversed(shape)):
        along = math.gcd(rest, extent)
        if along not in (rest, extent):
            break
        sizes.append(along)
        rest //= along
    if len(sizes) == len(shape) and rest == 1:
        return tuple(reversed(sizes)), 0
    return (*(1 for _ in shape[1:]), math.gcd(size, max(shape[-1], 1))), size


def _groups(scheme: Scheme, shape: Shape) -> Shape:
    group = [1] * len(shape)
    group[scheme.group_axis] = scheme.group_size
    return tuple(group)
