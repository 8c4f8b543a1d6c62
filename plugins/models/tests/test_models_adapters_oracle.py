"""Adapters in llama.cpp: a model with one computes what the model with merged weights computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = pytest.mark.oracle
RANK, ALPHA = 4, 8
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
FOLDER = "safetensors:max_shard_size=1GB"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_llama_cpp_adds_what_the_adapter_says(family: str, tmp_path: Path) -> None:
    source = families.make(family, tmp_path / "source")
    generator, adapter = np.random.default_rng(0), {}
    with squish.open(source) as file:
        weights = {name: file[name].numpy() for name in file}
        assets = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    for layer in range(2):
        for module in MODULES:
            name = f"model.layers.{layer}.{module}"
            rows, columns = weights[f"{name}.weight"].shape
            first = generator.standard_normal((RANK, columns), np.float32) / columns**0.5
            second = generator.standard_normal((rows, RANK), np.float32) / 2
            weights[f"{name}.weight"] = weights[f"{name}.weight"] + ALPHA / RANK * second @ first
            adapter[f"base_model.model.{name}.lora_A.weight"] = first
            adapter[f"base_model.model.{name}.lora_B.weight"] = second
    (tmp_path / "lora").mkdir()
    squish.save(tmp_path / "lora" / "adapter_model.safetensors", adapter)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "merged").mkdir()
    squish.save(tmp_path / "merged" / "model.safetensors", weights)
    for name, data in assets.items():
        (tmp_path / "merged" / name).write_bytes(data)
    for name in ("source", "merged"):
        squish.convert(tmp_path / name, tmp_path / f"{name}.gguf")
    squish.convert(tmp_path / "lora", tmp_path / "lora.gguf", assets=source)
    unmerged, merged = (engines.ask("llama.cpp", tmp_path / f"{name}.gguf", tokens=8) for name in ("source", "merged"))
    with_adapter = engines.ask("llama.cpp", tmp_path / "source.gguf", tokens=8, adapter=tmp_path / "lora.gguf")
    assert engines.difference(merged, with_adapter, 0.01) == ""
    assert engines.difference(unmerged, with_adapter, 0.01) != ""
