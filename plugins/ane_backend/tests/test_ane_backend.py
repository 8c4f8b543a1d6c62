"""The backend in the resolver: plans by device; whole packages are delegated, or refused with a reason."""

import sys

import numpy as np
import pytest
from squish_ane.ane.backend import Ane
from squish_testing import BackendSuite, expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, Encoding, Request, SquishError, TensorSpec

MATRIX = np.random.default_rng(0).standard_normal((64, 128), np.float32)


class TestAne(BackendSuite):
    backend = "ane"


def tensor(codec_id, **params):
    codec, spec = squish.registry().codec_type(codec_id), TensorSpec(name="w", shape=MATRIX.shape, dtype="f32")
    if codec_id == "palette":
        parts = {
            role: np.zeros(shape, squish.api.dtypes.to_numpy(dtype))
            for role, (dtype, shape) in codec.from_params(params).parts(spec).items()
        }
    else:
        params = codec.from_params(params).fit_params(lambda: iter([MATRIX]), spec)
        parts = codec.from_params(params).encode(MATRIX)
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec(codec_id, params), parts)})
    return file["w"]


@pytest.mark.parametrize(
    ("codec", "params", "device", "mode", "moved", "reason"),
    [
        ("affine", {"bits": 8, "scale_dtype": "f16"}, "M1", "fold", 16384, "dequantizes"),
        ("affine", {"bits": 8, "scale_dtype": "f16"}, "M2", "stream", 8192 + 128, "measured"),
        ("affine", {"bits": 8, "group_size": 32}, "M2", "fold", 16384, "0.985x"),
        ("affine", {"bits": 8, "group_size": 32}, "M3", "stream", 8192 + 512, "predicted"),
        ("affine", {"bits": 4, "group_size": 32}, "M5", "fold", 16384, "only a palette path"),
        ("palette", {"bits": 4, "codebook_dtype": "f16"}, "M1", "stream", 4096 + 32, "2.37x"),
        ("palette", {"bits": 4, "codebook_size": 2048}, "M2", "stream", 4096 + 128, "stated"),
        ("palette", {"bits": 5}, "M1", "fold", 16384, "decoded first"),
        ("dense", {"dtype": "f32"}, "M1", "fold", 16384, "float16"),
        ("bitmask", {"dtype": "f16", "kept": "run", "sparsity": 0.63}, "M1", "stream", 1024 + 2 * 64 * 47, "1.55"),
        ("bitmask", {"dtype": "f16", "kept": "run", "bits": 4, "sparsity": 0.5}, "M3", "stream", 1024 + 2048 + 32,
         "stated"),
        ("bitmask", {"dtype": "i8", "scale": "f16", "kept": "run"}, "M5", "fold", 16384, "does not cover"),
        ("ggml.q8_0", {}, "M1", "fold", 16384, "measured"),
        ("ggml.q8_0", {}, "M3", "stream", 8192 + 512, "predicted"),
        ("ggml.q4_0", {}, "M5", "fold", 16384, "only a palette path"),
        ("mx", {}, "M1", "fold", 16384, "decoded first"),
    ],
)  # fmt: skip
def test_a_plan_gives_the_mode_and_the_bytes_moved(codec, params, device, mode, moved, reason):
    chosen = tensor(codec, **params).plan(f"ane:device={device}").chosen
    assert (chosen.mode, chosen.cost.moved) == (mode, moved)
    assert reason in chosen.storage


@pytest.mark.parametrize(
    ("codec", "params"),
    [("palette", {"bits": 4, "codebook_size": 2048}), ("palette", {"bits": 6}),
     ("affine", {"bits": 8, "offset": "zero_point"})],
)  # fmt: skip
def test_the_message_for_forms_illegal_on_h13_names_rule_and_table(codec, params):
    with expect_error(SquishError, code="no-chain", tensor="w") as caught:
        tensor(codec, **params).plan("ane:device=M1")
    assert "cannot be compiled for H13: descriptor version five has no encoder for it" in caught.value.message
    assert "See table 25.5; a 4-bit palette with one codebook streams on every generation" in caught.value.message


