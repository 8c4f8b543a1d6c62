"""Low-rank correction: another codec's values plus the product of two thin matrices."""

from __future__ import annotations

from typing import cast

import numpy as np

from squish_core.api import CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, dtypes, full

from ..affine.encode import check_finite
from ..affine.scheme import Shape
from ..checks import choice, integer
from .correction import Corrected, rows_and_columns, rows_of

LEFT, RIGHT = "left", "right"


class LowRank(Corrected):
    """Low-rank correction of another codec.

    `inner + left @ right` in float32: parts `left` [rows, rank] and `right` [rank, columns] over the matrix (leading
    axes are rows). `rank`: required; `factor_dtype`: f32 f16 bf16. The encoder uses the truncated SVD of the inner
    codec's error. Sources: MiLo; LQER.
    """

    unsliced_parts = (RIGHT,)

    def bind(self) -> None:
        self.rank = _RANK("rank", self.params.get("rank", 0))
        self.factor_dtype = _DTYPE("factor_dtype", self.params.get("factor_dtype", "f32"))

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        rank, dtype = self.rank, self.factor_dtype
        rows, columns = rows_and_columns(spec.shape)
        factors: dict[str, tuple[str, Shape]] = {LEFT: (dtype, (rows, rank)), RIGHT: (dtype, (rank, columns))}
        return {**self.inner.parts(spec), **factors}

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return one panel: the correction depends on the whole matrix."""
        return (None,) * len(spec.shape)

    @property
    def error_bound(self) -> Exactness:
        return Exactness("bounded")

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(parts, spec, region=region, out=out)
        start, stop, columns = rows_of(region, spec.shape)
        left = parts[LEFT][start:stop].astype(np.float32)
        right = parts[RIGHT][...].astype(np.float32)[:, columns]
        with np.errstate(all="ignore"):
            out.reshape(stop - start, right.shape[1])[...] += left @ right

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        parts = self.inner.encode(panel, activations=activations)
        spec = TensorSpec(name="", shape=panel.shape, dtype="f32")
        approximation = np.empty(panel.shape, np.float32)
        self.inner.decode(cast(Parts, parts), spec, region=full(panel.shape), out=approximation)
        residual = (panel - approximation).reshape(rows_and_columns(panel.shape))
        check_finite(panel, residual)
        dtype = dtypes.to_numpy(self.factor_dtype)
        left, right = _factors(residual, self.rank)
        return {**parts, LEFT: left.astype(dtype), RIGHT: right.astype(dtype)}

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if not {"rank"} <= set(options) <= {"rank", "factor_dtype"}:
            raise CodecError(
                "invalid lowrank parameters",
                expected="rank, optionally factor_dtype",
                found=", ".join(options) or "no parameters",
                code=ErrorCode.PARAMS,
                hint="For example lowrank:rank=8(int4).",
            )
        most = min(rows_and_columns(spec.shape))
        if not 0 < _RANK("rank", options.get("rank", 0)) <= most:
            raise CodecError("rank out of range", expected=f"1 to {most}", found=options.get("rank"), code="rank")
        _DTYPE("factor_dtype", options.get("factor_dtype", "f32"))
        return options


_RANK = integer(0, 1 << 20)
_DTYPE = choice("f32", "f16", "bf16")


def _factors(residual: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best rank-`rank` factors, each scaled by the square root of the singular values."""
    left, values, right = np.linalg.svd(residual, full_matrices=False)
    roots = np.sqrt(values[:rank])
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
