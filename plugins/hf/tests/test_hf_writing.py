"""GPTQ, AWQ and compressed-tensors as they are written: the layouts of the packages, the codes of the source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import SquishError

DATA = Path(__file__).with_name("data")
LAYER = "model.layers.0.self_attn.k_proj"
SAME = {
    "gptq-v1_w4_g128_sym": "gptq", "gptq-v1_w3_g32_asym": "gptq", "gptq-v2_w4_g64_asym_actorder": "gptq_v2",
    "awq-gemm_w4_g128": "awq", "awq-gemm_w4_g64_bias": "awq",
    "compressed-tensors-w4_g32_sym": "compressed-tensors", "compressed-tensors-w3_g64_asym_dense": "compressed-tensors",
    "compressed-tensors-w4_ragged_columns": "compressed-tensors", "compressed-tensors-mxfp4a16": "compressed-tensors",
    "compressed-tensors-nvfp4a16": "compressed-tensors", "mxfp4-gptoss-experts2": "mxfp4",
    "compressed-tensors-fp8_block128": "compressed-tensors", "compressed-tensors-fp8_channel": "compressed-tensors",
    "fp8-block-b64x32": "fp8", "fp8-block-b128_ue8m0": "fp8",
}  # fmt: skip


@pytest.mark.parametrize(("name", "method"), SAME.items())
def test_what_a_package_wrote_is_written_again_byte_for_byte(name: str, method: str, tmp_path: Path) -> None:
    report = squish.convert(DATA / name, tmp_path / "out", f"hf:method={method}")
    assert {step.action for step in report.steps} == {"copy"}
    with squish.open(DATA / name, "safetensors") as old, squish.open(tmp_path / "out", "safetensors") as new:
        assert set(old) == set(new)
        for key in old:
            assert (old[key].dtype, old[key].shape) == (new[key].dtype, new[key].shape)
            assert old[key].numpy().tobytes() == new[key].numpy().tobytes()


@pytest.mark.parametrize("method", ["gptq", "gptq_v2", "awq", "compressed-tensors"])
def test_codes_go_to_every_method_and_back(method: str, tmp_path: Path) -> None:
    source = DATA / "gptq-v1_w4_g64_asym"
    there = squish.convert(source, tmp_path / "there", f"hf:method={method}")
    assert {step.action for step in there.steps} <= {"copy", "repack"}
    squish.convert(tmp_path / "there", tmp_path / "back", "hf:method=gptq")
    with squish.open(source, "safetensors") as old, squish.open(tmp_path / "back", "safetensors") as new:
        for key in old:
            assert old[key].numpy().tobytes() == new[key].numpy().tobytes(), key
    with squish.open(source) as old, squish.open(tmp_path / "there") as new:
        assert (new.format, new.problems) == ("hf", ())
        np.testing.assert_array_equal(new[f"{LAYER}.weight"].numpy(), old[f"{LAYER}.weight"].numpy())


def test_the_order_that_a_source_declares_is_declared_again(tmp_path: Path) -> None:
    for name, ordered in (("gptq-v2_w4_g64_asym_actorder", True), ("gptq-v1_w4_g64_asym", False)):
        squish.convert(DATA / name, tmp_path / name, "hf:method=gptq_v2")
        declared = json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        assert declared["desc_act"] is ordered


@pytest.mark.parametrize(("method", "name"), [("gptq", "gptq-v1_w4_g128_sym"), ("awq", "awq-gemm_w4_g128")])
def test_a_method_resolves_without_a_file(method: str, name: str) -> None:
    with squish.open(DATA / name) as file:
        stored = file[f"{LAYER}.weight"].spec.encodings[0].codec
    chain = squish.registry().resolve(container="hf", method=method, backend="numpy")
    assert squish.registry().same_codec(stored, chain.chosen.encoding.codec)
    with pytest.raises(SquishError) as caught:
        squish.registry().resolve(container="hf", method=method, bits="5")
    assert caught.value.code == "no-chain"


def test_act_order_is_refused_by_methods_without_it(tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(DATA / "gptq-v1_w4_g128_sym_actorder", tmp_path / "out", "hf:method=awq")
    assert caught.value.code == "act-order"


def test_a_zero_point_that_gptq_v1_cannot_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(DATA / "awq-gemm_w4_g128", tmp_path / "out", "hf:method=gptq")
    assert caught.value.code == "refused"


@pytest.mark.parametrize("method", ["gptq", "gptq_v2", "awq", "compressed-tensors"])
@pytest.mark.parametrize("sign", [None, 1, -1])
def test_values_are_encoded_for_every_method(method: str, sign: int | None, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    values = values if sign is None else sign * np.abs(values)
    write_floats(tmp_path / "plain.safetensors", {f"{LAYER}.weight": values})
    report = squish.convert(tmp_path / "plain.safetensors", tmp_path / "out", f"hf:method={method}", "int4")
    assert report.steps[0].quality is not None
    assert report.steps[0].quality.nmse < 0.02
    with squish.open(tmp_path / "out") as file:
        step = np.abs(values).reshape(64, -1, 32).max(-1).repeat(32, -1) / 7
        assert (np.abs(file[f"{LAYER}.weight"].numpy() - values) <= 0.51 * step).all()


def write_floats(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file of float32 tensors."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


FLOATS = [
    ("compressed-tensors", "fp8"), ("compressed-tensors", "fp8_row"), ("compressed-tensors", "fp8_block"),
    ("compressed-tensors", "nvfp4"), ("fp8", "fp8"), ("fp8", "fp8_block"), ("fbgemm_fp8", "fp8_row"),
    ("modelopt", "fp8"), ("modelopt", "fp8_row"), ("modelopt", "fp8_block"), ("modelopt", "nvfp4"),
    ("modelopt", "mxfp4"), ("modelopt", "mxfp8"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "encode"), FLOATS)
def test_float_codes_are_encoded_declared_and_kept(method: str, encode: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32)
    write_floats(tmp_path / "plain.safetensors", {f"{LAYER}.weight": values, "lm_head.weight": values})
    rules = [f"{LAYER}.*={encode}"]
    squish.convert(tmp_path / "plain.safetensors", tmp_path / "out", f"hf:method={method}", rules)
    most = {"fp8": 0.001, "fp8_row": 0.001, "fp8_block": 0.001, "mxfp8": 0.001, "nvfp4": 0.01, "mxfp4": 0.02}[encode]
    with squish.open(tmp_path / "out") as file:
        assert (file.format, file.problems) == ("hf", ())
        decoded = file[f"{LAYER}.weight"].numpy()
        assert np.square(decoded - values).sum() / np.square(values).sum() < most
    declared = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert declared["quant_method"] == method
    kept = declared.get("modules_to_not_convert", declared["ignore"] if method == "modelopt" else ["lm_head"])
    assert kept == ["lm_head"]
    again = squish.convert(tmp_path / "out", tmp_path / "again", f"hf:method={method}")
    assert {step.action for step in again.steps} == {"copy"}
    with squish.open(tmp_path / "again") as file:
        np.testing.assert_array_equal(file[f"{LAYER}.weight"].numpy(), decoded)


def test_nvfp4_has_a_global_scale_of_its_own(tmp_path: Path) -> None:
    values = 1e-4 * np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    write_floats(tmp_path / "plain.safetensors", {f"{LAYER}.weight": values})
    for method, name, product in (("modelopt", "weight_scale_2", 1), ("compressed-tensors", "weight_global_scale", -1)):
        squish.convert(tmp_path / "plain.safetensors", tmp_path / method, f"hf:method={method}", "nvfp4")
        with squish.open(tmp_path / method, "safetensors") as file:
            scale = file[f"{LAYER}.{name}"].numpy().astype(np.float64).reshape(-1)
            assert scale**product == pytest.approx(np.abs(values).max() / (448 * 6), rel=1e-6)
            assert file[f"{LAYER}.weight_scale"].numpy().astype(np.float32).max() == 448


def test_fp8_states_one_block_and_modelopt_one_algorithm_a_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = tmp_path / "plain.safetensors"
    write_floats(source, {f"{number}.weight": rng.normal(size=(128, 128)) for number in range(2)})
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "fp8", "hf:method=fp8", ["0.*=fp8", "1.*=fp8_block"])
    assert caught.value.code == "mixed"
    squish.convert(source, tmp_path / "modelopt", "hf:method=modelopt", ["0.*=nvfp4", "1.*=fp8_row"])
    declared = json.loads((tmp_path / "modelopt" / "config.json").read_text())["quantization_config"]
    assert declared["quant_algo"] == "MIXED_PRECISION"
    assert declared["quantized_layers"] == {
        "0": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "1": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    }
    with squish.open(tmp_path / "modelopt") as file:
        assert not file.problems
        assert file["0.weight"].numpy().shape == file["1.weight"].numpy().shape == (128, 128)


@pytest.mark.parametrize(
    ("method", "encode"), [("fp8", "fp8_row"), ("fp8", "int4"), ("fbgemm_fp8", "fp8"), ("modelopt", "int4"),
                           ("modelopt", "float8:block=64x64"), ("awq", "fp8")],
)  # fmt: skip
def test_float_methods_refuse_what_they_do_not_hold(method: str, encode: str, tmp_path: Path) -> None:
    write_floats(tmp_path / "plain.safetensors", {f"{LAYER}.weight": np.ones((128, 128), np.float32)})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "plain.safetensors", tmp_path / "out", f"hf:method={method}", {"*": encode})
    assert (caught.value.code, caught.value.tensor) == ("refused", f"{LAYER}.weight")
    assert not (tmp_path / "out").exists()


def test_a_method_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(DATA / "awq-gemm_w4_g128", tmp_path / "out", "hf:method=gtpq")
    assert (caught.value.code, caught.value.file, caught.value.tensor) == ("option", None, None)


def test_without_a_method_a_folder_of_plain_values_is_written(tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(DATA / "awq-gemm_w4_g128", tmp_path / "codes", "hf")
    assert caught.value.code == "refused"
    squish.convert(DATA / "awq-gemm_w4_g128", tmp_path / "out", "hf", encode="f16")
    with squish.open(tmp_path / "out") as file:
        assert (file.format, file.problems) == ("safetensors", ())
        assert {file[name].codec for name in file} == {"dense"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "float16"
    assert "quantization_config" not in config


def test_only_compressed_tensors_allows_several_settings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = tmp_path / "plain.safetensors"
    write_floats(source, {f"{number}.weight": rng.normal(size=(64, 128)) for number in range(2)})
    rules = [
        f"{number}.*=affine:bits=4,group_size={32 << number},offset=zero_point,offset_dtype=packed,word=i32"
        for number in range(2)
    ]
    squish.convert(source, tmp_path / "both", "hf:method=compressed-tensors", encode=rules)
    groups = json.loads((tmp_path / "both" / "config.json").read_text())["quantization_config"]["config_groups"]
    sizes = [(group["targets"], group["weights"]["group_size"]) for group in groups.values()]
    assert sizes == [(["0"], 32), (["1"], 64)]
    with squish.open(tmp_path / "both") as file:
        assert not file.problems
        file["1.weight"].numpy()
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "both", tmp_path / "awq", "hf:method=awq")
    assert caught.value.code == "mixed"


def test_the_refusal_of_an_encoding_names_the_stored_codes_too(tmp_path: Path) -> None:
    with expect_error(SquishError, code="refused", tensor="model.layers.0.self_attn.k_proj.weight"):
        squish.convert(DATA / "gptq-planar_w6_g64", tmp_path / "o.safetensors", encode="affine:bits=4,group_size=8")


@pytest.mark.parametrize(
    ("to", "encode", "methods"),
    [
        ("hf:method=gptq", "int4:group_size=32", "gptq, gptq_v2, awq, compressed-tensors"),
        ("hf:method=fp8", "fp8_block", "compressed-tensors, fp8"),
    ],
)
def test_the_message_without_a_method_names_those_for_the_codes(
    to: str, encode: str, methods: str, tmp_path: Path
) -> None:
    squish.save(tmp_path / "codes", {"a.weight": np.ones((128, 128), np.float32)}, format=to, encode=encode)
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(tmp_path / "codes", tmp_path / "out", "hf")
    assert (caught.value.code, caught.value.tensor) == ("refused", "a.weight")
    assert f" codes: {methods}" in caught.value.message


def test_the_message_without_a_method_says_when_biases_fit(tmp_path: Path) -> None:
    squish.save(tmp_path / "mlx", {"a.weight": np.ones((128, 128), np.float32)}, format="mlx", encode="q4")
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(tmp_path / "mlx", tmp_path / "out", "hf")
    assert caught.value.code == "refused"
    assert "(methods for its 4-bit codes if its biases are multiples of its scales: gptq" in caught.value.message


@pytest.mark.parametrize(("stored", "read"), [(None, False), ({"0": {"content": "<s>"}}, True)])
def test_a_null_on_which_transformers_fails_is_left_out(
    stored: dict[str, object] | None, read: bool, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    squish.save(tmp_path / "source" / "model.safetensors", {"w": np.ones((4, 4), "f4")})
    options = json.dumps({"added_tokens_decoder": stored, "bos_token": None})
    (tmp_path / "source" / "tokenizer_config.json").write_text(options)
    report = squish.convert(tmp_path / "source", tmp_path / "out", "hf")
    written = (tmp_path / "out" / "tokenizer_config.json").read_text()
    assert json.loads(written) == ({"bos_token": None} if not read else json.loads(options))
    assert any("added_tokens_decoder is null" in note for note in report.notes) is not read
    assert read is (written == options)
