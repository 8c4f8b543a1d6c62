"""Checkpoints that ModelOpt quantizes and exports while the test runs, against its own dequantization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = pytest.mark.oracle


def exported(folder: str, scheme: str) -> Any:
    """Runs in the peer: exports a seeded model of one layer with an FP8 cache; its weights by the package's tensors."""
    import torch
    from modelopt.torch import quantization
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.export.quant_utils import from_quantized_weight, pack_int4_in_uint8
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
    from modelopt.torch.quantization.utils import update_quant_cfg_with_kv_cache_quant
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    settings = update_quant_cfg_with_kv_cache_quant(
        getattr(quantization, f"{scheme}_CFG"), quantization.FP8_KV_CFG["quant_cfg"]
    )
    quantization.quantize(model, settings, lambda model: model(torch.randint(0, 64, (2, 16))))
    export_hf_checkpoint(model, export_dir=folder)
    stored, weights = load_file(f"{folder}/model.safetensors"), {}
    for name, data in stored.items():
        if f"{name}_scale" not in stored:
            continue
        scale = stored[f"{name}_scale"]
        if "INT8" in scheme:
            weights[name] = from_quantized_weight(data, scale, "int8_wo", torch.float32).numpy()
            continue
        if "INT4" in scheme:  # two rows a byte, as the package's own packing confirms
            codes = torch.stack([data & 15, data >> 4], dim=1).reshape(-1, data.shape[1]).to(torch.float32)
            group = codes.shape[1] // scale.shape[1]
            wide = (codes - 16 * (codes > 7)) * scale.float().repeat_interleave(group, 1)
            assert torch.equal(pack_int4_in_uint8(wide, scale.float(), group), data)
            weights[name] = wide.numpy()
            continue
        kinds = {"NVFP4": NVFP4QTensor, "MXFP4": MXFP4QTensor, "MXFP8": MXFP8QTensor}
        kind = next((kinds[name] for name in kinds if name in scheme), FP8QTensor)
        wide = (data.shape[0], data.shape[1] * (2 if data.dtype == torch.uint8 else 1))
        more = {"scale": scale[:, None] if scale.dim() == 1 else scale}
        if kind is not FP8QTensor:
            more["block_sizes"] = {-1: wide[1] // scale.shape[-1]}
        if kind is NVFP4QTensor:
            more["double_scale"] = stored[f"{name}_scale_2"]
        weights[name] = kind(torch.Size(wide), torch.bfloat16, data).dequantize(torch.float32, **more).numpy()
    factors = {name: stored[name].float().numpy() for name in stored if name.endswith(".pre_quant_scale")}
    for name, factor in factors.items():  # as `x * factor` in its TensorQuantizer
        weights[name.replace("pre_quant_scale", "weight")] *= factor
    cached = {name: part.float().numpy() for name, part in stored.items() if name.endswith((".k_scale", ".v_scale"))}
    return {"weights": weights, "cached": cached, "scaled": [name.rpartition(".")[0] for name in factors]}


@pytest.mark.parametrize(
    ("scheme", "codec"),
    [
        ("NVFP4_DEFAULT", "mx"), ("W4A16_NVFP4", "mx"), ("W4A8_NVFP4_FP8", "mx"), ("MXFP4_DEFAULT", "mx"),
        ("W4A8_MXFP4_FP8", "mx"), ("MXFP8_DEFAULT", "mx"), ("FP8_DEFAULT", "float8"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "float8"), ("INT8_WEIGHT_ONLY", "affine"), ("INT8_SMOOTHQUANT", "affine"),
        ("INT4_AWQ", "affine"),
    ],
)  # fmt: skip
def test_weights_are_those_of_the_package_and_cache_scales_are_kept(scheme: str, codec: str, tmp_path: Path) -> None:
    reference = oracles.peer("modelopt").run(exported, folder=str(tmp_path), scheme=scheme)
    assert (len(reference["weights"]), len(reference["cached"])) == (7, 2)
    assert bool(reference["scaled"]) == ("AWQ" in scheme or "SMOOTH" in scheme)
    for alone in (False, True):
        if alone:  # what older versions leave: the file of ModelOpt's own
            config = json.loads((tmp_path / "config.json").read_text())
            del config["quantization_config"]
            (tmp_path / "config.json").write_text(json.dumps(config))
        with squish.open(tmp_path) as file:
            assert (file.format, file.problems) == ("hf", ())
            for name, weight in reference["weights"].items():
                stored = file[name].spec.encodings[0].codec
                assert (stored.inner or stored).id == codec
                assert (stored.id == "hf.column_scales") == (name.removesuffix(".weight") in reference["scaled"])
                np.testing.assert_array_equal(file[name].numpy(), weight, err_msg=name)
            for name, scale in reference["cached"].items():
                layer, _, role = name.rpartition(".")
                part = file[f"{layer}.weight"].parts()[role]
                np.testing.assert_array_equal(np.asarray(part.numpy(), np.float32), scale)


WRITABLE = ("NVFP4_DEFAULT", "MXFP4_DEFAULT", "MXFP8_DEFAULT", "FP8_DEFAULT", "FP8_PER_CHANNEL_PER_TOKEN")


@pytest.mark.peers
@pytest.mark.parametrize("scheme", WRITABLE)
def test_what_the_package_exported_is_written_again_byte_for_byte(scheme: str, tmp_path: Path) -> None:
    weights = oracles.peer("modelopt").run(exported, folder=str(tmp_path / "in"), scheme=scheme)["weights"]
    report = squish.convert(tmp_path / "in", tmp_path / "out", "hf:method=modelopt")
    assert {step.action for step in report.steps} == {"copy"}
    with squish.open(tmp_path / "in", "safetensors") as old, squish.open(tmp_path / "out", "safetensors") as new:
        scales = [name for name in new if name.rpartition("_scale")[0] in weights]
        assert scales
        for name in (*weights, *scales):
            assert (old[name].dtype, old[name].shape) == (new[name].dtype, new[name].shape)
            assert old[name].numpy().tobytes() == new[name].numpy().tobytes(), name
    with squish.open(tmp_path / "out") as file:
        assert not file.problems
        for name, weight in weights.items():
            np.testing.assert_array_equal(file[name].numpy(), weight, err_msg=name)
