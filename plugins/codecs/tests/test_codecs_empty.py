"""Tensors without elements, and scalars: encoded where a shape divides and decoded to it, or refused in words."""

from typing import Any, cast

import numpy as np
import pytest

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, Parts, TensorSpec
from squish_core.codecs.regions import full
from squish_core.testing.codecs import read_region

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
def test_a_tensor_without_elements_or_axes(name: str, shape: tuple[int, ...]) -> None:
    wanted, spec = ENCODINGS[name], TensorSpec(name="w", shape=shape, dtype="f32")
    codec = squish.registry().codec(wanted)
    values = np.full(shape, 0.5, np.float32)
    try:
        if wanted.inner is not None:
            squish.registry().codec(wanted.inner.id).params_for(spec, wanted.inner.params)
        params = codec.params_for(spec, wanted.params)
    except CodecError:
        return
    params = codec.fit_params(lambda: iter([values]), spec, params)
    seen: dict[str, Any] = {"activations": np.ones(shape[-1:], np.float32)} if codec.needs_activations(params) else {}
    made = codec.encode(values, params, stats=seen)
    declared = {role: size for role, (_, size) in codec.parts(spec, params).items()}
    stored = {role: part.reshape(declared[role]) for role, part in made.items()}
    found = read_region(codec, cast(Parts, stored), spec, params, full(shape))
    assert found.shape == shape


@pytest.mark.parametrize("name", ["awq", "lowrank", "masked", "ggml.big_endian"])
def test_an_addition_alone_says_what_it_lacks(name: str) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    if name not in squish.registry().codecs:
        pytest.skip("brought by another plugin")
    with pytest.raises(CodecError, match=r"addition to another codec.*\(int4\)"):
        squish.registry().codec(name).params_for(spec, {})


@pytest.mark.parametrize(
    "params", [{"sparsty": 0.5}, {"sparsity": "half"}, {"sparsity": 1}, {"sparsity": float("nan")}]
)
def test_parameters_of_a_mask_that_cannot_be(params: dict[str, Any]) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    with pytest.raises(CodecError, match="bitmask cannot take"):
        squish.registry().codec("bitmask").params_for(spec, params)


@pytest.mark.parametrize("params", [{}, {"sparsity": 0.5}, {"block_size": 0, "sparsity": 0.5}, {"block_size": 16}])
def test_a_mask_of_tiles_says_what_it_needs(params: dict[str, Any]) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    codec = squish.registry().codec(CodecSpec("masked", params, inner=CodecSpec("affine", {"bits": 4})))
    with pytest.raises(CodecError, match="block_size=, 1 or more, and sparsity="):
        codec.params_for(spec, params)


@pytest.mark.parametrize("name", ["panels", "hf.awq_gemv", "hf.awq_fast", "hf.act_order", "npydir.sqint2"])
def test_what_is_decoded_only_says_so(name: str) -> None:
    spec = TensorSpec(name="w", shape=(4, 64), dtype="f32")
    if name not in squish.registry().codecs:
        pytest.skip("brought by another plugin")
    with pytest.raises(CodecError, match=f"{name} has no encoder"):
        squish.registry().codec(name).params_for(spec, {})


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("affine", {"bits": 9}, "an integer from 1 to 8"),
        ("affine", {"bits": 4, "group_size": "abc"}, "an integer from 0"),
        ("affine", {"bits": 4, "search": "abc"}, "none or mse or activations"),
        ("affine", {"bits": 4, "scale_dtype": "f8_e8m0"}, "f32 or"),
        ("palette", {"bits": 4, "table": "abc"}, "nf4"),
        ("hqq", {"bits": 9}, "1, 2, 3, 4 or 8"),
        ("lowrank", {"rank": 4}, r"as in lowrank\(int4\)"),
    ],
)
def test_a_parameter_that_no_tensor_can_have_is_the_rules_fault(
    name: str, params: dict[str, Any], expected: str
) -> None:
    if name not in squish.registry().codecs:
        pytest.skip("brought by another plugin")
    with pytest.raises(CodecError, match=expected) as error:
        squish.registry().codec(name).params_for(TensorSpec(name="w", shape=(4, 64), dtype="f32"), params)
    assert error.value.code == "params"
