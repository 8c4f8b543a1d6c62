"""Low-rank correction: another codec's values plus the product of two thin matrices."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, dtypes, full

from ..affine.encode import check_finite
from ..affine.scheme import Shape
from ..checks import choice, integer
from .base import Wrapper, Wrapping, rows_and_columns, rows_of

LEFT, RIGHT = "left", "right"


class LowRank(Wrapper):
    """Low-rank correction of another codec.

    `inner + left @ right` in float32: parts `left` [rows, rank] and `right` [rank, columns] over the matrix (leading
    axes are rows). `rank`: required; `factor_dtype`: f32 f16 bf16. The encoder uses the truncated SVD of the inner
    codec's error. Sources: MiLo; LQER.
    """

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Wrapping):
    """`LowRank` around one codec."""

    id = "lowrank"
    added_part: ClassVar[str] = RIGHT

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        rank = _RANK("rank", params.get("rank", 0))
        dtype = _DTYPE("factor_dtype", params.get("factor_dtype", "f32"))
        rows, columns = rows_and_columns(spec.shape)
        factors: dict[str, tuple[str, Shape]] = {LEFT: (dtype, (rows, rank)), RIGHT: (dtype, (rank, columns))}
        return {**self.inner.parts(spec, self.own), **factors}

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Return one panel: the correction depends on the whole matrix."""
        return (None,) * len(spec.shape)

    def error_bound(self, params: Params) -> Exactness:
        return Exactness("bounded")

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(parts, spec, self.own, region=region, out=out)
        start, stop, columns = rows_of(region, spec.shape)
        left = parts[LEFT][start:stop].astype(np.float32)
        right = parts[RIGHT][...].astype(np.float32)[:, columns]
        with np.errstate(all="ignore"):
            out.reshape(stop - start, right.shape[1])[...] += left @ right

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        parts = self.inner.encode(panel, self.own, activations=activations)
        spec = TensorSpec(name="", shape=panel.shape, dtype="f32")
        approximation = np.empty(panel.shape, np.float32)
        self.inner.decode(cast(Parts, parts), spec, self.own, region=full(panel.shape), out=approximation)
        residual = (panel - approximation).reshape(rows_and_columns(panel.shape))
        check_finite(panel, residual)
        dtype = dtypes.to_numpy(params.get("factor_dtype", "f32"))
        left, right = _factors(residual, params["rank"])
        return {**parts, LEFT: left.astype(dtype), RIGHT: right.astype(dtype)}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if not {"rank"} <= set(params) <= {"rank", "factor_dtype"}:
            raise CodecError(
                "invalid lowrank parameters", expected="rank, optionally factor_dtype",
                found=", ".join(params) or "no parameters",
                code=ErrorCode.PARAMS, hint="For example lowrank:rank=8(int4).",
            )  # fmt: skip
        most = min(rows_and_columns(spec.shape))
        if not 0 < _RANK("rank", params.get("rank", 0)) <= most:
            raise CodecError("rank out of range", expected=f"1 to {most}", found=params.get("rank"), code="rank")
        self.parts(spec, params)
        return params


_RANK = integer(0, 1 << 20)
_DTYPE = choice("f32", "f16", "bf16")


def _factors(residual: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best rank-`rank` factors, each scaled by the square root of the singular values."""
    left, values, right = np.linalg.svd(residual, full_matrices=False)
    roots = np.sqrt(values[:rank])
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
