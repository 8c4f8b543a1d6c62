"""Activation-aware scaling: columns that see large activations are made larger before quantising; on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from squish_core.api import CodecError, Parts, TensorSpec, full

from .affine import Affine

Array = np.ndarray
STEPS = 20
"""Exponents that are tried, from 0 (no scaling) on."""


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