def test_a_refusal_without_a_next_step_is_a_sentence():
    spec = TensorSpec(name="w", shape=(3, 3), dtype="f32")
    encoding = Encoding(codec=CodecSpec("palette", {"bits": 4, "vector": 2, "axis": "flat"}))
    refused = (
        Ane()
        .configured({"device": "M1"})
        .offer(Request(spec=spec, encoding=encoding, codec=squish.registry().codec(encoding.codec)))
    )
    assert refused.why == "the vectors do not divide the elements (expected a multiple of 2, found 9)"


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("device", ["M1", "M5"])
def test_small_palettes_are_rejected_on_the_general_path(bits, device):
    with expect_error(SquishError, code="no-chain", tensor="w"):
        tensor("palette", bits=bits, codebook_dtype="f16").plan(f"ane:device={device}")
    with expect_error(SquishError, code="no-chain", tensor="w"):
        tensor("palette", bits=bits, codebook_dtype="f16", codebook_size=2048).plan(f"ane:device={device}")


@pytest.mark.parametrize(
    ("params", "form", "mode", "moved"),
    [
        ({"books": [4, 8]}, "palette_many", "stream", 4096 + 32 * 32),
        ({"books": [1, 1]}, "palette4", "stream", 4096 + 32),
        ({"books": [4, 8], "grid": [4, 8], "scale_dtype": "f16"}, "dense", "fold", 16384),
        ({"books": [1, 4], "count": 64}, "sparse_palette", "stream", 1024 + 32 + 4 * 32),
        ({"bits": 8, "grid": [64, 1], "scale_dtype": "f16", "count": 64}, "sparse_int8", "fold", 16384),
        ({"bits": 4, "grid": [64, 1], "scale_dtype": "f16", "count": 64}, "dense", "fold", 16384),
        ({"bits": 8, "signed": True, "grid": [64, 1], "scale_dtype": "f16"}, "int8", "stream", 8192 + 128),
    ],
)  # fmt: skip
def test_boxes_are_planned_in_the_form_of_their_codebooks_and_scales(params, form, mode, moved):
    codec, spec = squish.registry().codec_type("boxes"), TensorSpec(name="w", shape=MATRIX.shape, dtype="f32")
    params = {"bits": 4, **params}
    parts = {
        role: np.zeros(shape, squish.api.dtypes.to_numpy(dtype))
        for role, (dtype, shape) in codec.from_params(params).parts(spec).items()
    }
    chosen = (
        memory_file(squish.registry(), {"w": (spec, CodecSpec("boxes", params), parts)})[0]["w"]
        .plan("ane:device=M4")
        .chosen
    )
    assert (chosen.facts["form"], chosen.mode, chosen.cost.moved) == (form, mode, moved)


@pytest.mark.parametrize(("codec", "params"), [("affine", {"bits": 8}), ("palette", {"bits": 4}), ("dense", {})])
def test_an_empty_tensor_is_planned(codec, params):
    spec = TensorSpec(name="w", shape=(3, 0), dtype="f32")
    parts = {
        role: np.zeros(shape, squish.api.dtypes.to_numpy(dtype))
        for role, (dtype, shape) in squish.registry().codec(CodecSpec(codec, params)).parts(spec).items()
    }
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec(codec, params), parts)})
    assert file["w"].plan("ane:device=M2").chosen.cost.moved < 100


@pytest.mark.parametrize(
    ("shape", "options", "zeros"),
    [
        ((16, 8, 3, 3), "", None), ((16, 8, 3, 3), ",stride=2", 1 - 9 / 16),
        ((16, 8, 3, 3), ",padding=1,size=8", 1 - (22 / 24) ** 2), ((16, 8), ",stride=2", None),
        ((16, 8, 1, 1), ",stride=2", 0.75),
    ],
)  # fmt: skip
def test_stride_and_padding_add_implicit_zeros_to_the_cycles(shape, options, zeros):
    weight = weights_of(shape)
    assert weight.plan(f"ane:device=M1{options}").chosen.facts.get("implicit_zeros") == pytest.approx(zeros)
    counted = weight.plan(f"ane:device=M1{options},zeros=count").chosen.facts
    assert counted["cycles_of_dense"] == pytest.approx((1 - counted["zeros"]) * (1 - (zeros or 0)))
    assert ("implicit zeros" in counted["summary"]) == (zeros is not None)


