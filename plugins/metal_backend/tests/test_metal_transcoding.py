"""Codes are repacked for MLX unchanged: MLX's and the NumPy codecs' decoded values are bit-identical."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import Packing
from squish_metal import device, forms, transcode
from squish_metal.backend import Metal
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import Availability, BoundEncoding, CodecSpec, Encoding, SquishError, TensorSpec, full

quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def stored(codec_id, params, shape, chance, **replacements):
    """Random parts of a codec; floats are small f16 values by default."""
    codec, spec = squish.registry().codec_type(codec_id), TensorSpec(name="w", shape=shape, dtype="f32")
    parts = {}
    for role, (dtype, size) in codec.from_params(params).parts(spec).items():
        kind = squish.api.dtypes.to_numpy(dtype)
        if kind.kind == "f" or dtype == "bf16":
            parts[role] = chance.standard_normal(size).astype(kind)
        else:
            parts[role] = chance.integers(0, 256, (*size[:-1], size[-1] * kind.itemsize), np.uint8).view(kind)
    return codec, spec, {**parts, **replacements}


def packed(codec, spec, params, parts):
    bound = codec.from_params(params)
    encoding = Encoding(codec=bound.specification)
    return transcode.pack(forms.form_of(bound, spec), BoundEncoding(bound, spec, encoding, parts))


def test_a_codec_without_codes_has_no_form_in_mlx():
    """TCA-TBE parameters count the values of the whole tensor and do not apply to a row."""
    spec = TensorSpec(name="w", shape=(64, 64), dtype="bf16")
    params = {"base_exponent": 120, "n_high": 64 * 64}
    assert forms.form_of(squish.registry().codec(CodecSpec("tca_tbe", params)), spec) is None


@pytest.mark.parametrize(
    ("codec_id", "params", "group", "bits"),
    [("squizd.int4", {"group_size": 96}, 32, 4), ("squizd.int2", {}, 128, 2), ("ggml.q4_k", {}, 32, 4),
     ("affine", {"bits": 7, "axis": "flat"}, 128, 8)],
)  # fmt: skip
def test_the_form_follows_the_declared_layout(codec_id, params, group, bits):
    """A tensor of 2^36 elements: nothing of its size is allocated."""
    spec = TensorSpec(name="w", shape=(1 << 20, 1 << 16), dtype="f32")
    form = forms.form_of(squish.registry().codec(CodecSpec(codec_id, params)), spec)
    assert (form.group_size, form.bits) == (group, bits)


def test_boxes_of_several_rows_are_repeated_per_row():
    shape, params = (8, 128), {"bits": 4, "signed": True, "grid": [4, 2], "scale_dtype": "f16"}
    codec, spec, parts = stored("boxes", params, shape, np.random.default_rng(0))
    weights = packed(codec, spec, params, parts)
    np.testing.assert_array_equal(dequantized(weights), decoded(codec, spec, params, parts))


def dequantized(weights):
    form = weights.form
    arrays = [None if part is None else mx.array(part) for part in (weights.weight, weights.scales, weights.biases)]
    values = mx.dequantize(*arrays, group_size=form.group_size, bits=form.bits, mode=form.mode)
    return np.array(values.astype(mx.float32))


def decoded(codec, spec, params, parts):
    out = np.empty(spec.shape, np.float32)
    codec.from_params(params).decode(parts, spec, region=full(spec.shape), out=out)
    return out


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("group", [32, 64, 128, 0])
@pytest.mark.parametrize("offset", ["none", "bias", "zero_point"])
def test_every_affine_scheme_keeps_its_values(bits, group, offset):
    """With float16 scales every product is exact in float32, so values are equal."""
    params = {"bits": bits, "group_size": group, "offset": offset, "scale_dtype": "f16"}
    codec, spec, parts = stored("affine", params, (5, 256), np.random.default_rng(bits + group))
    weights = packed(codec, spec, params, parts)
    assert weights.form.bits == {1: 2, 7: 8}.get(bits, bits)
    assert weights.form.group_size == (group or 128)
    np.testing.assert_array_equal(dequantized(weights), decoded(codec, spec, params, parts))


LAYOUTS = {
    "GPTQ": {"bits": 4, "group_size": 64, "transposed": True, "axis": -2, "word": "i32", "offset": "zero_point",
             "offset_dtype": "packed", "scale_dtype": "f16"},
    "AWQ": {"bits": 4, "group_size": 64, "transposed": True, "axis": -2, "pack_axis": -1, "word": "i32",
            "order": (0, 2, 4, 6, 1, 3, 5, 7), "offset": "zero_point", "offset_dtype": "packed", "scale_dtype": "f16"},
    "compressed-tensors": {"bits": 8, "group_size": 128, "word": "i32", "signed": False, "zero": 128,
                           "scale_dtype": "f16"},
    "flat": {"bits": 4, "group_size": 64, "axis": "flat", "scale_dtype": "f16"},
    "flat groups over several rows": {"bits": 4, "group_size": 512, "axis": "flat", "scale_dtype": "f16"},
    "MLX": {"bits": 6, "group_size": 64, "word": "u32", "offset": "bias", "scale_dtype": "f16"},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_checkpoints(name):
    params = LAYOUTS[name]
    codec, spec, parts = stored("affine", params, (64, 256), np.random.default_rng(1))
    np.testing.assert_array_equal(dequantized(packed(codec, spec, params, parts)), decoded(codec, spec, params, parts))


@quick
@given(rows=st.integers(1, 9), groups=st.integers(1, 5), bits=st.sampled_from([2, 3, 4, 5, 6, 8]), seed=st.integers(0))
def test_codes_round_trip_through_mlx_packing(rows, groups, bits, seed):
    """The packed codes are the original codes, shifted to start at 0."""
    params = {"bits": bits, "group_size": 32}
    codec, spec, parts = stored("affine", params, (rows, 32 * groups), np.random.default_rng(seed % 2**32))
    codes = codec.from_params(params).codes(parts, spec, full(spec.shape)).values
    weights = packed(codec, spec, params, parts)
    read = Packing(bits, "u32", "lsb").unpack(weights.weight, spec.shape[1])
    np.testing.assert_array_equal(read.astype(int), codes.astype(int) + (1 << bits - 1))


def test_squizd_int4_is_one_xor():
    """Two's complement nibbles, low nibble first: MLX's bytes have flipped sign bits, and a bias of -8 scales."""
    params = {"group_size": 64}
    chance = np.random.default_rng(2)
    table = np.zeros((8 * 256 // 64, 4), np.uint32)
    table[:, 2] = chance.standard_normal(len(table)).astype(np.float32).view(np.uint32)
    codec, spec, parts = stored("squizd.int4", params, (8, 256), chance, table=table)
    weights = packed(codec, spec, params, parts)
    assert weights.weight.tobytes() == (parts["codes"] ^ 0x88).tobytes()
    assert (weights.biases == -8 * weights.scales).all()


def test_int8_is_one_xor():
    codec, spec, parts = stored("affine", {"bits": 8}, (8, 256), np.random.default_rng(3))
    weights = packed(codec, spec, {"bits": 8}, parts)
    assert weights.weight.tobytes() == (parts["data"] ^ 0x80).tobytes()
    assert (weights.biases == -128 * weights.scales).all()


def test_squizd_int2_bytes_are_kept():
    params = {"group_size": 32}
    chance = np.random.default_rng(4)
    table = np.zeros((8 * 256 // 32, 4), np.uint32)
    table[:, 2:] = chance.standard_normal((len(table), 2)).astype(np.float32).view(np.uint32)
    codec, spec, parts = stored("squizd.int2", params, (8, 256), chance, table=table)
    weights = packed(codec, spec, params, parts)
    assert weights.weight.tobytes() == parts["codes"].tobytes()
    np.testing.assert_array_equal(dequantized(weights), decoded(codec, spec, params, parts))


@pytest.mark.parametrize(
    ("inner", "side", "group"),
    [({"group_size": 64}, 64, 64), ({"group_size": 64}, 32, 32), ({}, 64, 64), ({"group_size": 128}, 128, 128)],
)
@pytest.mark.parametrize("codec_id", ["squizd.int4", "squizd.int2"])
def test_a_mask_augments_the_kernel_of_its_codes(metal_on_cpu, codec_id, inner, side, group):
    """SQUIZD 3.3: SPARSE does not select a path; scale and bias are 0 in masked groups."""
    chance, shape = np.random.default_rng(9), (128, 256)
    spec, source = TensorSpec(name="w", shape=shape, dtype="f32"), squish.registry().codec_type(codec_id)
    values = chance.standard_normal(shape, np.float32)
    params = source.from_params(inner).fit_params(lambda: iter([values]), spec)
    codec_spec = CodecSpec("masked", {"block_size": side}, CodecSpec(codec_id, params))
    parts = source.from_params(params).encode(values)
    codec = squish.registry().codec(codec_spec)
    parts["mask"] = chance.integers(0, 256, codec.parts(spec)["mask"][1], np.uint8)
    tensor = memory_file(squish.registry(), {"w": (spec, codec_spec, parts)})[0]["w"]
    chosen = tensor.plan("metal").chosen
    assert chosen.mode == "stream"
    assert f"mx.quantized_matmul, mode affine, {codec_id[-1]} bits, groups of {group}," in chosen.storage
    weight, expected = tensor.load("metal"), tensor.numpy()
    assert (expected == 0).any()
    assert (weight.dense()[expected == 0] == 0).all()
    np.testing.assert_allclose(weight.dense(), expected, rtol=1e-6, atol=1e-6)
    x = chance.standard_normal((3, 256), np.float32)
    np.testing.assert_allclose(weight.linear(x), x @ expected.T, rtol=1e-3, atol=1e-3)


GROUPS_DOWN = {
    "ztensor 1.1": {"bits": 4, "group_size": 64, "axis": -2, "offset": "zero_point", "offset_dtype": "f32"},
    "ztensor v2": {"bits": 4, "group_size": 32, "axis": -2, "signed": False, "zero": 8, "scale_dtype": "f16"},
    "int8": {"bits": 8, "group_size": 128, "axis": -2, "scale_dtype": "f16"},
    "2 bits": {"bits": 2, "group_size": 32, "axis": -2, "offset": "bias"},
    "3 bits": {"bits": 3, "group_size": 32, "axis": -2, "word": "i32", "order": "padded"},
}


@pytest.mark.parametrize("name", GROUPS_DOWN)
@pytest.mark.parametrize("shape", [(128, 96), (256, 50), (3, 128, 40)])
def test_groups_down_columns_stream_as_the_transposed_matrix(name, shape):
    params = GROUPS_DOWN[name]
    offsets = {}
    if params.get("offset") == "zero_point":
        grid = (*shape[:-2], shape[-2] // params["group_size"], shape[-1])
        offsets = {"offset": np.random.default_rng(1).integers(0, 16, grid).astype(np.float32)}
    tensor = loaded("affine", params, shape, **offsets)
    chosen = tensor.plan("metal").chosen
    assert chosen.mode == "stream"
    assert f"groups of {params['group_size']} down columns" in chosen.storage
    op = "experts" if len(shape) == 3 else "linear"
    weight, expected = tensor.load("metal", op=op), tensor.numpy()
    np.testing.assert_allclose(weight.dense(), expected, rtol=1e-6, atol=1e-5)
    x = np.random.default_rng(7).standard_normal((6, shape[-1]), np.float32)
    if op == "experts":
        ids = np.arange(6) % shape[0]
        products = np.stack([row @ expected[at].T for row, at in zip(x, ids)])
        np.testing.assert_allclose(weight.experts(x, ids), products, rtol=1e-3, atol=1e-3)
        return
    np.testing.assert_allclose(weight.linear(x), x @ expected.T, rtol=1e-3, atol=1e-3)
    ids = np.array([[3, 0], [127, 3]])
    np.testing.assert_allclose(weight.embed(ids), expected[ids], rtol=1e-6, atol=1e-5)


def test_panels_of_groups_down_columns_are_put_together():
    codec, spec, parts = stored("affine", GROUPS_DOWN["ztensor v2"], (2048, 640), np.random.default_rng(8))
    weights = packed(codec, spec, GROUPS_DOWN["ztensor v2"], parts)
    np.testing.assert_array_equal(dequantized(weights).T, decoded(codec, spec, GROUPS_DOWN["ztensor v2"], parts))


MICROSCALED = {
    "mx": ({}, "mxfp4"),
    "mx fp8": ({"element": "f8_e4m3"}, "mxfp8"),
    "mx nvfp4": ({"block_size": 16, "scale_dtype": "f8_e4m3"}, "nvfp4"),
    "zt.mx fp4": ({"block_size": 32, "axis": 1, "dtype": "f4_e2m1"}, "mxfp4"),
    "zt.mx fp8": ({"block_size": 32, "axis": 1, "dtype": "f8_e4m3"}, "mxfp8"),
}


@pytest.mark.parametrize("name", MICROSCALED)
def test_microscaled_bytes_are_kept(name):
    params, mode = MICROSCALED[name]
    codec_spec, chance = CodecSpec(name.split()[0], params), np.random.default_rng(5)
    codec, spec, parts = stored(codec_spec.id, params, (6, 128), chance)
    role = "scale" if codec_spec.id == "mx" else "scales"
    parts[role] = chance.integers(60, 120, parts[role].shape, np.uint8).view(parts[role].dtype)
    parts["data"] = chance.integers(0, 120, parts["data"].shape, np.uint8).view(parts["data"].dtype)  # avoid NaN
    weights = packed(codec, spec, params, parts)
    assert weights.form.mode == mode
    assert weights.weight.tobytes() == parts["data"].tobytes()
    np.testing.assert_array_equal(dequantized(weights), decoded(codec, spec, params, parts))


@pytest.mark.parametrize(("codec_id", "mode"), [("ggml.mxfp4", "mxfp4"), ("ggml.nvfp4", "nvfp4")])
def test_float4_codes_of_any_codec_have_a_form(codec_id, mode):
    """MLX's form follows the declared code layout, not the codec's name."""
    codec, chance = squish.registry().codec_type(codec_id), np.random.default_rng(8)
    spec = TensorSpec(name="w", shape=(6, 128), dtype="f32")
    shape = codec.from_params({}).parts(spec)["data"][1]
    blocks = {"data": chance.integers(60, 120, shape, np.uint8)}  # scales without NaN or infinity
    weights = packed(codec, spec, {}, blocks)
    assert weights.form.mode == mode
    np.testing.assert_array_equal(dequantized(weights), decoded(codec, spec, {}, blocks))


def loaded(codec_id, params, shape, **replacements):
    _, spec, parts = stored(codec_id, params, shape, np.random.default_rng(6), **replacements)
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec(codec_id, params), parts)})
    return file["w"]


@pytest.mark.parametrize(
    ("codec_id", "params", "scale"),
    [
        ("affine", {"bits": 4, "group_size": 32}, np.full((2, 2), 2.0**126, np.float32)),  # a bias exceeding float32
        ("mx", {}, np.full((2, 2), 255, np.uint8)),  # NaN, which MLX decodes as infinity
    ],
)
def test_data_without_an_mlx_form_fall_back_to_the_next_backend(monkeypatch, codec_id, params, scale):
    monkeypatch.setattr(Metal, "probe", lambda self: Availability(ok=True))  # like on a GPU: selected by ranking
    tensor = loaded(codec_id, params, (2, 64), scale=scale)
    with pytest.raises(SquishError) as refusal:
        tensor.load("metal")
    assert (refusal.value.code, refusal.value.tensor) == ("uncovered", "w")

    def metal_first(ranked):
        return ranked.offer.backend != "metal"

    weight = tensor.load(policy=metal_first)
    assert weight.chain.chosen.backend != "metal"
    assert "metal" in {refused.backend for refused in weight.chain.refused}


def test_inexact_zero_points_fall_back_to_the_next_backend():
    params = {"bits": 4, "group_size": 32, "zero": 1, "offset": "zero_point", "offset_dtype": "f32"}
    tensor = loaded("affine", params, (2, 64), offset=np.full((2, 2), 2.0**24, np.float32))
    with pytest.raises(SquishError) as refusal:
        tensor.load("metal")
    assert (refusal.value.code, refusal.value.tensor) == ("uncovered", "w")


@pytest.mark.parametrize(
    ("params", "exact"),
    [({"bits": 4}, True), ({"bits": 4, "offset": "bias"}, True), ({"bits": 4, "offset": "zero_point"}, False)],
)
def test_an_offer_is_inexact_if_biases_may_round(params, exact):
    chosen = loaded("affine", {**params, "group_size": 32}, (4, 64)).plan("metal").chosen
    assert (chosen.mode, chosen.exact) == ("stream", exact)
    assert "copied once" in chosen.storage  # MLX cannot wrap foreign memory
    assert chosen.cost.resident == chosen.cost.moved == 4 * 64 // 2 + 4 * 2 * 8


@pytest.mark.parametrize("shape", [(3, 4, 64), (2, 5, 128)])
def test_experts(shape):
    tensor = loaded("affine", {"bits": 4, "group_size": 32}, shape)
    x = np.random.default_rng(7).standard_normal((6, shape[2]), np.float32)
    ids = np.arange(6) % shape[0]
    expected = np.stack([row @ tensor.numpy()[at].T for row, at in zip(x, ids)])
    np.testing.assert_allclose(tensor.load("metal", op="experts").experts(x, ids), expected, rtol=1e-4, atol=1e-4)


def test_invalid_operands_are_refused():
    weight = loaded("affine", {"bits": 4, "group_size": 32}, (4, 64)).load("metal")
    with expect_error(SquishError, code="shape", tensor="w", expected=64, found="shape (63,)"):
        weight.linear(np.ones(63, np.float32))
    with expect_error(SquishError, code="ids", tensor="w", expected="0..3", found="4..4"):
        weight.embed(np.array([4]))


@pytest.mark.parametrize("op", ["linear", "embed"])
def test_empty_operands_give_empty_results(op):
    weight = loaded("affine", {"bits": 4, "group_size": 32}, (4, 64)).load("metal")
    result = weight.linear(np.ones((0, 64))) if op == "linear" else weight.embed(np.zeros((0, 2), int))
    assert result.shape == ((0, 4) if op == "linear" else (0, 2, 64))


def test_codecs_mlx_lacks_are_decoded_once():
    chosen = loaded("affine", {"bits": 4, "group_size": 16}, (4, 64)).plan("metal").chosen
    assert chosen.mode == "fold"
    assert chosen.cost.resident == 4 * 64 * (2 if device.has_gpu() else 4)


def test_without_a_gpu_metal_is_opt_in(monkeypatch):
    """On the CPU, MLX is slower than the NumPy backend, so it is opt-in."""
    if mx.metal.is_available():
        return
    monkeypatch.delenv("SQUISH_METAL")
    chain = loaded("affine", {"bits": 4, "group_size": 32}, (4, 64)).plan()
    assert chain.chosen.backend != "metal"
    assert any(refused.backend == "metal" and "SQUISH_METAL=cpu" in refused.why for refused in chain.refused)


def test_an_mlx_bf16_array_is_a_valid_operand():
    import mlx.core as mx

    weight = loaded("affine", {"bits": 4, "group_size": 32}, (2, 64)).load("metal")
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(weight.linear(mx.array(x).astype(mx.bfloat16)), weight.linear(x))
