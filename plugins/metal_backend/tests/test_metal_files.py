"""Codes of other formats are loaded into MLX arrays without decoding to floats."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from squish_codecs.api import Affine, SquizdInt2, SquizdInt4
from squish_metal.modules import fill, packed
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec

NAME, SHAPE = "model.layers.0.mlp.up_proj.weight", (32, 128)


@pytest.fixture
def source():
    """Gaussian values."""
    values = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    spec = TensorSpec(name=NAME, shape=SHAPE, dtype="f32")
    return memory_file(squish.registry(), {NAME: (spec, CodecSpec("dense"), {"data": values})})[0]


@pytest.fixture
def no_floats(monkeypatch):
    """Make decoding and encoding fail."""

    def close():
        def fail(*_, **__):
            raise AssertionError("values were made of codes")

        for codec in (Affine, SquizdInt2, SquizdInt4):
            for method in ("decode", "encode"):
                monkeypatch.setattr(codec, method, fail)

    return close


def halves(table, column):
    return table[:, column].view(np.float32)


# Target, encoding, and the expected MLX arrays from the stored parts: bytes of codes, scales, biases.
FORMATS = {
    "npy directory, q4a": (
        "npydir", "affine:bits=4,group_size=64,offset=bias",
        lambda parts: (parts["data"], parts["scale"], parts["offset"]),
    ),
    "npy directory, int8": (
        "npydir", "affine:bits=8,word=i8,group_size=64",
        lambda parts: (parts["data"].view(np.uint8) ^ 0x80, parts["scale"], -128 * parts["scale"]),
    ),
    "npy directory, int2": (
        "npydir", "int2", lambda parts: (parts["data"], parts["scale"], parts["offset"]),
    ),
    "SQUIZD INT4": (
        "squizd", "squizd.int4:group_size=64",
        lambda parts: (
            parts["codes"] ^ 0x88, halves(parts["table"], 2),
            halves(parts["table"], 3) - 8 * halves(parts["table"], 2).astype(float),
        ),
    ),
    "SQUIZD INT2": (
        "squizd", "squizd.int2:group_size=64",
        lambda parts: (parts["codes"], halves(parts["table"], 2), halves(parts["table"], 3)),
    ),
    **{f"AFQ {bits} bits": (
        "uqff", f"afq{bits}", lambda parts: (parts["data"], parts["scale"], parts["offset"]),
    ) for bits in (2, 3, 4, 6, 8)},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_codes_of_files_go_into_mlx_arrays_without_floats(source, no_floats, tmp_path, name):
    target, encoding, expected = FORMATS[name]
    path = tmp_path / "made"
    squish.convert(source, path, to=target, encode=encoding)
    with squish.open(path) as file:
        tensor = file[NAME]
        values = tensor.numpy()
        no_floats()
        encoding = tensor.bound.encoding
        parts = {role: np.array(part[...]) for role, part in tensor.bound.parts.items()}
        weights = packed(file, NAME)
        codes, scales, biases = expected(parts)
        assert weights.weight.tobytes() == codes.tobytes()
        np.testing.assert_array_equal(weights.scales.reshape(-1), scales.astype(np.float32).reshape(-1))
        np.testing.assert_array_equal(weights.biases.reshape(-1), biases.astype(np.float32).reshape(-1))
        model = Renamed()
        fill(model, file)
        (layer,) = model.model["layers"]
        assert isinstance(layer["mlp"]["up_proj"], nn.QuantizedLinear)
        x = mx.array(np.random.default_rng(1).standard_normal((3, SHAPE[1]), np.float32))
        np.testing.assert_allclose(np.array(model(x)), np.array(x) @ values.T, rtol=1e-4, atol=1e-4)


class Renamed(nn.Module):
    """One linear layer under the name in the files."""

    def __init__(self):
        super().__init__()
        self.model = {"layers": [{"mlp": {"up_proj": nn.Linear(SHAPE[1], SHAPE[0], bias=False)}}]}

    def __call__(self, x):
        return self.model["layers"][0]["mlp"]["up_proj"](x)