def test_an_activation_table_shares_the_budget_of_a_palette():
    chosen = tensor("palette", bits=4, codebook_dtype="f16").plan("ane:device=M1,activation=silu").chosen
    assert (chosen.facts["sections"]["lut"], chosen.facts["palette_budget_with_activation"]) == (86, 32 + 86)
    assert chosen.facts["tables"]["lut"] == {"typeno": 5, "bitdepth": 16, "lut_bytes": 86}
    assert list(chosen.facts["streams"]) == ["palette", "activation"]
    activation = chosen.facts["activation"]
    assert (activation["function"], activation["domain"]) == ("silu", [-8, 8])
    assert 0 < activation["max_error"] < 0.05
    assert "activation table of 86 bytes" in chosen.facts["summary"]


@pytest.mark.parametrize(("shape", "form"), [((16, 1, 1, 1), "unity"), ((16, 1, 3, 3), "dense")])
def test_a_weight_that_only_scales_channels_is_unity_and_excluded_from_winograd(shape, form):
    facts = weights_of(shape).plan("ane:device=M1,depthwise=true").chosen.facts
    assert facts["form"] == form
    assert facts["kernel_format"]["numbers"] == ([28, 29, 30] if form == "unity" else [1, 2, 3, 4, 5, 31])
    assert facts["winograd"] == ("excluded: weights are unity" if form == "unity" else "eligible")
    assert weights_of(shape).plan("ane:device=M1").chosen.facts["form"] == "dense"


def test_a_device_plan_cannot_run():
    with pytest.raises(SquishError):
        tensor("affine", bits=8).load("ane:device=M2")


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ("stride=1", "stream"), ("stride=2", "fold"), ("dilation=2", "fold"), ("overlapping=true", "fold"),
        ("mutable=true", "fold"), ("mutable=false", "stream"),
    ],
)  # fmt: skip
def test_the_consumer_affects_the_mode(options, mode):
    chosen = tensor("palette", bits=4, codebook_dtype="f16").plan(f"ane:device=M1,{options}").chosen
    assert chosen.mode == mode
    assert ("so the weight is folded" in chosen.storage) == (mode == "fold")


@pytest.mark.parametrize(
    "options", ["device=A9", "chip=M1", "device=M1,cores=4", "stride=2", "device=M1,stride=0", "device=M1,mutable=2",
     "device=M1,padding=1", "device=M1,padding=-1,size=4", "device=M1,activation=cosine"],
)  # fmt: skip
def test_invalid_options_are_refused(options):
    with pytest.raises(SquishError):
        tensor("affine", bits=8).plan(f"ane:{options}")


def test_without_core_ml_an_appendix_is_refused_and_the_next_path_is_used():
    chain = squish.registry().resolve(container="squizd", flags={"ANE_COREML", "INT4"})
    if sys.platform == "darwin":
        return
    assert chain.chosen.encoding.label == "INT4"
    reasons = {refused.backend: refused.why for refused in chain.refused}
    assert "macOS" in reasons["ane"]
    assert "whole model" in reasons["numpy"]


def test_with_core_ml_the_appendix_is_delegated(monkeypatch):
    from squish_core.api import Availability

    monkeypatch.setattr(Ane, "probe", lambda self: Availability(ok=True, device="Neural Engine"))
    chain = squish.registry().resolve(container="squizd", flags={"ANE_COREML", "INT4"})
    assert (chain.chosen.backend, chain.chosen.mode) == ("ane", "delegate")
    assert chain.chosen.encoding.label == "ANE_COREML"


