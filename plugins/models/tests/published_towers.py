"""Small vision towers with configs in the spelling of published checkpoints, and the way back from their GGUFs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import published_towers_qwen
from squish_convert.api import Carried, Family
from squish_convert.mapping.mapped import MappedFile, family_of, naming_of

import squish_core as squish
from squish_core.testing import model_arrays

TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
COLORS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
BREAK = {"12": {"content": "[IMG_BREAK]", "special": True}}
PIXTRAL = {
    "attention_dropout": 0.0, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "image_size": 56,
    "intermediate_size": 48, "model_type": "pixtral", "num_attention_heads": 2, "num_channels": 3,
    "num_hidden_layers": 2, "patch_size": 14, "rope_theta": 10000.0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "mistral3": {  # Mistral Small 3.1 and 3.2
        "family": "pixtral.vision",
        "config": {
            "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
            "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
            "text_config": {**TEXT, "model_type": "mistral", "head_dim": 16}, "vision_config": PIXTRAL,
            "vision_feature_layer": -1,
        },
        "files": {"tokenizer_config.json": {"added_tokens_decoder": BREAK}},
        "embedding": "language_model.model.embed_tokens.weight",
    },
    "pixtral": {  # Pixtral 12B, whose tower has the sizes that Transformers takes by itself
        "family": "pixtral.vision",
        "config": {
            "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 10, "model_type": "llava",
            "projector_hidden_act": "gelu", "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            "text_config": {**TEXT, "model_type": "mistral", "head_dim": 16},
            "vision_config": {**PIXTRAL, "hidden_act": "gelu"},
        },
        "files": {"tokenizer.json": {"added_tokens": [{"id": 12, "content": "[IMG_BREAK]"}]}},
        "embedding": "language_model.model.embed_tokens.weight",
    },
    **published_towers_qwen.MODELS,
}  # fmt: skip
"""Name -> the family, config.json, other files, settings of the image processor beyond COLORS, and the name of the text
model's embedding where the tower needs it."""


def arrays_of(name: str, dtype: str = "bf16") -> dict[str, np.ndarray]:
    """The tower's tensors under their published names, and those of the text model that it needs."""
    model = MODELS[name]
    arrays = model_arrays(model["family"], model["config"], dtype)
    if "embedding" in model:
        shape = (TEXT["vocab_size"], TEXT["hidden_size"])
        arrays[model["embedding"]] = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    return arrays


def save(
    folder: Path,
    name: str,
    arrays: Mapping[str, np.ndarray] | None = None,
    config: Any = None,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model's folder, perhaps with other tensors, another config or other files."""
    model = MODELS[name]
    images = {**COLORS, **model.get("images", {})}
    contents = {"config.json": config or model["config"], "preprocessor_config.json": images, **model.get("files", {})}
    assets = {file: json.dumps(content).encode() for file, content in {**contents, **(files or {})}.items()}
    squish.save(folder, arrays or arrays_of(name), format="safetensors:max_shard_size=1GB", assets=assets)
    return folder


class _Tensors(Family):
    """A family whose tensors are mapped without its settings."""

    def carry(self, *_: Any) -> Carried:
        return Carried(vectors="bf16")


def back(tower: Path) -> dict[str, np.ndarray]:
    """The tensors of a tower's GGUF under the names that a folder has."""
    with squish.open(tower) as file:
        naming = naming_of(file)
        family = copy.copy(family_of(file, naming))
        family.__class__ = type("Tensors", (_Tensors, type(family)), {})
        mapped = MappedFile(file, family, naming, "hf", {})
        return {name: mapped[name].numpy() for name in mapped}
