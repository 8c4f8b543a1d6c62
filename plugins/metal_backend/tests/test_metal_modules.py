"""MLX modules loaded from files: quantized layers compute with the file's codes."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from squish_metal.modules import fill, packed
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, SquishError, TensorSpec


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 64)
        self.layers = [nn.Linear(64, 32), nn.Linear(32, 64, bias=False)]
        self.norm = nn.RMSNorm(64)

    def __call__(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


CODECS = {
    "embed.weight": ("affine", {"bits": 8, "group_size": 32}, (10, 64)),
    "layers.0.weight": ("affine", {"bits": 4, "group_size": 32, "offset": "bias"}, (32, 64)),
    "layers.0.bias": ("dense", {"dtype": "f16"}, (32,)),
    "layers.1.weight": ("mx", {}, (64, 32)),
    "norm.weight": ("dense", {"dtype": "bf16"}, (64,)),
    "unused": ("dense", {"dtype": "f32"}, (3,)),
}


def file_of(**changed):
    chance, tensors = np.random.default_rng(0), {}
    for name, (codec_id, params, shape) in {**CODECS, **changed}.items():
        codec, dtype = squish.registry().codec_type(codec_id), params.get("dtype", "f32")
        spec = TensorSpec(name=name, shape=shape, dtype=dtype)
        parts = codec.from_params(params).encode(chance.standard_normal(shape).astype(np.float32))
        tensors[name] = (spec, CodecSpec(codec_id, {} if codec_id == "dense" else params), parts)
    return memory_file(squish.registry(), tensors)[0]


def test_nested_modules_are_loaded():
    file, model, reference = file_of(), Tree(), Tree()
    names = fill(model, file)
    assert sorted(names) == sorted(set(CODECS) - {"unused"})
    kinds = [type(module) for module in (model.embed, *model.layers, model.norm)]
    assert kinds == [nn.QuantizedEmbedding, nn.QuantizedLinear, nn.QuantizedLinear, nn.RMSNorm]
    assert [layer.mode for layer in model.layers] == ["affine", "mxfp4"]
    reference.load_weights([(name, mx.array(file[name].numpy().astype(np.float32))) for name in names])
    ids = mx.array([3, 1, 9])
    np.testing.assert_allclose(np.array(model(ids)), np.array(reference(ids)), rtol=1e-3, atol=1e-4)
    weights = packed(file, "layers.0.weight")
    assert np.array(model.layers[0].weight).tobytes() == weights.weight.tobytes()


def test_scales_and_values_get_the_requested_dtype():
    model = Tree()
    fill(model, file_of(), mx.float16)
    assert {model.embed.scales.dtype, model.layers[0].biases.dtype, model.norm.weight.dtype} == {mx.float16}
    assert model.layers[1].scales.dtype == mx.uint8


@pytest.mark.parametrize(
    ("name", "tensor", "found"),
    [
        ("norm.weight", ("dense", {"dtype": "f32"}, (63,)), [63]),
        ("layers.1.weight", ("mx", {}, (32, 32)), [32, 32]),
    ],
)
def test_a_shape_mismatch_is_refused(name, tensor, found):
    with expect_error(SquishError, code="shape", tensor=name, found=found):
        fill(Tree(), file_of(**{name: tensor}))


def test_a_missing_tensor_is_named():
    class More(Tree):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 3, bias=False)

    with expect_error(SquishError, code="missing", tensor="head.weight"):
        fill(More(), file_of())
