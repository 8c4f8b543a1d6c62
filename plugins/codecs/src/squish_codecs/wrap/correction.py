"""The base of codecs that correct another one; tensors are matrices with leading axes as rows."""

from __future__ import annotations

from math import prod

from squish_core.api import CodecError, Region, TensorSpec, Wrapper

from ..affine.scheme import Shape


class Corrected(Wrapper):
    """Changes the inner codec's values by a part of its own, which every region reads completely."""

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return the inner codec's grain over complete inner axes, so that a region is a run of rows."""
        grain = self.inner.grain(spec)
        return grain if len(grain) < 3 else (grain[0], *(None,) * (len(grain) - 2), grain[-1])


def rows_and_columns(shape: Shape) -> tuple[int, int]:
    """Return the size of a tensor as a matrix.

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor; leading axes are rows.

    Returns
    -------
    tuple of int
        Rows and columns.

    Examples
    --------
    >>> rows_and_columns((2, 3, 64)), rows_and_columns(())
    ((6, 64), (1, 1))
    """
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def rows_of(region: Region, shape: Shape) -> tuple[int, int, slice]:
    """Return the start row, stop row and columns of a region in matrix form; inner axes must be complete."""
    if len(shape) < 2:
        return 0, 1, region[0] if shape else slice(0, 1)
    inner = prod(shape[1:-1])
    if any(part != slice(0, size) for part, size in zip(region[1:-1], shape[1:-1])):
        raise CodecError("a wrapped tensor can only be sliced along its first and last axes", code="region")
    return region[0].start * inner, region[0].stop * inner, region[-1]