def facts(codec, device="M1", **params):
    chain = tensor(codec, **params).plan(f"ane:device={device}")
    assert chain.to_dict()["chosen"]["facts"] == chain.chosen.facts
    return chain.chosen.facts


def test_a_plan_shows_sections_records_and_streams_by_core():
    palette = facts("palette", bits=4, codebook_dtype="f16")
    assert palette["records"] == [[core * 1024, 16] for core in range(4)]
    assert palette["record_words"][1] == [1024, 16, *[-1] * 10, 0, 0]
    assert palette["sections"] == {"lut": 0, "pal": 32, "ocgs": 4 * 56, "scale": 0, "bias": 0, "weights": 4096}
    assert palette["tables"] == {"pal": {"palette_format": "lut4_f16", "bitdepth": 4, "num_luts": 1, "lut_bytes": 32}}
    assert palette["kernel_format"] == {
        "kind": "palette",
        "numbers": list(range(7, 28)),
        "bit_depth": 4,
        "underlying_type": "f16",
        "type_number": 8,
        "palette_format": "lut4_f16",
    }
    assert palette["streams"] == {"palette": {"enable": 0x5568, "base": 0x556C, "relocation": 0x155C}}
    budget = (palette["palette_budget"], palette["palette_budget_with_activation"])
    assert (*budget, palette["type_number"], palette["element_type"]) == (32, 32 + 86, 8, 9)
    assert palette["gates"] == {"0x48f": True, "0x529": True}
    assert "kernel format lut4_f16 (7 to 27), type 8; palette of 32 on-chip bytes" in palette["summary"]
    assert len(facts("palette", "H13g", bits=4, codebook_dtype="f16")["records"]) == 8
    scaled = facts("affine", "M2", bits=8, scale_dtype="f16")
    assert (scaled["records"], list(scaled["streams"])) == ("shared kernel memory", ["post_scale"])
    assert (scaled["sections"]["scale"], scaled["type_number"], scaled["element_type"]) == (128, 2, 2)


@pytest.mark.parametrize(
    ("codec", "params", "device", "sections"),
    [
        ("palette", {"bits": 4, "codebook_dtype": "f16"}, "M1", {"pal": 32, "weights": 32768}),
        ("palette", {"bits": 8, "codebook_dtype": "f16"}, "M1", {"pal": 512, "weights": 65536}),
        ("palette", {"bits": 4, "codebook_dtype": "f16", "codebook_size": 4096}, "M2", {"pal": 512, "weights": 32768}),
        ("affine", {"bits": 8, "scale_dtype": "f16"}, "M1", {"weights": 131072}),
        ("affine", {"bits": 8, "scale_dtype": "f16"}, "M2", {"scale": 512, "weights": 65536}),
        ("affine", {"bits": 8, "scale_dtype": "f16", "offset": "zero_point"}, "M2",
         {"scale": 512, "bias": 256, "weights": 65536}),
        ("affine", {"bits": 8, "scale_dtype": "f16", "group_size": 32}, "M3", {"scale": 4096, "weights": 65536}),
        ("affine", {"bits": 4, "scale_dtype": "f16", "group_size": 32}, "M3", {"weights": 131072}),
        ("dense", {"dtype": "f16"}, "M1", {"weights": 131072}),
        ("bitmask", {"dtype": "f16", "kept": "run", "sparsity": 0.5}, "M1", {"weights": 8192 + 65536}),
    ],
)  # fmt: skip
def test_each_byte_of_a_plan_is_in_one_section(codec, params, device, sections):
    values = np.random.default_rng(2).standard_normal((256, 256)).astype(np.float32)
    source = squish.registry().codec_type(codec)
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    if codec == "palette":
        fitted = params
        parts = {
            role: np.zeros(shape, squish.api.dtypes.to_numpy(dtype))
            for role, (dtype, shape) in source.from_params(params).parts(spec).items()
        }
    else:
        fitted = source.from_params(params).fit_params(lambda: iter([values]), spec)
        parts = source.from_params(fitted).encode(values)
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec(codec, fitted), parts)})
    chosen = file["w"].plan(f"ane:device={device}").chosen
    planned = dict(chosen.facts["sections"])
    records = planned.pop("ocgs")
    assert planned == {"lut": 0, "pal": 0, "scale": 0, "bias": 0, **sections}
    assert sum(planned.values()) == chosen.cost.moved
    assert records == (4 * 56 if device == "M1" else 0)
    if device == "M1":
        share = sections["weights"] // 4
        assert [offset for offset, _ in chosen.facts["records"]] == [core * share for core in range(4)]


