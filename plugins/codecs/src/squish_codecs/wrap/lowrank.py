"""Low-rank correction: another codec's values, plus the product of two thin matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, dtypes, full

from ..affine.encode import check_finite
from ..affine.scheme import Shape
from ..checks import choice, integer
from .base import Wrapper, Wrapping, rows_and_columns, rows_of

LEFT, RIGHT = "left", "right"


class LowRank(Wrapper):
    """Bound to the codec it wraps by `wrap`; without one it can say nothing.

    `inner + left @ right` in float32: parts `left` [rows, rank] and `right` [rank, columns] over the matrix (leading
    axes are rows). `rank`: required; `factor_dtype`: f32 f16 bf16. Encoding takes the largest singular values of what
    the inner codec leaves. Sources: MiLo; LQER.
    """

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Wrapping):
    """`LowRank` around one codec."""

    id = "lowrank"
    whole: ClassVar[str] = RIGHT

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        rank = _RANK("rank", params.get("rank", 0))
        dtype = _DTYPE("factor_dtype", params.get("factor_dtype", "f32"))
        rows, columns = rows_and_columns(spec.shape)
        factors: dict[str, tuple[str, Shape]] = {LEFT: (dtype, (rows, rank)), RIGHT: (dtype, (rank, columns))}
        return {**self.inner.parts(spec, self.own), **factors}

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """The correction is of the whole matrix."""
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
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        made = self.inner.encode(panel, self.own, stats=stats)
        spec = TensorSpec(name="", shape=panel.shape, dtype="f32")
        found = np.empty(panel.shape, np.float32)
        self.inner.decode(cast(Parts, made), spec, self.own, region=full(panel.shape), out=found)
        rest = (panel - found).reshape(rows_and_columns(panel.shape))
        check_finite(panel, rest)
        dtype = dtypes.to_numpy(params.get("factor_dtype", "f32"))
        left, right = _factors(rest, params["rank"])
        return {**made, LEFT: left.astype(dtype), RIGHT: right.astype(dtype)}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if not {"rank"} <= set(params) <= {"rank", "factor_dtype"}:
            raise CodecError(
                "lowrank takes a rank, and the dtype of its factors", expected="rank=, and factor_dtype= or not",
                found=", ".join(params) or "no parameters",
                code=ErrorCode.PARAMS, hint="For example lowrank:rank=8(int4).",
            )  # fmt: skip
        most = min(rows_and_columns(spec.shape))
        if not 0 < _RANK("rank", params.get("rank", 0)) <= most:
            raise CodecError(
                "the rank does not fit the matrix", expected=f"1 to {most}", found=params.get("rank"), code="rank"
            )
        self.parts(spec, params)
        return params


_RANK = integer(0, 1 << 20)
_DTYPE = choice("f32", "f16", "bf16")


def _factors(rest: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The best factors of a rank, each with the root of the singular values."""
    left, values, right = np.linalg.svd(rest, full_matrices=False)
    roots = np.sqrt(values[:rank])
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
