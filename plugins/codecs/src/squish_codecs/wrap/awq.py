"""Activation-aware scaling: columns that see large activations are made larger before quantizing.

A codec around another one, which keeps the factors and divides by them again; and, on arrays, what folds them into the
layer before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, full

from ..affine.codec import Affine
from ..affine.scheme import Shape
from .base import Wrapper, Wrapping, rows_and_columns, rows_of

Array = np.ndarray
STEPS = 20
"""Exponents that are tried, from 0 (no scaling) on."""
ROWS = 512
"""Rows of a matrix, evenly spread, on which the codec tries them."""
FACTOR = "factor"


class Awq(Wrapper):
    """Bound to the codec it wraps by `wrap`; without one it can say nothing.

    Values of the inner codec, each column divided by its number in the part `factor` f32 [columns], in float32.
    Encoding needs statistics of activations, from which `scales` finds the factors, and takes a tensor whole. No
    parameters.
    Source: AWQ (2023), section 3.2.
    """

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Wrapping):
    """`Awq` around one codec."""

    id = "awq"
    whole: ClassVar[str] = FACTOR

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        return {**self.inner.parts(spec, self.own), FACTOR: ("f32", spec.shape[-1:])}

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return "f32"

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """The factors are of the whole matrix."""
        return (None,) * len(spec.shape)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: Array) -> None:
        self.inner.decode(parts, spec, self.own, region=region, out=out)
        columns = rows_of(region, spec.shape)[2]
        with np.errstate(all="ignore"):
            out /= parts[FACTOR][...][columns]

    def needs_activations(self, params: Params) -> bool:
        return True

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        seen = np.asarray((stats or {})["activations"], np.float32)
        matrix = panel.reshape(rows_and_columns(panel.shape))
        tried = {key: value for key, value in self.own.items() if key != "search"}
        factors = scales(matrix[:: max(1, -(-len(matrix) // ROWS))], seen, tried)
        made = self.inner.encode(panel * factors, self.own, stats={"activations": seen / factors})
        return {**made, FACTOR: factors}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if params:
            raise CodecError("awq takes no parameters but those of the codec it wraps", code=ErrorCode.PARAMS)
        if not spec.shape:
            raise CodecError("a scalar has no columns to scale", found="shape []", code="shape")
        return params

    def error_bound(self, params: Params) -> Exactness:
        return Exactness("bounded")


def scales(weight: Array, activations: Array, params: Mapping[str, Any]) -> Array:
    """Factors of the columns, f32 [in], under which `affine` with `params` loses least of `weight @ x`.

    `activations` [in]: the mean magnitude of each input channel over a calibration set. Tried are its powers 0, 1/20,
    ... 19/20, each normed by the root of its extremes; the loss is the squared error of the decoded columns, divided by
    their factors again and weighed by the squared activations. Factors of 1 when nothing is better.
    Source: AWQ (2023), section 3.2.
    """
    weight, activations = np.asarray(weight, np.float32), np.asarray(activations, np.float32)
    if weight.ndim != 2 or activations.shape != weight.shape[1:]:
        raise CodecError(
            "the activations do not fit the matrix", expected=f"[{weight.shape[-1]}]",
            found=list(activations.shape), code="shape",
        )  # fmt: skip
    if not np.isfinite(activations).all() or (activations < 0).any():
        raise CodecError("activations are magnitudes, finite and not negative", code="values")
    magnitudes = np.maximum(activations, np.float32(1e-4))
    best, found = np.inf, np.ones_like(magnitudes)
    if not weight.size:
        return found
    for step in range(STEPS):
        factors = magnitudes ** np.float32(step / STEPS)
        factors /= np.sqrt(factors.max() * factors.min())
        error = (_decoded(weight * factors, params) / factors - weight) * magnitudes
        loss = float(np.square(error, dtype=np.float64).sum())
        if loss < best:
            best, found = loss, factors
    return found


def apply(weight: Array, before: Array, factors: Array) -> tuple[Array, Array]:
    """The matrix with its columns scaled, and the norm (or the rows of the layer) before it divided: the same product.

    f32 both. `before` is [in], or [in, ...] with the rows that make the channels.
    """
    down = factors.reshape(-1, *(1 for _ in before.shape[1:]))
    return np.asarray(weight * factors, np.float32), np.asarray(before / down, np.float32)


def _decoded(weight: Array, params: Mapping[str, Any]) -> Array:
    codec, spec = Affine(), TensorSpec(name="", shape=weight.shape, dtype="f32")
    out = np.empty(weight.shape, np.float32)
    parts = cast(Parts, codec.encode(np.ascontiguousarray(weight), params))
    codec.decode(parts, spec, params, region=full(weight.shape), out=out)
    return out
