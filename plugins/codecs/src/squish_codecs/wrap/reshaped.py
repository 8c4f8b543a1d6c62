"""Reshaped: another codec's matrix under a shape with different rows."""

from __future__ import annotations

from math import lcm

import numpy as np
from attrs import evolve

from squish_core.api import CodecError, ErrorCode, Parts, Region, TensorSpec, Wrapper, dtypes


class Reshaped(Wrapper):
    """Another codec's tensor in a new shape.

    `shape`: the shape the inner codec stores, with the same elements in row-major order. No encoder. Source: SQUIZD,
    whose blocks are matrices and whose names give shapes (a convolution [out, in, 3, 3] in a block [out, 9 * in]).
    """

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return steps of the first axis that are multiples of the inner codec's first axis grain."""
        inner_spec, rank = self.wrapped(spec), len(spec.shape)
        step = (self.inner.grain(inner_spec) or (None,))[0]
        inner = dtypes.count(spec.shape[1:])
        if not rank or not inner or step is None:
            return (None,) * rank
        rows = lcm(step * dtypes.count(inner_spec.shape[1:]), inner) // inner
        return (rows if rows < spec.shape[0] else None, *(None,) * (rank - 1))

    def zero_share(self, parts: Parts, spec: TensorSpec) -> float | None:
        return self.inner.zero_share(parts, self.wrapped(spec))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        inner_spec = self.wrapped(spec)
        inner, row = dtypes.count(spec.shape[1:]), dtypes.count(inner_spec.shape[1:])
        rows = slice(region[0].start * inner // row, region[0].stop * inner // row) if region else slice(0, 1)
        within = (rows, *(slice(0, size) for size in inner_spec.shape[1:]))
        sizes = tuple(part.stop - part.start for part in within)
        self.inner.decode(parts, inner_spec, region=within, out=out.reshape(sizes))

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec the inner codec stores."""
        shape = self.params.get("shape")
        legal = isinstance(shape, (list, tuple)) and all(type(size) is int and size >= 0 for size in shape)
        if not shape or not legal or set(self.params) != {"shape"} or dtypes.count(shape) != spec.elements:
            raise CodecError(
                "reshaped needs a valid shape",
                expected=f"a shape of {spec.elements} elements",
                found=repr(dict(self.params))[:120],
                code=ErrorCode.PARAMS,
            )
        return evolve(spec, shape=tuple(shape))
