"""The cache of keys and values: bounds of its error, its order and size, and which tokens stay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.kv import KEYS, VALUES, Cache, quantise, select

from squish_core.api import CodecError

RNG = np.random.default_rng(0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), st.sampled_from([KEYS, VALUES]), st.sampled_from([1e-20, 1e-3, 1.0, 1e30]))
def test_values_come_back_within_half_a_step(seed: int, axis: int, size: float) -> None:
    values = (np.random.default_rng(seed).normal(size=(2, 9, 16)) * size).astype(np.float32)
    found = quantise(values, axis)
    assert found.scale.shape == ((2, 1, 16) if axis == KEYS else (2, 9, 1))
    error = np.abs(found.dense().astype(np.float64) - values)
    assert (error <= found.scale / 2 * (1 + 1e-5)).all()


def test_keys_by_channel_survive_a_channel_with_outliers() -> None:
    """Why keys are scaled by channel: one large channel would take the steps of all the others."""
    keys = RNG.normal(size=(1, 64, 16)).astype(np.float32)
    keys[..., 3] *= 100
    errors = {axis: np.abs(quantise(keys, axis).dense() - keys)[..., :3].max() for axis in (KEYS, VALUES)}
    assert errors[KEYS] < errors[VALUES] / 20


def test_zeros_and_nothing() -> None:
    assert (quantise(np.zeros((1, 4, 8), np.float32), KEYS).dense() == 0).all()
    assert quantise(np.zeros((1, 0, 8), np.float32), KEYS).dense().shape == (1, 0, 8)
    with pytest.raises(CodecError, match="not finite"):
        quantise(np.full((1, 4, 8), np.inf, np.float32), VALUES)
    with pytest.raises(CodecError, match="empty"):
        Cache().fetch()


@pytest.mark.parametrize("pieces", [(100,), (1,) * 100, (37, 1, 62)])
def test_the_cache_keeps_order_and_the_newest_exactly(pieces: tuple[int, ...]) -> None:
    keys, values = (RNG.normal(size=(2, 100, 16)).astype(np.float32) for _ in range(2))
    cache, start = Cache(residual=24, group=8), 0
    for size in pieces:
        found = cache.update(keys[:, start : start + size], values[:, start : start + size])
        start += size
    assert len(cache) == 100
    for array, whole in zip(found, (keys, values)):
        np.testing.assert_array_equal(array[:, -24:], whole[:, -24:])
        cosine = (array * whole).sum() / np.sqrt(np.square(array).sum() * np.square(whole).sum())
        assert cosine > 0.99995
    quantised = 100 - 24 - (100 - 24) % 8
    assert cache.nbytes < 2 * 2 * 16 * (quantised * 1.6 + (100 - quantised) * 4)


def test_attention_is_hardly_changed() -> None:
    keys, values = (RNG.normal(size=(1, 256, 64)).astype(np.float32) for _ in range(2))
    query = RNG.normal(size=(1, 1, 64)).astype(np.float32)

    def attend(k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = np.exp(query @ k.swapaxes(1, 2) / 8)
        return scores / scores.sum() @ v

    found = Cache(residual=32).update(keys, values)
    np.testing.assert_allclose(attend(*found), attend(keys, values), atol=5e-3)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(CodecError, match="do not fit"):
        Cache().update(np.zeros((1, 4, 8)), np.zeros((1, 4, 9)))


def test_the_tokens_that_the_window_attends_to_stay() -> None:
    keys = RNG.normal(size=(2, 100, 16)).astype(np.float32) / 10
    queries = RNG.normal(size=(4, 8, 16)).astype(np.float32)
    keys[0, 40], keys[1, 70] = 3 * queries[:2].mean(axis=(0, 1)), 3 * queries[2:].mean(axis=(0, 1))
    kept = select(queries, keys, 20, kernel=1)
    assert kept.shape == (2, 20)
    assert 40 in kept[0]
    assert 70 in kept[1]
    assert (np.diff(kept, axis=-1) > 0).all()
    np.testing.assert_array_equal(kept[:, -8:], [range(92, 100)] * 2)
    wide = select(queries, keys, 20, kernel=5)
    assert set(range(38, 43)) <= set(wide[0].tolist())


def test_nothing_is_dropped_from_short_contexts() -> None:
    keys, queries = np.zeros((2, 10, 4), np.float32), np.zeros((2, 3, 4), np.float32)
    np.testing.assert_array_equal(select(queries, keys, 10), [range(10)] * 2)
    for bad in ({"keep": 2}, {"keep": 5, "kernel": 2}):
        with pytest.raises(CodecError, match="window does not fit"):
            select(queries, keys, **bad)
