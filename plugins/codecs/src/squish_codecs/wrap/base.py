"""Base classes of wrapper codecs; tensors are matrices with leading axes as rows."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec

from ..affine.scheme import Shape


class Wrapper(Codec):
    """A codec around another one, bound by `wrap`; raises CodecError on its own."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        raise CodecError(
            f"{self.id} needs an inner codec", code=ErrorCode.PARAMS,
            expected=f"the inner codec in brackets, such as {self.id}(int4)",
        )  # fmt: skip

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        self.parts(spec, params)
        return params


class Wrapping(Codec):
    """A wrapper bound to its inner codec `inner` with the parameters `own`."""

    added_part: ClassVar[str]
    """The added part, which every region reads completely."""

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params
        self.unsliced_parts = (*inner.unsliced_parts, self.added_part)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Return the inner codec's grain over complete inner axes, so that a region is a run of rows."""
        grain = self.inner.grain(spec, self.own)
        return grain if len(grain) < 3 else (grain[0], *(None,) * (len(grain) - 2), grain[-1])

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, spec, self.own)

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return self.inner.value_dtype(spec, self.own)


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
