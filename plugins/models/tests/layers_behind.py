"""Small models with a layer behind the last one, which predicts one more token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from published_configs import PUBLISHED
from squish_models.api import small_tokenizer
from squish_testing import model_arrays

import squish_core as squish

MODELS = ("Qwen3.5-4B", "Qwen3.6-35B-A3B", "Qwen3-Next-80B-A3B-Instruct", "GLM-4.5-Air", "DeepSeek-V3.2", "DeepSeek-V3")
SHARED = {"token_embd.weight", "output_norm.weight", "output.weight"}
"""Tensors that a GGUF of such layers has besides, as llama.cpp's converter writes them."""


def config_of(name: str) -> tuple[str, dict[str, Any]]:
    """Family and config.json of the text layers."""
    if name == "DeepSeek-V3":
        _, kimi = PUBLISHED["Kimi-K2-Instruct"]
        own = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}
        return "deepseek2", {**kimi, **own}
    family, config = PUBLISHED[name]
    text = config.get("text_config", config)
    return family, {"architectures": [squish.registry().implementation("family", family).class_name], **text}


def arrays_of(name: str) -> dict[str, np.ndarray]:
    """All tensors; those of the layer behind are a copy of the last one's, and four more."""
    family, config = config_of(name)
    arrays, layers = model_arrays(family, config), config["num_hidden_layers"]
    last = f"model.layers.{layers - 1}."
    moves = getattr(squish.registry().implementation("family", family), "moves", {})
    place = "mtp.layers.0." if moves else f"model.layers.{layers}."
    behind = {f"{place}{each.removeprefix(last)}": values for each, values in arrays.items() if each.startswith(last)}
    own = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    usual = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
    hidden, generator = config["hidden_size"], np.random.default_rng(0)
    for module, size in zip(own if moves else usual, ((hidden, 2 * hidden), (hidden,), (hidden,), (hidden,))):
        values = generator.random(size).astype(next(iter(arrays.values())).dtype)
        behind[f"{'mtp.' if moves else place}{module}.weight"] = values
    return arrays | behind


def write(folder: Path, name: str, *, whole: bool = True) -> Path:
    """The folder of a model, with the layer or without it."""
    _, config = config_of(name)
    arrays, first = arrays_of(name), config["num_hidden_layers"]
    kept = {each: values for each, values in arrays.items() if whole or not is_behind(each, first)}
    assets = {"config.json": json.dumps(config).encode(), **small_tokenizer(config["vocab_size"])}
    squish.save(folder, kept, format="safetensors:max_shard_size=1GB", assets=assets)
    return folder


def is_behind(name: str, layers: int) -> bool:
    """Whether a tensor is in the layer behind the last one, in a folder or in a GGUF."""
    return name.startswith((f"model.layers.{layers}.", "mtp.", f"blk.{layers}."))
