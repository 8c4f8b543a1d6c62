"""Scales of the inputs of a layer (AWQ, SmoothQuant), which are factors of its columns: ModelOpt, ComfyUI, torchao."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_samples import BF16, E4M3, checkpoint, written

import squish_core as squish
from squish_core.api import SquishError, TensorError
from squish_core.testing import expect_error

OUT, IN = 8, 64
RNG = np.random.default_rng(0)
SCALE = RNG.uniform(0.5, 2, IN).astype(BF16)
WIDE = SCALE.astype(np.float32)
NVFP4 = {
    "weight": RNG.integers(0, 256, (OUT, IN // 2), np.uint8),
    "weight_scale": RNG.uniform(0.1, 1, (OUT, 4)).astype(E4M3),
    "weight_scale_2": np.float32(0.5),
}
FLOAT8 = {"weight": RNG.normal(size=(OUT, IN)).astype(E4M3), "weight_scale": np.float32(0.25)}
INT8 = {
    "weight": RNG.integers(-127, 128, (OUT, IN)).astype(np.int8),
    "weight_scale": np.linspace(0.1, 1, OUT, dtype=np.float32),
}
INT4 = {
    "weight": RNG.integers(0, 256, (OUT // 2, IN), np.uint8),
    "weight_scale": RNG.uniform(0.1, 1, (OUT, 2)).astype(np.float32),
}
MARK = np.frombuffer(
    json.dumps({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16}).encode(), np.uint8
)


def modelopt(algorithm: str) -> dict[str, Any]:
    return {"config.json": {"quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm}}}


def two_layers(parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same layer twice: `plain`, and `up` with what is passed."""
    layers = {f"{layer}__{name}": array for layer in ("plain", "up") for name, array in parts.items()}
    return {**layers, **{f"up__{name}": array for name, array in more.items()}}


CASES = {
    "NVFP4_AWQ": (modelopt("NVFP4_AWQ"), NVFP4, SCALE),
    "NVFP4": (modelopt("NVFP4"), NVFP4, SCALE.astype(np.float32)),
    "FP8": (modelopt("FP8"), FLOAT8, SCALE.astype(np.float16)),
    "W4A16_AWQ": (modelopt("W4A16_AWQ"), INT4, SCALE),
    "W8A8_SQ_PER_CHANNEL": (modelopt("W8A8_SQ_PER_CHANNEL"), INT8, SCALE[None]),
    "dense": (modelopt("NVFP4_AWQ"), {"weight": RNG.normal(size=(OUT, IN)).astype(BF16)}, SCALE),
    "ComfyUI": ({}, {**FLOAT8, "comfy_quant": np.frombuffer(b'{"format": "float8_e4m3fn"}', np.uint8)}, SCALE),
    "ComfyUI, rotated": ({}, {**INT8, "comfy_quant": MARK}, SCALE),
    "another method": ({"config.json": {"quantization_config": {"quant_method": "fp8"}}}, FLOAT8, SCALE),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_scales_are_factors_of_the_columns(case: str, tmp_path: Path) -> None:
    beside, parts, scale = CASES[case]
    with written(tmp_path / "in", beside, **two_layers(parts, pre_quant_scale=scale)) as file:
        assert {problem.severity for problem in file.problems} <= {"note"}
        assert list(file) == ["plain.weight", "up.weight"]
        expected = file["plain.weight"].numpy().astype(np.float32) * scale.astype(np.float32).reshape(-1)
        weight = file["up.weight"]
        assert (weight.dtype, weight.spec.extras.keys() - {"comfy_quant"}) == ("f32", set())
        np.testing.assert_array_equal(weight.numpy(), expected)
        np.testing.assert_array_equal(weight[3:5, 16:48], expected[3:5, 16:48])
        inputs = RNG.normal(size=(3, IN)).astype(np.float32)
        np.testing.assert_allclose(weight.load().linear(inputs), inputs @ expected.T, rtol=1e-4, atol=1e-3)
        with expect_error(TensorError, code="refused"):
            squish.convert(file, tmp_path / "never.safetensors", only="up.weight")
        squish.convert(file, tmp_path / "out.safetensors", encode="f32")
        states = [tensor.state for tensor in squish.diff(file, tmp_path / "out.safetensors").tensors]
        assert states == ["values", "values"]
    with squish.open(tmp_path / "out.safetensors") as file:
        assert list(file) == ["plain.weight", "up.weight"]
        np.testing.assert_array_equal(file["up.weight"].numpy(), expected)


def test_rotated_layers_with_scales_are_noted(tmp_path: Path) -> None:
    with written(tmp_path, {}, **two_layers({**INT8, "comfy_quant": MARK}, pre_quant_scale=SCALE)) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [
            ("convrot", "plain.weight"),
            ("convrot", "up.weight"),
        ]


def test_torchao_stores_them_in_its_tensor_class(tmp_path: Path) -> None:
    described = json.dumps({"_type": "Int8Tensor", "_data": {"block_size": [1, IN]}})
    arrays = {
        f"{layer}._weight_{name}": array
        for layer in ("plain", "up")
        for name, array in (("qdata", INT8["weight"]), ("scale", INT8["weight_scale"][:, None]))
    }
    arrays["up._weight_act_pre_scale"] = WIDE
    squish.save(
        tmp_path / "model.safetensors", arrays, metadata={f"{layer}.weight": described for layer in ("plain", "up")}
    )
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "torchao"}}')
    with squish.open(tmp_path) as file:
        np.testing.assert_array_equal(file["up.weight"].numpy(), file["plain.weight"].numpy() * WIDE)