def test_a_plan_shows_the_share_of_zeros_and_its_cost():
    sparse = facts("bitmask", dtype="f16", kept="run", sparsity=0.63)
    assert sparse["zeros"] == pytest.approx(1 - 47 / 128)
    assert sparse["moved_of_dense"] == pytest.approx(1 / 16 + 47 / 128)
    assert sparse["cycles_of_dense"] == pytest.approx(47 / 128)
    assert "63.3% zeros: 0.43 of dense bytes, 0.37 of cycles" in sparse["summary"]
    assert sparse["winograd"] == "excluded: weights are sparse"
    assert "zeros" not in facts("dense", dtype="f16")
    assert "the kernel is not 3 x 3" in facts("dense", dtype="f16")["winograd"]


def weights_of(shape, codec_id="dense", **params):
    codec, spec = squish.registry().codec_type(codec_id), TensorSpec(name="w", shape=shape, dtype="f32")
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    params = codec.from_params(params).fit_params(lambda: iter([values]), spec)
    return memory_file(
        squish.registry(), {"w": (spec, CodecSpec(codec_id, params), codec.from_params(params).encode(values))}
    )[0]["w"]


@pytest.mark.parametrize(
    ("shape", "codec", "params", "options", "winograd"),
    [
        ((16, 8, 3, 3), "dense", {}, "", "eligible"),
        ((16, 8, 3, 3), "affine", {"bits": 8}, "", "eligible"),
        ((16, 8, 3, 3), "dense", {}, ",stride=2", "excluded: the stride is not 1"),
        ((16, 8, 3, 3), "bitmask", {"dtype": "f16", "kept": "run"}, "", "excluded: weights are sparse"),
        ((16, 8, 5, 5), "dense", {}, "", "excluded: the kernel is not 3 x 3"),
        ((16, 8, 2, 3, 3), "dense", {}, "", "eligible"),
        ((16, 8, 6, 3, 3), "dense", {}, "", "excluded: the depth is 6 or more"),
    ],
)  # fmt: skip
def test_convolutions_are_planned_with_their_kernel(shape, codec, params, options, winograd):
    weight = weights_of(shape, codec, **params)
    chosen = weight.plan(f"ane:device=M1{options}").chosen
    assert (chosen.ops, chosen.facts["winograd"]) == (("dense",), winograd)
    assert (f"Winograd {winograd}" in chosen.facts["summary"]) == ("3 x 3" not in winograd)
    assert [channels for _, channels in chosen.facts["records"]] == [4, 4, 4, 4]


@pytest.mark.parametrize(("group", "mode"), [(72, "stream"), (36, "fold")])
def test_int8_scales_within_a_channel_of_a_convolution_are_blocks(group, mode):
    chosen = weights_of((16, 8, 3, 3), "affine", bits=8, axis="flat", group_size=group).plan("ane:device=M2").chosen
    assert chosen.mode == mode


@pytest.mark.parametrize(("shape", "op"), [((), "dense"), ((8,), "dense"), ((4, 8, 3), "experts")])
def test_tensors_that_are_not_single_weights_are_refused_with_a_reason(shape, op):
    with expect_error(SquishError, code="no-chain", tensor="w") as caught:
        weights_of(shape).plan("ane:device=M1")
    assert "plans cover" in caught.value.message
    if op == "experts":
        assert weights_of(shape).plan("ane:device=M1", op="dense").chosen.ops == ("dense",)


