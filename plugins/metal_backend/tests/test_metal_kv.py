"""The KV cache of MLX: the interface of mlx_lm's caches, types, sizes, trimming."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from squish_metal.kv import Cache
from squish_testing import expect_error

from squish_core.api import CodecError

CHANCE = np.random.default_rng(5)


def tokens(count, channels=64, dtype=mx.float32):
    return mx.array(CHANCE.standard_normal((1, 2, count, channels)).astype(np.float32)).astype(dtype)


def updated(cache, keys, values, steps):
    for start, stop in zip(steps, steps[1:]):
        fetched = cache.update_and_fetch(keys[..., start:stop, :], values[..., start:stop, :])
    return fetched


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_results_and_the_residual_have_the_type_of_the_input(bits, dtype):
    cache, keys, values = Cache(bits, 32, 32), tokens(100, dtype=dtype), tokens(100, dtype=dtype)
    fetched = updated(cache, keys, values, [0, 70, 71, 72, 100])
    assert [array.dtype for array in fetched] == [dtype, dtype]
    packed, newest, offset, settings = cache.state
    assert [array.dtype for array in newest] == [dtype, dtype]
    assert (packed[0][1].dtype, offset, settings, newest[0].shape[-2]) == (dtype, 100, (bits, 32, 32), 36)
    for array, original in zip(fetched, (keys, values)):
        assert array.shape == original.shape
        assert (array[..., 64:, :] == original[..., 64:, :]).all().item()
        gap = mx.abs(array.astype(mx.float32) - original.astype(mx.float32)).max().item()
        assert gap < {2: 2.5, 4: 0.5, 8: 0.06}[bits]


def test_keys_are_grouped_by_channel_and_values_by_token():
    keys = tokens(64)
    keys = keys * mx.where(mx.arange(64) == 3, 100.0, 1.0)  # a channel of outliers
    cache = Cache(8, 32, 0)
    cache.update_and_fetch(keys, keys)
    fetched = cache.update_and_fetch(tokens(1), tokens(1))
    usual = [channel for channel in range(32) if channel != 3]
    errors = [mx.abs(array[..., :64, :] - keys)[..., mx.array(usual)].max().item() for array in fetched]
    assert errors[0] < errors[1] / 5


def test_single_tokens_give_the_same_cache_as_one_prompt():
    keys, values = tokens(150), tokens(150)
    one, many = Cache(4, 32, 32), Cache(4, 32, 32)
    one.update_and_fetch(keys[..., :149, :], values[..., :149, :])
    updated(many, keys, values, [*range(150)])
    for left, right in zip(*(updated(cache, keys, values, [149, 150]) for cache in (one, many))):
        assert mx.allclose(left, right, atol=1e-5).item()
    assert one.nbytes == many.nbytes


@pytest.mark.parametrize("count", [0, 1, 20, 36, 50, 99, 100, 1000])
def test_trimming_removes_the_newest_tokens(count):
    keys, values = tokens(100), tokens(100)
    cache, short = Cache(8, 32, 32), Cache(8, 32, 32)
    updated(cache, keys, values, [0, 100])
    left = 100 - min(count, 100)
    assert cache.is_trimmable()
    assert (cache.trim(count), cache.offset, cache.size(), cache.empty()) == (100 - left, left, left, left == 0)
    if left:
        updated(short, keys, values, [0, left])
    more = tokens(40), tokens(40)
    for trimmed, expected in zip(cache.update_and_fetch(*more), short.update_and_fetch(*more)):
        assert trimmed.shape == expected.shape
        assert mx.allclose(trimmed, expected, atol=0.06).item()


def test_the_state_is_a_tree_that_restores_the_cache():
    keys, values = tokens(100), tokens(100)
    for steps in ([0, 10], [0, 100]):
        cache = Cache(4, 32, 32)
        updated(cache, keys, values, steps)
        mx.eval([cache.state])
        assert all(leaf is None or isinstance(leaf, (mx.array, int)) for _, leaf in tree_flatten(cache.state))
        again = Cache.from_state(cache.state)
        new = tokens(1), tokens(1)
        for one, other in zip(cache.update_and_fetch(*new), again.update_and_fetch(*new)):
            assert (one == other).all().item()
    empty = Cache.from_state(Cache(2, 64, 8).state)
    assert (empty.offset, empty.empty(), empty.state[3]) == (0, True, (2, 64, 8))


def test_masks_are_causal():
    cache = Cache()
    assert (cache.make_mask(1), cache.make_mask(5)) == (None, "causal")
    cache.update_and_fetch(tokens(3), tokens(3))
    expected = np.tril(np.ones((2, 5), bool), 3)
    assert (np.array(cache.make_mask(2, return_array=True)) == expected).all()
    windowed = np.array(cache.make_mask(2, window_size=2))
    assert windowed.tolist() == [[False, False, True, True, False], [False, False, False, True, True]]


@pytest.mark.parametrize("settings", [(1, 32, 0), (4, 16, 0), (4, 32, -1)])
def test_settings_that_mlx_lacks_are_refused(settings):
    with expect_error(CodecError, code="params"):
        Cache(*settings)


def test_groups_must_divide_the_channels_of_values():
    with expect_error(CodecError, code="shape", expected="a multiple of 32"):
        Cache().update_and_fetch(tokens(1, 80), tokens(1, 80))


def test_mlx_lm_does_not_take_it_for_a_cache_of_its_own_packing():
    assert not hasattr(Cache(), "bits")
    assert not hasattr(Cache(), "to_quantized")
