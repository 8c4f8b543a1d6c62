"""Transposes matrices on reading: codes in blocks run along rows, so only values can be transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from attrs import evolve

from squish_core.codecs.base import Parts, Region, Wrapper
from squish_core.codecs.regions import sizes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Item = TypeVar("Item")


class Transpose(Wrapper):
    """A wrapping codec that only decodes. The tensor is the wrapped one with its last two axes swapped."""

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the wrapped tensor; CodecError for a shape without two axes."""
        if len(spec.shape) < 2:
            raise CodecError(
                "only matrices can be transposed",
                code=ErrorCode.PARAMS,
                expected="at least two axes",
                found=f"shape {list(spec.shape)}",
            )
        return evolve(spec, shape=swapped(spec.shape))

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return swapped(self.inner.grain(self.wrapped(spec)))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        stored = swapped(region)
        values = np.empty(sizes(stored), out.dtype)
        self.inner.decode(parts, self.wrapped(spec), region=stored, out=values)
        out[...] = values.swapaxes(-1, -2)


def swapped(axes: tuple[Item, ...]) -> tuple[Item, ...]:
    """Swap the last two items of a tuple with one item per axis.

    >>> swapped((4, 2, 3))
    (4, 3, 2)
    """
    return (*axes[:-2], axes[-1], axes[-2])
