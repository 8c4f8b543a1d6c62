"""Codebook fitting: few distinct values are kept exactly, and the k-means error is near the optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import Palette
from squish_codecs.palette.fit import codebook, nearest_vectors

from squish_core.api import CodecError, TensorSpec, full

quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)
BEST = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}
"""Least squared error of 2**bits levels for a normal distribution (Max, 1960)."""


def decoded(params, values):
    codec, spec = Palette(), TensorSpec(name="w", shape=values.shape, dtype="f32")
    parts = codec.from_params(codec.params_for(spec, params)).encode(values)
    declared = codec.from_params(params).parts(spec)
    assert {role: part.shape for role, part in parts.items()} == {role: shape for role, (_, shape) in declared.items()}
    out = np.empty(values.shape, np.float32)
    codec.from_params(params).decode(parts, spec, region=full(values.shape), out=out)
    return out


@pytest.mark.parametrize("bits", BEST)
def test_kmeans_is_near_optimal_for_normal_values(bits):
    values = np.random.default_rng(0).standard_normal((1 << 16, 1)).astype(np.float32)
    table = codebook(values, 1 << bits, "kmeans")
    error = np.square(values - table[nearest_vectors(table, values)]).mean()
    assert error < 1.03 * BEST[bits]


@quick
@given(st.integers(1, 16), st.integers(0, 2**32 - 1))
def test_few_distinct_values_are_kept_exactly(count, seed):
    chance = np.random.default_rng(seed)
    levels = chance.standard_normal(count).astype(np.float16)
    values = chance.choice(levels, (6, 8)).astype(np.float32)
    np.testing.assert_array_equal(decoded({"bits": 4, "codebook_dtype": "f16"}, values), values)


@quick
@given(st.sampled_from(["kmeans", "uniform"]), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_indices_point_to_the_nearest_entry(fit, bits, seed):
    values = np.random.default_rng(seed).standard_normal((5, 16)).astype(np.float32)
    codec, spec = Palette(), TensorSpec(name="w", shape=values.shape, dtype="f32")
    parts = codec.from_params({"bits": bits, "fit": fit}).encode(values)
    values_decoded = decoded({"bits": bits, "fit": fit}, values)
    least = np.abs(values[..., None] - parts["codebook"]).min(axis=-1)
    np.testing.assert_allclose(np.abs(values - values_decoded), least, atol=1e-7)
    assert codec.from_params({"bits": bits}).parts(spec)["codebook"] == ("f32", (1 << bits,))


def test_uniform_steps_reach_both_ends():
    values = np.array([[-3.0], [1.0], [5.0]], np.float32)
    np.testing.assert_array_equal(codebook(values, 5, "uniform")[:, 0], [-3, -1, 1, 3, 5])


@pytest.mark.parametrize(
    "params",
    [
        {"bits": 4, "codebook_size": 64},
        {"bits": 4, "codebook_size": 64, "axis": "flat", "codebook_dtype": "f16"},
        {"bits": 3, "vector": 2, "vector_axis": -1},
        {"bits": 4, "vector": 4, "vector_axis": -2, "axis": "flat", "codebook_dtype": "bf16"},
        {"bits": 4, "vector": 2, "vector_axis": -2, "codebook_size": 128},
    ],
)
@pytest.mark.parametrize("fit", ["kmeans", "uniform"])
def test_groups_and_vectors_reduce_the_error(params, fit):
    """The error with any number of codebooks stays below the variance."""
    values = np.random.default_rng(1).standard_normal((16, 32)).astype(np.float32)
    assert np.square(decoded({**params, "fit": fit}, values) - values).mean() < 0.9


def test_fitting_is_deterministic():
    values = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    first, second = (Palette.from_params({"bits": 4}).encode(values) for _ in range(2))
    assert all((first[role] == second[role]).all() for role in first)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_non_finite_values_are_refused(bad):
    values = np.ones((4, 8), np.float32)
    values[1, 1] = bad
    with pytest.raises(CodecError):
        Palette.from_params({"bits": 4}).encode(values)


def test_sampling_reaches_every_column(monkeypatch):
    """Each column has its own level, so sampling must reach every column."""
    monkeypatch.setattr("squish_codecs.palette.fit.SAMPLE", 1000)
    values = np.tile(np.arange(16, dtype=np.float32), (64, 1))
    np.testing.assert_array_equal(decoded({"bits": 4}, values), values)
    noise = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    assert np.square(decoded({"bits": 4}, noise) - noise).mean() < 1.5 * BEST[4]