def test_complex_weights_are_refused():
    spec = TensorSpec(name="w", shape=(4, 8), dtype="complex64")
    parts = {"data": np.ones(spec.shape, np.complex64)}
    file = memory_file(squish.registry(), {"w": (spec, CodecSpec("dense"), parts)})[0]
    for backend in ("ane:device=M1", "ane:device=M1,zeros=count"):
        with expect_error(SquishError, code="no-chain", tensor="w"):
            file["w"].plan(backend)


@pytest.mark.parametrize(("codec", "params"), [("dense", {"dtype": "f32"}), ("mx", {}), ("palette", {"bits": 5})])
def test_a_tensor_that_is_decoded_first_has_records_for_all_its_channels(codec, params):
    planned = tensor(codec, **params).plan("ane:device=M1").chosen.facts
    assert [channels for _, channels in planned["records"]] == [16, 16, 16, 16]


def test_encoding_a_dense_weight_under_a_mask_states_its_own_zeros_without_changing_values(tmp_path):
    values = np.where(np.random.default_rng(1).random(MATRIX.shape) < 0.63, 0, MATRIX).astype(np.float16)
    squish.save(tmp_path / "pruned.mlpackage", {"w": values}, encode="bitmask")
    with squish.open(tmp_path / "pruned.mlpackage") as file:
        assert file["w"].numpy().tobytes() == values.tobytes()
        planned = file["w"].plan("ane:device=M1").chosen.facts
    share = float((values == 0).mean())
    assert planned["zeros"] == pytest.approx(share)
    assert planned["moved_of_dense"] == pytest.approx(1 / 16 + 1 - share)
    assert planned["cycles_of_dense"] == pytest.approx(1 - share)


@pytest.mark.parametrize(
    ("device", "reason"),
    [("M1", "compiling asserts"), ("M4", "from H17"), ("M5", "capability byte 0x52d"), ("H18", None)],
)
def test_the_reason_why_e4m3_is_native_on_h18_alone(device, reason):
    float8 = tensor("float8", element="f8_e4m3")
    if reason is None:
        assert float8.plan(f"ane:device={device}").chosen.mode == "stream"
        return
    with expect_error(SquishError, code="no-chain", tensor="w") as caught:
        float8.plan(f"ane:device={device}")
    assert reason in caught.value.message
    chosen = tensor("float8", element="f8_e5m2").plan(f"ane:device={device}").chosen
    assert (chosen.mode, chosen.facts["element_code"], chosen.facts["converts_to_half"]) == ("fold", 13, True)


@pytest.mark.parametrize("zero", [0, 3])
def test_zero_points_of_zero_are_the_symmetric_form_of_h13(zero, tmp_path):
    """int8 of iOS16 always has zero points; H13 has the form whose zero points are all zero."""
    values = np.random.default_rng(1).integers(-127, 128, (64, 128)).astype(np.float32)
    values[:, 0], values[:, 1] = 127, -127 + 2 * zero
    rule = "affine:bits=8,signed=True" + (",offset=zero_point" if zero else "")
    squish.convert({"w": values}, tmp_path / "out.mlpackage", "mlpackage:target=iOS16", {"w": rule})
    with squish.open(tmp_path / "out.mlpackage") as file:
        assert file["w"].spec.encodings[0].codec.params["offset"] == "zero_point"
        if zero:
            with expect_error(SquishError, code="no-chain", tensor="w"):
                file["w"].plan("ane:device=M1")
        else:
            assert file["w"].plan("ane:device=M1").chosen.mode == "fold"
            assert file["w"].plan("ane:device=M2").chosen.mode == "stream"
        copied = squish.convert(file, tmp_path / "again.mlpackage", "mlpackage:target=iOS16")
    assert {step.action for step in copied.steps} == {"copy"}


def test_doctor_says_that_it_was_never_run_on_a_mac():
    diagnosis = squish.diagnose()
    (state,) = (backend for backend in diagnosis.backends if backend.id == "ane")
    assert "not yet tried on a Mac" in state.unverified
    assert state.unverified in str(diagnosis).replace("\n          ", " ")
