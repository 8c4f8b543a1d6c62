"""Multiplies rows on reading: the product of a code and a number that no scale of its codec has is a value.

Each codec has its own module, which is imported when a tensor is read through it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from squish_core.codecs.base import Parts, Region, Wrapper
from squish_core.codecs.regions import sizes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


class Scale(Wrapper):
    """A wrapping codec that only decodes. `runs`: pairs of a number of rows, and the factor of these rows."""

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the wrapped tensor, which is the same; CodecError unless every row has a factor."""
        runs = self.params.get("runs")
        is_valid = isinstance(runs, (list, tuple)) and all(map(_is_run, runs))
        if not is_valid or not spec.shape or sum(rows for rows, _ in runs or ()) != spec.shape[0]:
            raise CodecError(
                "does not have a factor for each row",
                code=ErrorCode.PARAMS,
                expected=f"runs of {spec.shape[:1]} rows",
                found=str(dict(self.params))[:120],
            )
        return spec

    def value_dtype(self, spec: TensorSpec) -> str:
        return "f32"

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        values = np.empty(sizes(region), np.float32)
        self.inner.decode(parts, self.wrapped(spec), region=region, out=values)
        first = 0
        for rows, factor in self.params["runs"]:
            start, stop = max(first, region[0].start), min(first + rows, region[0].stop)
            if start < stop:
                values[start - region[0].start : stop - region[0].start] *= np.float32(factor)
            first += rows
        out[...] = values


def _is_run(run: Any) -> bool:
    if not isinstance(run, (list, tuple)) or len(run) != 2:
        return False
    rows, factor = run
    return type(rows) is int and rows >= 0 and isinstance(factor, float) and math.isfinite(factor)