@pytest.mark.parametrize(
    ("algorithm", "parts", "declared"),
    [
        ("NVFP4_AWQ", NVFP4, {"quant_algo": "NVFP4_AWQ", "group_size": 16, "has_zero_point": False,
                              "pre_quant_scale": True}),
        ("FP8", FLOAT8, {"quant_algo": "FP8"}),
    ],
)  # fmt: skip
def test_modelopt_is_written_again_byte_for_byte(
    algorithm: str, parts: dict[str, Any], declared: dict[str, Any], tmp_path: Path
) -> None:
    written(tmp_path / "in", modelopt(algorithm), **two_layers(parts, pre_quant_scale=SCALE)).close()
    report = squish.convert(tmp_path / "in", tmp_path / "out", "hf:method=modelopt")
    assert ({step.action for step in report.steps}, report.dropped) == ({"copy"}, ())
    with squish.open(tmp_path / "in", "safetensors") as old, squish.open(tmp_path / "out", "safetensors") as new:
        assert set(old) == set(new)
        for name in old:
            assert (old[name].dtype, old[name].shape) == (new[name].dtype, new[name].shape)
            assert old[name].numpy().tobytes() == new[name].numpy().tobytes(), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config == {"quant_method": "modelopt", **declared, "ignore": []}
    states = {tensor.state for tensor in squish.diff(tmp_path / "in", tmp_path / "out").tensors}
    assert states == {"bytes"}


@pytest.mark.parametrize(
    "target", ["hf", "hf:method=compressed-tensors", "hf:method=fp8", "mlx", "gguf", "safetensors"]
)
def test_targets_without_a_place_for_them_refuse_with_what_to_ask_for(target: str, tmp_path: Path) -> None:
    pytest.importorskip("squish_gguf") if target == "gguf" else None
    with written(tmp_path / "in", modelopt("NVFP4"), **two_layers(NVFP4, pre_quant_scale=SCALE)) as file:
        with pytest.raises(TensorError) as caught:
            squish.convert(file, tmp_path / "out", target, only="up.weight")
        assert (caught.value.code, "encode=" in str(caught.value.hint)) == ("refused", True)
    assert not (tmp_path / "out").exists()


def test_values_are_encoded_again_with_the_factors_in_them(tmp_path: Path) -> None:
    tensors = two_layers({"weight": RNG.normal(size=(OUT, IN)).astype(BF16)}, pre_quant_scale=SCALE)
    with written(tmp_path / "in", modelopt("NVFP4"), **tensors) as file:
        squish.convert(file, tmp_path / "out", "hf:method=modelopt", encode="fp8")
        with squish.open(tmp_path / "out") as again:
            assert "hf.column_scales" not in str(again["up.weight"].codec)
            np.testing.assert_allclose(again["up.weight"].numpy(), file["up.weight"].numpy(), rtol=0.07, atol=0.01)


@pytest.mark.parametrize(
    ("tensors", "where", "code"),
    [
        (two_layers(NVFP4, pre_quant_scale=SCALE[:-1]), "up.weight", "shape"),
        (two_layers(NVFP4, pre_quant_scale=np.ones((2, IN), BF16)), "up.weight", "shape"),
        (two_layers(NVFP4, pre_quant_scale=np.ones(IN, np.int8)), "up.weight", "shape"),
        (two_layers(NVFP4, pre_quant_scale=np.float32(1)), "up.weight", "shape"),
        ({"up__weight": np.float32(1), "up__pre_quant_scale": np.float32(1)}, "up.weight", "shape"),
        (two_layers(NVFP4, svdquant_lora_a=np.ones((4, IN), BF16), svdquant_lora_b=np.ones((OUT, 4), BF16),
                    pre_quant_scale=SCALE), "up.weight", "layout"),
        ({"m__experts__up_proj": np.ones((2, 8, 8), E4M3), "m__experts__up_proj_weight_scale": np.float32(1),
          "m__experts__up_proj_pre_quant_scale": np.ones(8, BF16)}, "m.experts.up_proj", "layout"),
        ({"m__experts__up_proj": np.ones((2, 8, 8), BF16), "m__experts__up_proj_pre_quant_scale": np.ones(8, BF16)},
         "m.experts.up_proj", "layout"),
    ],
)  # fmt: skip
def test_what_cannot_be_folded_in_refuses_its_layer(
    tensors: dict[str, Any], where: str, code: str, tmp_path: Path
) -> None:
    algorithm = "NVFP4" if where == "up.weight" else "FP8"
    with written(tmp_path, modelopt(algorithm), **tensors) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [(code, where)]
        with pytest.raises(SquishError):
            file[where].numpy()
        assert any("pre_quant_scale" in name for name in file[where].parts())


def test_scales_without_a_weight_beside_them_stay_tensors(tmp_path: Path) -> None:
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8"}
    layer = {f"a__{name}": array for name, array in FLOAT8.items()}
    with checkpoint(tmp_path, quantization, **layer, experts__pre_quant_scale=SCALE) as file:
        assert (list(file), file.problems) == (["a.weight", "experts.pre_quant_scale"], ())
