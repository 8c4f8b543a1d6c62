"""Norms with a constant: NaN and infinities pass through without a word from NumPy, and biases stay as they are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from squish_convert.expressions import Add
from squish_models.tables import norm
from test_models_bad_input import FIRST, mapped, model_arrays

NORM = "model.layers.0.input_layernorm.weight"
SIGNALING = np.array([0x7FA00000], np.uint32).view(np.float32)[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, SIGNALING])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_values_that_are_not_finite_pass_through_a_constant(bad: float, dtype: str) -> None:
    arrays = model_arrays("gemma2", FIRST["gemma2"], dtype)
    arrays[NORM] = arrays[NORM].copy()
    with np.errstate(all="ignore"):
        arrays[NORM][3] = bad
        expected = arrays[NORM].astype(np.float32) + np.float32(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = mapped(arrays, FIRST["gemma2"])
        result = file["blk.0.attn_norm.weight"].numpy()
        exactness = file.change("blk.0.attn_norm.weight").exactness
    np.testing.assert_array_equal(result, expected)
    assert exactness is not None
    assert exactness.error is None or np.isfinite(exactness.error)


def test_the_bias_of_a_norm_has_no_constant() -> None:
    """As llama.cpp's converter: Nemotron's norms are stored as weight - 1, their biases as they are."""
    weight, bias = norm("input_layernorm", "attn_norm", add=1.0, biased=True).rules()
    assert isinstance(weight.of, Add)
    assert bias.of == "model.layers.{n}.input_layernorm.bias"
