"""Transposes matrices on reading: block codes run along rows, so only their values can be transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from attrs import evolve

from squish_core.codecs.base import Codec, Params, Parts, Region
from squish_core.codecs.regions import sizes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import Exactness, TensorSpec

from .wrapping import Wrapping

if TYPE_CHECKING:
    import numpy as np

Item = TypeVar("Item")


class Transpose(Wrapping):
    """A wrapping codec; decodes only. The tensor is the wrapped one with its last two axes swapped."""

    id = "transpose"

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Codec):
    """`Transpose` bound to the codec it wraps."""

    id = "transpose"

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params
        self.unsliced_parts = inner.unsliced_parts

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.inner.parts(_stored(spec), self.own)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return swapped(self.inner.grain(_stored(spec), self.own))

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return self.inner.value_dtype(_stored(spec), self.own)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, _stored(spec), self.own)

    def error_bound(self, params: Params) -> Exactness:
        return self.inner.error_bound(self.own)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        stored = swapped(region)
        values = np.empty(sizes(stored), out.dtype)
        self.inner.decode(parts, _stored(spec), self.own, region=stored, out=values)
        out[...] = values.swapaxes(-1, -2)


def swapped(axes: tuple[Item, ...]) -> tuple[Item, ...]:
    """Swap what belongs to the last two axes.

    >>> swapped((4, 2, 3))
    (4, 3, 2)
    """
    return (*axes[:-2], axes[-1], axes[-2])


def _stored(spec: TensorSpec) -> TensorSpec:
    """The wrapped tensor; CodecError for a shape without two axes."""
    if len(spec.shape) < 2:
        raise CodecError(
            "only matrices can be transposed", code=ErrorCode.PARAMS, expected="at least two axes",
            found=f"shape {list(spec.shape)}",
        )  # fmt: skip
    return evolve(spec, shape=swapped(spec.shape))
