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
    """A wrapping codec that only decodes. The tensor is the wrapped one with its last two axes swapped.

    `joined`: the tensor is a matrix with the rows of so many, which are a stack in the wrapped one.
    """

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the wrapped tensor; CodecError for a shape without two axes, or rows of no number of matrices."""
        joined = self.params.get("joined")
        if joined is not None:
            if type(joined) is not int or len(spec.shape) != 2 or joined < 1 or spec.shape[0] % joined:
                raise CodecError(
                    "its rows are not those of this number of matrices",
                    code=ErrorCode.PARAMS,
                    expected=f"a matrix with a multiple of {joined} rows",
                    found=f"shape {list(spec.shape)}",
                )
            return evolve(spec, shape=(joined, spec.shape[1], spec.shape[0] // joined))
        if len(spec.shape) < 2:
            raise CodecError(
                "only matrices can be transposed",
                code=ErrorCode.PARAMS,
                expected="at least two axes",
                found=f"shape {list(spec.shape)}",
            )
        return evolve(spec, shape=swapped(spec.shape))

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        grain = swapped(self.inner.grain(self.wrapped(spec)))
        if self.params.get("joined") is None:
            return grain
        rows = spec.shape[0] // self.params["joined"]
        return (grain[1] if grain[0] == 1 and grain[1] is not None and rows % grain[1] == 0 else rows, grain[2])

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        if self.params.get("joined") is not None:
            self._decode_joined(parts, spec, region, out)
            return
        stored = swapped(region)
        values = np.empty(sizes(stored), out.dtype)
        self.inner.decode(parts, self.wrapped(spec), region=stored, out=values)
        out[...] = values.swapaxes(-1, -2)

    def _decode_joined(self, parts: Parts, spec: TensorSpec, region: Region, out: np.ndarray) -> None:
        """Decode the rows of each matrix of the region."""
        import numpy as np

        wrapped, (rows, columns) = self.wrapped(spec), region
        size = wrapped.shape[2]
        for matrix in range(rows.start // size, -(-rows.stop // size)):
            start, stop = max(rows.start, matrix * size), min(rows.stop, (matrix + 1) * size)
            stored = (slice(matrix, matrix + 1), columns, slice(start - matrix * size, stop - matrix * size))
            values = np.empty(sizes(stored), out.dtype)
            self.inner.decode(parts, wrapped, region=stored, out=values)
            out[start - rows.start : stop - rows.start] = values[0].T


def swapped(axes: tuple[Item, ...]) -> tuple[Item, ...]:
    """Swap the last two items of a tuple with one item per axis.

    >>> swapped((4, 2, 3))
    (4, 3, 2)
    """
    return (*axes[:-2], axes[-1], axes[-2])
