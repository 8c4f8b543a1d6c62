"""Activation-aware scaling keeps the product before quantization and reduces its error afterwards."""

import numpy as np
import pytest
from squish_codecs.api import Affine
from squish_codecs.wrap.awq import Awq, apply, scales
from squish_testing import expect_error
from squish_testing.codecs import read_region

from squish_core.api import CodecError, TensorSpec
from squish_core.codecs.regions import full

RNG = np.random.default_rng(0)
PARAMS = {"bits": 3, "group_size": 32, "offset": "bias"}
WEIGHT = RNG.normal(size=(48, 128)).astype(np.float32)
NORM = RNG.uniform(0.5, 1.5, 128).astype(np.float32)


def rounded(weight: np.ndarray) -> np.ndarray:
    spec = TensorSpec(name="w", shape=weight.shape, dtype="f32")
    return read_region(Affine.from_params(PARAMS), Affine.from_params(PARAMS).encode(weight), spec, full(weight.shape))


def test_scaling_keeps_the_product_and_reduces_the_error() -> None:
    x = RNG.normal(size=(256, 128)).astype(np.float32)
    x[:, :6] *= 30
    expected = (x * NORM) @ WEIGHT.T
    factors = scales(WEIGHT, np.abs(x * NORM).mean(axis=0), PARAMS)
    weight, norm = apply(WEIGHT, NORM, factors)
    np.testing.assert_allclose((x * norm) @ weight.T, expected, rtol=1e-3, atol=1e-2)
    unscaled = np.linalg.norm((x * NORM) @ rounded(WEIGHT).T - expected)
    scaled = np.linalg.norm((x * norm) @ rounded(weight).T - expected)
    assert scaled < 0.6 * unscaled
    assert (factors[:6] > factors[6:].max()).all()


def test_a_preceding_layer_is_divided_by_rows() -> None:
    before, x = RNG.normal(size=(128, 16)).astype(np.float32), RNG.normal(size=16).astype(np.float32)
    weight, rows = apply(WEIGHT, before, RNG.uniform(0.5, 2, 128).astype(np.float32))
    np.testing.assert_allclose(weight @ (rows @ x), WEIGHT @ (before @ x), rtol=1e-3, atol=1e-3)


def test_uniform_activations_give_factors_of_one() -> None:
    np.testing.assert_array_equal(scales(WEIGHT, np.ones(128), PARAMS), np.ones(128, np.float32))


@pytest.mark.parametrize(
    ("activations", "code"), [(np.ones(127), "shape"), (-np.ones(128), "values"), (np.full(128, np.nan), "values")]
)
def test_invalid_activations_are_refused(activations: np.ndarray, code: str) -> None:
    with expect_error(CodecError, code=code):
        scales(WEIGHT, activations, PARAMS)


@pytest.mark.parametrize("search", ["none", "mse", "activations"])
@pytest.mark.parametrize("shape", [(48, 128), (3, 16, 128)])
def test_the_codec_unscales_columns_of_any_region(shape: tuple[int, ...], search: str) -> None:
    own = {**PARAMS, "search": search}
    codec, spec = Awq.from_params({}, Affine.from_params(own)), TensorSpec(name="w", shape=shape, dtype="f32")
    seen = np.exp(np.random.default_rng(1).normal(0, 2, 128)).astype(np.float32)
    parts = codec.encode(WEIGHT.reshape(shape), activations=seen)
    whole = read_region(codec, parts, spec, full(shape))
    inner = read_region(Affine.from_params(own), parts, spec, full(shape))
    np.testing.assert_array_equal(whole, inner / parts["factor"])
    some = tuple(slice(size // 3, size // 2 + 1) for size in shape)
    np.testing.assert_array_equal(read_region(codec, parts, spec, some), whole[some])
    unscaled = (rounded(WEIGHT) - WEIGHT) * seen
    assert np.linalg.norm((whole.reshape(WEIGHT.shape) - WEIGHT) * seen) < 0.7 * np.linalg.norm(unscaled)
    assert codec.needs_activations({})
    with expect_error(CodecError, code="params"):
        codec.params_for(spec, {"bits": 4})
