"""Empty tensors and scalars round-trip if their shape divides, or raise a typed error."""

from typing import Any, cast

import numpy as np
import pytest
from attrs import evolve
from squish_testing import expect_error
from squish_testing.codecs import read_region

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, Parts, TensorSpec
from squish_core.codecs.regions import full

SHAPES = [(), (0,), (3, 0), (0, 64), (0, 0), (2, 0, 64), (2, 64, 0)]
ENCODINGS = {
    "int8": CodecSpec("affine", {"bits": 8, "word": "i8"}),
    "groups": CodecSpec("affine", {"bits": 4, "group_size": 32, "offset": "zero_point"}),
    "flat": CodecSpec("affine", {"bits": 3, "group_size": 7, "axis": "flat", "offset": "bias"}),
    "search": CodecSpec("affine", {"bits": 4, "group_size": 32, "search": "mse"}),
    "columns": CodecSpec("affine", {"bits": 8, "axis": -2}),
    "palette": CodecSpec("palette", {"bits": 4}),
    "flat palette": CodecSpec("palette", {"bits": 3, "axis": "flat"}),
    "codebooks": CodecSpec("palette", {"bits": 4, "codebook_size": 64}),
    "vectors": CodecSpec("palette", {"bits": 4, "vector": 2}),
    "nf4": CodecSpec("palette", {"bits": 4, "table": "nf4", "scale_dtype": "f32", "group_size": 32}),
    "mask": CodecSpec("bitmask", {"sparsity": 0.5}),
    "mask over int8": CodecSpec("bitmask", {"dtype": "i8", "scale": "f16"}),
    "mask over a codebook": CodecSpec("bitmask", {"bits": 4}),
    "float8": CodecSpec("float8"),
    "mxfp4": CodecSpec("mx"),
    "nvfp4": CodecSpec("mx", {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "divide"}),
    "awq": CodecSpec("awq", {}, CodecSpec("affine", {"bits": 4})),
    "lowrank": CodecSpec("lowrank", {"rank": 1}, CodecSpec("affine", {"bits": 4, "axis": "flat"})),
    "masked": CodecSpec("masked", {"block_size": 8, "sparsity": 0.5}, CodecSpec("affine", {"bits": 4})),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ENCODINGS)
def test_empty_and_scalar_tensors_round_trip_or_raise(name: str, shape: tuple[int, ...]) -> None:
    encoding, spec = ENCODINGS[name], TensorSpec(name="w", shape=shape, dtype="f32")
    values = np.full(shape, 0.5, np.float32)
    try:
        if encoding.inner is not None:
            squish.registry().codec_type(encoding.inner.id).params_for(spec, encoding.inner.params)
        params = squish.registry().codec_type(encoding.id).params_for(spec, encoding.params)
        codec = squish.registry().codec(evolve(encoding, params=params))
    except CodecError:
        return
    codec = codec.from_params(codec.fit_params(lambda: iter([values]), spec), codec.inner)
    activations = np.ones(shape[-1:], np.float32) if codec.needs_activations(params) else None
    encoded = codec.encode(values, activations=activations)
    declared = {role: size for role, (_, size) in codec.parts(spec).items()}
    stored = {role: part.reshape(declared[role]) for role, part in encoded.items()}
    decoded = read_region(codec, cast(Parts, stored), spec, full(shape))
    assert decoded.shape == shape


@pytest.mark.parametrize("name", ["awq", "lowrank", "masked", "ggml.big_endian"])
def test_a_wrapper_without_an_inner_codec_is_refused(name: str) -> None:
    if name not in squish.registry().codecs:
        pytest.skip("brought by another plugin")
    with expect_error(CodecError, code="params", expected=f"the inner codec in brackets, such as {name}(int4)"):
        squish.registry().codec(CodecSpec(name))


@pytest.mark.parametrize(
    "params", [{"sparsty": 0.5}, {"sparsity": "half"}, {"sparsity": 1}, {"sparsity": float("nan")}]
)
def test_invalid_mask_parameters_are_refused(params: dict[str, Any]) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    with expect_error(CodecError, code="params"):
        squish.registry().codec_type("bitmask").params_for(spec, params)


@pytest.mark.parametrize("params", [{}, {"sparsity": 0.5}, {"block_size": 0, "sparsity": 0.5}, {"block_size": 16}])
def test_a_tile_mask_error_lists_the_parameters(params: dict[str, Any]) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    with expect_error(CodecError, code="params", expected="block_size of 1 or more, optionally sparsity from 0 to 1"):
        squish.registry().codec_type("masked").params_for(spec, params)


@pytest.mark.parametrize(
    "name", ["panels", "hf.awq_gemv", "hf.awq_fast", "hf.act_order", "npydir.int3", "npydir.sqint2"]
)
def test_the_message_names_a_codec_without_an_encoder(name: str) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    if name not in squish.registry().codecs:
        pytest.skip("brought by another plugin")
    with expect_error(CodecError, code="encode", hint="choose one that encodes") as caught:
        squish.registry().codec_type(name).params_for(spec, {})
    assert caught.value.message == f"{name} has no encoder"


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("affine", {"bits": 9}, "an integer from 1 to 8"),
        ("affine", {"bits": 4, "group_size": "abc"}, "an integer from 0 to 1099511627776"),
        ("affine", {"bits": 4, "search": "abc"}, "none or mse or activations"),
        ("affine", {"bits": 4, "scale_dtype": "f8_e8m0"}, "f32 or f16 or bf16"),
        ("palette", {"bits": 4, "table": "abc"}, "nf4, nf2 or numbers"),
        ("hqq", {"bits": 9}, "1, 2, 3, 4 or 8"),
    ],
)
def test_an_invalid_parameter_is_an_error_of_the_rule(name: str, params: dict[str, Any], expected: str) -> None:
    if name not in squish.registry().codecs:
        pytest.skip("brought by another plugin")
    with expect_error(CodecError, code="params", expected=expected):
        squish.registry().codec_type(name).params_for(TensorSpec(name="w", shape=(4, 64), dtype="f32"), params)
