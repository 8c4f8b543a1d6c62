"""Another codec's matrix in a new shape."""

import numpy as np
import pytest
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, TensorSpec


def reshaped(shape, stored):
    codec = CodecSpec("reshaped", {"shape": stored}, inner=CodecSpec("affine", {"bits": 4}))
    columns = stored[-1]
    rng = np.random.default_rng(0)
    parts = {
        "data": rng.integers(0, 256, (*stored[:-1], -(-columns // 2)), np.uint8),
        "scale": rng.random((*stored[:-1], 1), np.float32),
    }
    tensors = {
        "w": (TensorSpec(name="w", shape=tuple(shape), dtype="f32"), codec, parts),
        "stored": (TensorSpec(name="stored", shape=tuple(stored), dtype="f32"), codec.inner, parts),
    }
    return memory_file(squish.registry(), tensors)[0]


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (120,), (5, 24), (24, 5), (1, 120), (120, 1), (2, 3, 20)])
@pytest.mark.parametrize("stored", [[6, 20], [2, 3, 20], [24, 5], [1, 120]])
def test_values_equal_the_inner_matrix_reshaped(shape, stored):
    file = reshaped(shape, stored)
    values = file["stored"].numpy().reshape(shape)
    np.testing.assert_array_equal(file["w"].numpy(), values)
    for start in range(shape[0]):
        np.testing.assert_array_equal(file["w"][start : start + 2], values[start : start + 2])


@pytest.mark.parametrize("params", [{}, {"shape": [7]}, {"shape": "6x4"}, {"shape": [-6, -4]}, {"shape": [24], "x": 1}])
def test_a_shape_with_another_size_is_refused(params):
    codec = squish.registry().codec(CodecSpec("reshaped", params, inner=CodecSpec("affine", {"bits": 8})))
    with pytest.raises(CodecError) as caught:
        codec.parts(TensorSpec(name="w", shape=(4, 6), dtype="f32"))
    assert caught.value.code == "params"
