"""Activation-aware scaling: columns with large activations are scaled up before quantization.

The codec wraps another one, stores the factors and divides by them on decoding. `apply` folds factors into the
preceding layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from squish_core.api import CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, full

from ..affine.codec import Affine
from ..affine.scheme import Shape
from .correction import Corrected, rows_and_columns, rows_of

Array = np.ndarray
STEPS = 20
"""Number of exponents in the search, from 0 (no scaling)."""
ROWS = 512
"""Evenly spaced rows used in the search."""
FACTOR = "factor"


class Awq(Corrected):
    """Activation-aware scaling around another codec.

    Values are the inner codec's, divided per column by the part `factor` f32 [columns], in float32. Encoding needs
    activation statistics, from which `scales` computes the factors, and the whole tensor at once. No parameters.
    Source: AWQ (2023), section 3.2.
    """

    unsliced_parts = (FACTOR,)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        return {**self.inner.parts(spec), FACTOR: ("f32", spec.shape[-1:])}

    def value_dtype(self, spec: TensorSpec) -> str:
        return "f32"

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return one panel: the factors depend on the whole matrix."""
        return (None,) * len(spec.shape)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        self.inner.decode(parts, spec, region=region, out=out)
        columns = rows_of(region, spec.shape)[2]
        with np.errstate(all="ignore"):
            out /= parts[FACTOR][...][columns]

    @classmethod
    def needs_activations(cls, options: Params) -> bool:
        return True

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        if activations is None:
            raise CodecError("awq needs activation statistics", found="none", code=ErrorCode.ENCODE)
        activations = np.asarray(activations, np.float32)
        matrix = panel.reshape(rows_and_columns(panel.shape))
        inner_params = {key: value for key, value in self.inner.params.items() if key != "search"}
        factors = scales(matrix[:: max(1, -(-len(matrix) // ROWS))], activations, inner_params)
        parts = self.inner.encode(panel * factors, activations=activations / factors)
        return {**parts, FACTOR: factors}

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if options:
            raise CodecError("awq takes no parameters except the inner codec's", code=ErrorCode.PARAMS)
        if not spec.shape:
            raise CodecError("awq needs at least one axis", found="shape []", code="shape")
        return options

    @property
    def error_bound(self) -> Exactness:
        return Exactness("bounded")


def scales(weight: Array, activations: Array, params: Mapping[str, Any]) -> Array:
    """Return column factors f32 [in] that minimize the error of `weight @ x` under `affine` with `params`.

    `activations` [in] is the mean magnitude of each input channel over a calibration set. The search tries its powers
    0, 1/20, ... 19/20, each normalized by the geometric mean of its extremes; the loss is the squared error of the
    decoded, unscaled columns, weighted by the squared activations. Factors are 1 if nothing is better.
    Source: AWQ (2023), section 3.2.
    """
    weight, activations = np.asarray(weight, np.float32), np.asarray(activations, np.float32)
    if weight.ndim != 2 or activations.shape != weight.shape[1:]:
        raise CodecError(
            "the activations do not match the matrix",
            expected=f"[{weight.shape[-1]}]",
            found=list(activations.shape),
            code="shape",
        )
    if not np.isfinite(activations).all() or (activations < 0).any():
        raise CodecError("activations must be finite and non-negative", code="values")
    magnitudes = np.maximum(activations, np.float32(1e-4))
    best, best_factors = np.inf, np.ones_like(magnitudes)
    if not weight.size:
        return best_factors
    codec = Affine.from_params(params)
    for step in range(STEPS):
        factors = magnitudes ** np.float32(step / STEPS)
        factors /= np.sqrt(factors.max() * factors.min())
        error = (_round_trip(weight * factors, codec) / factors - weight) * magnitudes
        loss = float(np.square(error, dtype=np.float64).sum())
        if loss < best:
            best, best_factors = loss, factors
    return best_factors


def apply(weight: Array, before: Array, factors: Array) -> tuple[Array, Array]:
    """Scale the columns of a matrix and divide the preceding norm (or rows of the layer): the product stays equal.

    Both results are f32. `before` is [in], or [in, ...] with one row per channel.
    """
    down = factors.reshape(-1, *(1 for _ in before.shape[1:]))
    return np.asarray(weight * factors, np.float32), np.asarray(before / down, np.float32)


def _round_trip(weight: Array, codec: Affine) -> Array:
    spec = TensorSpec(name="", shape=weight.shape, dtype="f32")
    out = np.empty(weight.shape, np.float32)
    parts = cast(Parts, codec.encode(np.ascontiguousarray(weight)))
    codec.decode(parts, spec, region=full(weight.shape), out=out)
    return out
