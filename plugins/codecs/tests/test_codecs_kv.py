"""The KV cache: error bound, order, size, cost and token selection."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.kv import KEYS, VALUES, Cache, quantize, select_tokens

from squish_core.api import CodecError

RNG = np.random.default_rng(0)


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Reference softmax attention in f64."""
    scores = query.astype(np.float64) @ keys.astype(np.float64).swapaxes(-1, -2) / np.sqrt(keys.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ values.astype(np.float64))


def outlier_keys(tokens: int, channels: int = 128, heads: int = 4) -> np.ndarray:
    """Realistic keys: a few channels are many times larger than the others (KIVI, figure 2)."""
    keys = RNG.normal(size=(1, heads, tokens, channels)).astype(np.float32)
    keys[..., [3, 40, 77]] *= 20
    return keys


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from([KEYS, VALUES]),
    st.sampled_from([1e-9, 1e-3, 1.0, 5e3]),
    st.sampled_from([2, 4, 8]),
    st.floats(-3, 3),
)
def test_the_error_is_at_most_half_a_step(seed: int, axis: int, size: float, bits: int, shift: float) -> None:
    values = ((np.random.default_rng(seed).normal(size=(2, 32, 16)) + shift) * size).astype(np.float32)
    groups = quantize(values, axis, bits, 8)
    assert groups.scale.shape == groups.zero.shape == ((2, 4, 16) if axis == KEYS else (2, 32, 2))
    assert groups.codes.shape == (2, 32, 16 * bits // 8)
    step = np.repeat(groups.scale.astype(np.float64), 8, axis=axis)
    error = np.abs(groups.dequantize().astype(np.float64) - values)
    assert (error <= step / 2 + 1e-6 * np.abs(values)).all()


def test_keys_by_channel_survive_channels_with_outliers() -> None:
    """KIVI groups keys per channel because one large channel would coarsen its neighbors' scale."""
    keys = outlier_keys(256)
    usual = np.setdiff1d(np.arange(128), [3, 40, 77])
    for bits in (2, 4, 8):
        errors = {axis: np.abs(quantize(keys, axis, bits).dequantize() - keys)[..., usual].mean() for axis in (-2, -1)}
        assert errors[KEYS] < errors[VALUES] / 2


@pytest.mark.parametrize(("bits", "ratio"), [(2, 16 / 3), (4, 16 / 5), (8, 16 / 9)])
def test_the_size_matches_the_paper(bits: int, ratio: float) -> None:
    """KIVI: an f16 scale and zero point per 32 values add one bit per value; the residual stays f16."""
    cache = Cache(bits=bits, group_size=32, residual=128)
    keys = outlier_keys(128 + 1024).astype(np.float16)
    cache.update_and_fetch(keys, keys)
    half = keys.nbytes * 2 // (128 + 1024)
    assert cache.nbytes == 128 * half + round(1024 * half / ratio)


@pytest.mark.parametrize(("bits", "largest"), [(2, 0.35), (4, 0.07), (8, 0.005)])
def test_attention_over_outlier_channels_changes_little(bits: int, largest: float) -> None:
    keys, values = outlier_keys(512), RNG.normal(size=(1, 4, 512, 128)).astype(np.float32)
    query = RNG.normal(size=(1, 4, 8, 128)).astype(np.float32) / 20
    attended = attend(query, *Cache(bits=bits, residual=128).update_and_fetch(keys, values))
    reference = attend(query, keys, values)
    assert np.linalg.norm(attended - reference) / np.linalg.norm(reference) < largest


@pytest.mark.parametrize("pieces", [(100,), (1,) * 100, (37, 1, 62)])
def test_tokens_keep_their_order_and_the_newest_their_values(pieces: tuple[int, ...]) -> None:
    keys, values = (RNG.normal(size=(1, 2, 100, channels)).astype(np.float32) for channels in (16, 24))
    cache, start = Cache(residual=24, group_size=8), 0
    for size in pieces:
        cached = cache.update_and_fetch(keys[..., start : start + size, :], values[..., start : start + size, :])
        start += size
    assert len(cache) == cache.offset == 100
    for array, whole in zip(cached, (keys, values)):
        assert array.shape == whole.shape
        np.testing.assert_array_equal(array[..., -24:, :], whole[..., -24:, :])
        np.testing.assert_allclose(array, whole, atol=0.02)
        assert not array.flags.writeable


def test_single_tokens_give_the_same_cache_as_one_prompt() -> None:
    keys, values = (RNG.normal(size=(3, 200, 32)).astype(np.float32) for _ in range(2))
    whole, steps = Cache(bits=4, residual=40), Cache(bits=4, residual=40)
    expected = whole.update_and_fetch(keys, values)
    for token in range(200):
        cached = steps.update_and_fetch(keys[:, token : token + 1], values[:, token : token + 1])
    for one, other in zip(cached, expected):
        np.testing.assert_array_equal(one, other)


def test_a_decode_step_touches_only_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of n steps is linear: each token is dequantized once and copied a constant number of times."""
    from squish_codecs.kv import groups

    dequantized: list[int] = []
    original = groups.Groups.dequantize

    def counted(self: groups.Groups) -> Any:
        dequantized.append(self.codes.shape[-2])
        return original(self)

    monkeypatch.setattr(groups.Groups, "dequantize", counted)
    cache, new = Cache(residual=32), np.ones((1, 1, 64), np.float32)
    for _ in range(2000):
        cache.update_and_fetch(new, new)
    assert sum(dequantized) == 2 * ((2000 - 32) // 32 * 32)
    assert max(dequantized) == 32


def test_a_refused_group_leaves_the_cache_unchanged() -> None:
    cache = Cache(residual=0, group_size=8)
    ones = np.ones((1, 8, 8), np.float32)
    before = [array.copy() for array in cache.update_and_fetch(ones, ones)]
    with pytest.raises(CodecError) as caught:
        cache.update_and_fetch(ones * 1e9, ones)
    assert caught.value.code == "range"
    assert len(cache) == 8
    for one, other in zip(cache.fetch(), before):
        np.testing.assert_array_equal(one, other)


def test_zeros_and_empty_input_round_trip() -> None:
    assert (quantize(np.zeros((1, 32, 8), np.float32), KEYS, 2).dequantize() == 0).all()
    assert quantize(np.zeros((1, 0, 8), np.float32), KEYS).dequantize().shape == (1, 0, 8)
    with pytest.raises(CodecError) as caught:
        quantize(np.full((1, 32, 32), np.inf, np.float32), VALUES)
    assert caught.value.code == "range"
    with pytest.raises(CodecError) as caught:
        Cache().fetch()
    assert caught.value.code == "empty"


@pytest.mark.parametrize(("values", "more"), [
    (np.zeros((1, 33, 8)), {}), (np.zeros((1, 32, 8)), {"bits": 3}), (np.zeros((1, 32, 3)), {"bits": 2}),
    (np.zeros(32), {}), (np.zeros((1, 32, 8)), {"group_size": 0}),
])  # fmt: skip
def test_incomplete_groups_are_refused(values: np.ndarray, more: dict[str, int]) -> None:
    with pytest.raises(CodecError) as caught:
        quantize(values, KEYS, **more)
    assert caught.value.code == "shape"


def test_mismatched_keys_and_values_are_refused() -> None:
    cache = Cache()
    cache.update_and_fetch(np.zeros((1, 4, 8)), np.zeros((1, 4, 32)))
    for keys, values in (((1, 4, 8), (1, 3, 32)), ((2, 4, 8), (2, 4, 32)), ((1, 4, 32), (1, 4, 8)), ((4,), (4,))):
        with pytest.raises(CodecError) as caught:
            cache.update_and_fetch(np.zeros(keys), np.zeros(values))
        assert caught.value.code == "shape"
    assert len(cache) == 4


def test_invalid_settings_are_refused_at_the_first_token() -> None:
    for cache in (Cache(), Cache(bits=3, group_size=8), Cache(group_size=0)):
        with pytest.raises(CodecError) as caught:
            cache.update_and_fetch(np.zeros((1, 1, 8)), np.zeros((1, 1, 8)))
        assert (caught.value.code, len(cache)) == ("shape", 0)


def test_tokens_with_attention_from_the_window_are_kept() -> None:
    keys = RNG.normal(size=(2, 100, 16)).astype(np.float32) / 10
    queries = RNG.normal(size=(4, 8, 16)).astype(np.float32)
    keys[0, 40], keys[1, 70] = 3 * queries[:2].mean(axis=(0, 1)), 3 * queries[2:].mean(axis=(0, 1))
    kept = select_tokens(queries, keys, 20, kernel=1)
    assert kept.shape == (2, 20)
    assert 40 in kept[0]
    assert 70 in kept[1]
    assert (np.diff(kept, axis=-1) > 0).all()
    np.testing.assert_array_equal(kept[:, -8:], [range(92, 100)] * 2)
    wide = select_tokens(queries, keys, 20, kernel=5)
    assert set(range(38, 43)) <= set(wide[0].tolist())
    both = select_tokens(np.stack([queries, queries[::-1]]), np.stack([keys, keys]), 20, kernel=1)
    np.testing.assert_array_equal(both[0], kept)


def test_nothing_is_dropped_from_short_contexts() -> None:
    keys, queries = np.zeros((2, 10, 4), np.float32), np.zeros((2, 3, 4), np.float32)
    np.testing.assert_array_equal(select_tokens(queries, keys, 10), [range(10)] * 2)
    for bad in ({"keep": 2}, {"keep": 5, "kernel": 2}):
        with pytest.raises(CodecError) as caught:
            select_tokens(queries, keys, **bad)
        assert caught.value.code == "shape"


def test_a_long_prompt_is_pruned_then_quantized() -> None:
    """SnapKV with KIVI: the first call returns the whole prompt, later steps see the kept tokens, in fewer bytes."""
    keys, values = outlier_keys(600), RNG.normal(size=(1, 4, 600, 128)).astype(np.float32)
    keys[..., 123, :] *= 3
    queries = np.repeat(keys[..., 123:124, :], 16, axis=-2)
    cache = Cache(bits=4, residual=32, keep=160, kernel=5)
    prompt = cache.update_and_fetch(keys, values, queries)
    np.testing.assert_array_equal(prompt[0], keys)
    assert (len(cache), cache.offset) == (160, 600)
    new = np.ones((1, 4, 1, 128), np.float32)
    kept, _ = cache.update_and_fetch(new, new)
    assert (kept.shape[-2], cache.offset) == (161, 601)
    chosen = select_tokens(queries, keys, 160, kernel=5)[0, 0]
    assert 123 in chosen
    np.testing.assert_allclose(kept[0, 0, :160], keys[0, 0, chosen], atol=4)
    np.testing.assert_array_equal(kept[0, 0, -33:-1], keys[0, 0, chosen[-32:]])
    assert cache.nbytes < 2 * keys.nbytes / 600 * 161 / 3


def test_a_long_prompt_needs_queries() -> None:
    cache, prompt = Cache(keep=4), np.zeros((1, 8, 32), np.float32)
    with pytest.raises(CodecError) as caught:
        cache.update_and_fetch(prompt, prompt)
    assert (caught.value.code, len(cache), cache.offset) == ("shape", 0, 0)
