"""What codecs that wrap another one share: they add to its values over a matrix, in which leading axes are rows."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec

from ..affine.scheme import Shape


class Wrapper(Codec):
    """A codec that is one only around another; its `wrap` gives that, and alone it says so."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        raise CodecError(
            f"{self.id} is an addition to another codec", code=ErrorCode.PARAMS,
            expected=f"the other one in brackets, as in {self.id}(int4)",
        )  # fmt: skip

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        self.parts(spec, params)
        return params


class Wrapping(Codec):
    """A codec bound to the one it wraps, `inner`, and that one's parameters, `own`."""

    whole: ClassVar[str]
    """The added part that every region reads from its start."""

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params
        self.unsliced_parts = (*inner.unsliced_parts, self.whole)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """That of the wrapped codec, over whole inner axes: only then is a region a run of rows."""
        grain = self.inner.grain(spec, self.own)
        return grain if len(grain) < 3 else (grain[0], *(None,) * (len(grain) - 2), grain[-1])

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, spec, self.own)

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return self.inner.value_dtype(spec, self.own)


def rows_and_columns(shape: Shape) -> tuple[int, int]:
    """Size of the matrix that a tensor is."""
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def rows_of(region: Region, shape: Shape) -> tuple[int, int, slice]:
    """First row, row after the last, and columns of the matrix that a region covers; other axes are whole."""
    if len(shape) < 2:
        return 0, 1, region[0] if shape else slice(0, 1)
    inner = prod(shape[1:-1])
    if any(part != slice(0, size) for part, size in zip(region[1:-1], shape[1:-1])):
        raise CodecError("a wrapped tensor is read over whole inner axes", code="region")
    return region[0].start * inner, region[0].stop * inner, region[-1]
