"""Masked codes: the inner codes, with scales and offsets of 0 in the tiles that the mask zeroes."""

import numpy as np
import pytest
from squish_testing.codecs import check_arrays, dequantized
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec, full

INNER = {
    "int4": CodecSpec("squizd.int4", {"group_size": 64}),
    "int4, one scale": CodecSpec("squizd.int4", {}),
    "int4, groups across rows": CodecSpec("squizd.int4", {"group_size": 96}),
    "int2": CodecSpec("squizd.int2", {"group_size": 32}),
    "symmetric": CodecSpec("affine", {"bits": 8, "group_size": 32, "scale_dtype": "f16"}),
    "one scale per row": CodecSpec("affine", {"bits": 4}),
    "zero points": CodecSpec("affine", {"bits": 4, "group_size": 32, "offset": "zero_point"}),
    "groups down columns": CodecSpec("affine", {"bits": 4, "group_size": 16, "axis": -2}),
    "blocks": CodecSpec("ggml.q8_0"),
}


def masked(inner, shape, side, seed=0):
    if inner.id.startswith("ggml."):
        pytest.importorskip("squish_ggml")
    chance = np.random.default_rng(seed)
    values = chance.standard_normal(shape).astype(np.float32)
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    codec = squish.registry().codec_type(inner.id)
    completed = codec.from_params(codec.params_for(spec, inner.params))
    params = completed.fit_params(lambda: iter([values]), spec)
    own = {"block_size": side}
    bound = squish.registry().codec(CodecSpec("masked", own, CodecSpec(inner.id, params)))
    parts = codec.from_params(params).encode(values)
    parts["mask"] = chance.integers(0, 256, bound.parts(spec)["mask"][1], np.uint8)
    return bound, spec, own, {role: np.asarray(part) for role, part in parts.items()}


def decoded(codec, spec, params, parts, region):
    out = np.empty([part.stop - part.start for part in region], np.float32)
    codec.decode(parts, spec, region=region, out=out)
    return out


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize(("shape", "side"), [((32, 192), 64), ((64, 192), 32), ((32, 192), 48), ((2, 32, 96), 16)])
def test_codes_times_scales_are_the_masked_values(name, shape, side):
    codec, spec, params, parts = masked(INNER[name], shape, side)
    rows = slice(0, shape[0]), *(slice(0, size) for size in shape[1:])
    for region in (full(shape), (slice(shape[0] // 2, shape[0]), *rows[1:])):
        codes = codec.codes(parts, spec, region)
        assert codes.layout == codec.code_layout(spec)
        values = decoded(codec, spec, params, parts, region)
        np.testing.assert_allclose(dequantized(codes), values, rtol=1e-5, atol=1e-6)
        assert (dequantized(codes)[values == 0] == 0).all()
    assert (values == 0).any()
    check_arrays(name, codec.codes(parts, spec, full(shape)), codes.layout.group_sizes(shape))


@pytest.mark.parametrize(
    "inner", [CodecSpec("palette", {"bits": 4}), CodecSpec("mx"), CodecSpec("dense", {"dtype": "f32"})]
)
def test_codes_whose_scales_cannot_be_zero_have_no_layout(inner):
    spec = TensorSpec(name="w", shape=(32, 64), dtype="f32")
    codec = squish.registry().codec(CodecSpec("masked", {"block_size": 16}, inner))
    assert codec.code_layout(spec) is None
    assert codec.codes({}, spec, full(spec.shape)) is None


@pytest.mark.parametrize(
    ("to", "package"), [("mlpackage", "squish_ane"), ("mlx", "squish_mlx"), ("ztensor", "squish_ztensor")]
)
def test_masked_int4_is_repacked_exactly(tmp_path, to, package):
    pytest.importorskip(package)
    _, spec, params, parts = masked(INNER["int4"], (64, 128), 32)
    scales = parts["table"][:, 2].view(np.float32).astype(np.float16)
    parts["table"][:, 2:] = np.stack([scales, 0 * scales], 1).astype(np.float32).view(np.uint32)
    encoding = CodecSpec("masked", params, CodecSpec("squizd.int4", {"group_size": 64}))
    spec = TensorSpec(name="model.layers.0.mlp.up_proj.weight", shape=spec.shape, dtype="f32")
    file, _ = memory_file(squish.registry(), {spec.name: (spec, encoding, parts)})
    report = squish.convert(file, tmp_path / "out", to)
    assert [(step.action, step.exactness.kind) for step in report.steps] == [("repack", "values")]
    with squish.open(tmp_path / "out") as out:
        assert (out[spec.name].numpy() == file[spec.name].numpy()).all()
