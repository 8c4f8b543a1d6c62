"""Checkpoints that ModelOpt quantises and exports while the test runs, against its own dequantisation."""

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
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
    from modelopt.torch.quantization.utils import update_quant_cfg_with_kv_cache_quant
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, tie_word_embeddings=False, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    asked = update_quant_cfg_with_kv_cache_quant(
        getattr(quantization, f"{scheme}_DEFAULT_CFG"), quantization.FP8_KV_CFG["quant_cfg"]
    )
    quantization.quantize(model, asked, lambda model: model(torch.randint(0, 64, (2, 16))))
    export_hf_checkpoint(model, export_dir=folder)
    stored, weights = load_file(f"{folder}/model.safetensors"), {}
    for name, data in stored.items():
        if f"{name}_scale" not in stored:
            continue
        wide = (data.shape[0], data.shape[1] * (2 if scheme == "NVFP4" else 1))
        kind = NVFP4QTensor if scheme == "NVFP4" else FP8QTensor
        more = {"double_scale": stored[f"{name}_scale_2"], "block_sizes": {-1: 16}} if scheme == "NVFP4" else {}
        tensor = kind(torch.Size(wide), torch.bfloat16, data)
        weights[name] = tensor.dequantize(torch.float32, scale=stored[f"{name}_scale"], **more).numpy()
    cached = {name: part.float().numpy() for name, part in stored.items() if name.endswith((".k_scale", ".v_scale"))}
    return {"weights": weights, "cached": cached}


@pytest.mark.parametrize(("scheme", "codec"), [("NVFP4", "mx"), ("FP8", "float8")])
def test_weights_are_those_of_the_package_and_cache_scales_are_kept(scheme: str, codec: str, tmp_path: Path) -> None:
    found = oracles.peer("modelopt").run(exported, folder=str(tmp_path), scheme=scheme)
    assert (len(found["weights"]), len(found["cached"])) == (7, 2)
    for alone in (False, True):
        if alone:  # what older versions leave: the file of ModelOpt's own
            config = json.loads((tmp_path / "config.json").read_text())
            del config["quantization_config"]
            (tmp_path / "config.json").write_text(json.dumps(config))
        with squish.open(tmp_path) as file:
            assert (file.format, file.problems) == ("hf", ())
            for name, weight in found["weights"].items():
                assert file[name].spec.encodings[0].codec.id == codec
                np.testing.assert_array_equal(file[name].numpy(), weight, err_msg=name)
            for name, scale in found["cached"].items():
                layer, _, role = name.rpartition(".")
                part = file[f"{layer}.weight"].parts()[role]
                np.testing.assert_array_equal(np.asarray(part.numpy(), np.float32), scale)
