"""Forms of checkpoints that people have, from their reports: settings in other places, older versions, transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_samples import BF16, E4M3, bits_of, checkpoint, packed, written

import squish_core as squish
from squish_core.api import SquishError

FLOAT8 = np.array([[1, -2, 3, 0.5], [4, 8, -16, 0.25]], np.float32).astype(E4M3)
NVFP4 = {
    "a__up__weight": np.full((2, 16), 0x22, np.uint8),
    "a__up__weight_scale": np.full((2, 2), 2, np.float32).astype(E4M3),
    "a__up__weight_scale_2": np.float32(0.5),
}  # fmt: skip
"""Codes 2 (1.0) with scales of 2 and a global one of 0.5: values of 1."""
FP8_LAYER = {"a__q__weight": FLOAT8, "a__q__weight_scale": np.float32(0.5)}
MIXED = {"a.up": {"quant_algo": "NVFP4", "group_size": 16}, "a.q": {"quant_algo": "FP8"}}
WEIGHTS = {
    "float8": {"num_bits": 8, "type": "float"}, "float4": {"num_bits": 4, "type": "float", "group_size": 16},
}  # fmt: skip
GROUPS = {
    "g0": {"weights": WEIGHTS["float8"], "targets": ["a.q"]},
    "g1": {"weights": WEIGHTS["float4"], "targets": ["a.up"]},
}


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"quantized_layers": MIXED}, {}), ({}, {"quantized_layers": MIXED}), ({"config_groups": GROUPS}, {}),
        ({"config_groups": GROUPS}, {"quantized_layers": MIXED}),
    ],
)  # fmt: skip
def test_modelopt_states_layers_in_three_places(config: dict[str, Any], own: dict[str, Any], tmp_path: Path) -> None:
    declared = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    beside = {"config.json": {"quantization_config": {**declared, **config}}}
    if own:
        beside["hf_quant_config.json"] = {"quantization": {"quant_algo": "MIXED_PRECISION", **own}}
    with written(tmp_path, beside, **NVFP4, **FP8_LAYER) as file:
        assert not file.problems
        assert (file["a.up.weight"].numpy() == 1).all()
        np.testing.assert_array_equal(file["a.q.weight"].numpy(), FLOAT8.astype(np.float32) / 2)


def test_modelopt_blocks_are_read_as_deepseeks(tmp_path: Path) -> None:
    layers = {**MIXED, "mtp.down": {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 128}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    codes, scale = np.ones((160, 256), np.float32).astype(E4M3), np.array([[1, 2], [3, 4]], np.float32).astype(BF16)
    block = {"mtp__down__weight": codes, "mtp__down__weight_scale_inv": scale}
    with checkpoint(tmp_path, config, **NVFP4, **FP8_LAYER, **block) as file:
        assert not file.problems
        assert file["mtp.down.weight"].numpy()[[0, 0, 159, 159], [0, 255, 0, 255]].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "scale", [np.array([0.5], np.float32), np.float32(0.5), np.array([0.5], np.float32).astype(BF16)]
)
def test_modelopt_embeddings_may_be_float8_beside_nvfp4(scale: Any, tmp_path: Path) -> None:
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*.ple.*"]}
    with checkpoint(tmp_path, config, **NVFP4, a__ple__weight=FLOAT8, a__ple__weight_scale=scale) as file:
        assert not file.problems
        np.testing.assert_array_equal(file["a.ple.weight"].numpy(), FLOAT8.astype(np.float32) / 2)


CT_WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
CODES = np.arange(128).reshape(2, 64) % 16


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**CT_WEIGHTS, **weights}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": group}, **more}


def layer(codes: np.ndarray = CODES, **more: Any) -> dict[str, Any]:
    return {
        "a__up__weight_packed": packed(codes),
        "a__up__weight_scale": np.full((2, 2), 0.5, np.float32),
        "a__up__weight_shape": np.array(codes.shape),
        **{f"a__up__{name}": value for name, value in more.items()},
    }


def test_compressed_tensors_before_0_9_stores_zero_points_as_bytes(tmp_path: Path) -> None:
    zeros = np.array([[-8, 0], [3, 7]], np.int8)
    with checkpoint(tmp_path, compressed({"symmetric": False}), **layer(weight_zero_point=zeros)) as file:
        assert not file.problems
        expected = (CODES - 8 - zeros.repeat(32, axis=1)) * np.float32(0.5)
        np.testing.assert_array_equal(file["a.up.weight"].numpy(), expected)


def transform(*arguments: dict[str, Any]) -> dict[str, Any]:
    return {"config_groups": {"R1": {"type": "hadamard", "apply": list(arguments)}}}


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ({"targets": ["Linear"], "location": "input", "ignore": ["lm_head"]}, True),
        ({"targets": "re:.*up$", "location": "output"}, True), ({"targets": ["a.up"], "location": "input"}, True),
        ({"targets": ["Linear"], "location": "input", "ignore": ["re:a\\..*"]}, False),
        ({"targets": ["Linear"], "location": "weight_input"}, False),  # it is in the weights
        ({"targets": ["Attention"], "location": "k_cache"}, False),
        ({"targets": ["a.down"], "location": "input"}, False),
    ],
)  # fmt: skip
def test_the_message_about_weights_that_are_rotated_at_run_time(
    arguments: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    config = compressed({}, transform_config=transform(arguments))
    with checkpoint(tmp_path, config, **layer()) as file:
        assert [problem.code for problem in squish.verify(file).problems] == ["undeclared-scales"] * refused
        if not refused:
            np.testing.assert_array_equal(file["a.up.weight"].numpy(), (CODES - 8) * np.float32(0.5))
            return
        for action in (file["a.up.weight"].numpy, file["a.up.weight"].load):
            with pytest.raises(SquishError, match="transform") as caught:
                action()
            assert caught.value.code == "undeclared-scales"
        with pytest.raises(SquishError) as caught:
            squish.convert(file, tmp_path / "out.safetensors", encode="bf16")
        assert caught.value.code == "undeclared-scales"
        assert set(file["a.up.weight"].parts()) == {"weight_packed", "weight_scale", "weight_shape"}


@pytest.mark.parametrize("transforms", [{"config_groups": []}, {"config_groups": {"R": {"apply": 1}}}, [1]])
def test_invalid_transforms_refuse_every_layer(transforms: Any, tmp_path: Path) -> None:
    with checkpoint(tmp_path, compressed({}, transform_config=transforms), **layer()) as file:
        assert [problem.code for problem in file.problems] == ["config"]


def test_scales_of_an_activation_are_dense_in_awq(tmp_path: Path) -> None:
    tensors = {
        "h__up__qweight": np.zeros((32, 1), np.int32), "h__up__qzeros": np.zeros((1, 1), np.int32),
        "h__up__scales": np.ones((1, 8), np.float16), "h__act__scales": np.ones(8, np.float16),
    }  # fmt: skip
    with checkpoint(tmp_path, {"quant_method": "awq", "bits": 4, "group_size": 32}, **tensors) as file:
        assert not file.problems
        assert (file["h.act.scales"].dtype, file["h.act.scales"].shape) == ("f16", (8,))
        assert file["h.up.weight"].shape == (8, 32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("stored_minus_one", [True, False])
def test_symmetric_gptq_has_the_middle_as_zero_point(bits: int, stored_minus_one: bool, tmp_path: Path) -> None:
    middle = 1 << bits - 1
    codes = np.arange(32 * 32).reshape(32, 32) % (1 << bits)  # [in, out]
    zeros = np.full((1, 32), middle - stored_minus_one)
    tensors = {
        "up__qweight": bits_of(codes.T, bits).T.copy(), "up__qzeros": bits_of(zeros, bits),
        "up__scales": np.ones((1, 32), np.float16),
    }  # fmt: skip
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": True, "checkpoint_format": "gptq"}
    with checkpoint(tmp_path, config, **tensors) as file:
        np.testing.assert_array_equal(file["up.weight"].numpy(), (codes.T - middle).astype(np.float32))
        assert [problem.severity for problem in file.problems] == ["warning"] * (not stored_minus_one)


def test_asymmetric_gptq_keeps_the_rule_of_its_version(tmp_path: Path) -> None:
    tensors = {
        "up__qweight": packed(np.full((32, 8), 9).T).T.copy(), "up__qzeros": packed(np.full((1, 8), 8)),
        "up__scales": np.ones((1, 8), np.float16),
    }  # fmt: skip
    with checkpoint(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, **tensors) as file:
        assert not file.problems
        assert (file["up.weight"].numpy() == 0).all()
