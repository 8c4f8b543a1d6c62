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
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import MappedFile, family_of, map_file, naming_of
from squish_convert.mapping.names import fill, members

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
INTERNVL = {
    "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 32, "intermediate_size": 48, "layer_norm_eps": 1e-06,
    "norm_type": "layer_norm", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2,
}  # fmt: skip
GEMMA4 = {
    "attention_bias": False, "default_output_length": 280, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 32, "intermediate_size": 48, "model_type": "gemma4_vision", "num_attention_heads": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "patch_size": 4, "pooling_kernel_size": 3,
    "position_embedding_size": 20, "rms_norm_eps": 1e-06, "standardize": False, "use_clipped_linears": False,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
}  # fmt: skip
LFM2 = {
    "architectures": ["Lfm2VlForConditionalGeneration"], "do_image_splitting": True, "downsample_factor": 2,
    "encoder_patch_size": 16, "image_token_index": 396, "model_type": "lfm2_vl", "projector_bias": True,
    "projector_hidden_act": "gelu", "projector_hidden_size": 40, "text_config": {**TEXT, "model_type": "lfm2"},
    "tile_size": 512, "vision_config": {
        "attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "intermediate_size": 48,
        "layer_norm_eps": 1e-06, "model_type": "siglip2_vision_model", "num_attention_heads": 2, "num_channels": 3,
        "num_hidden_layers": 2, "num_patches": 16, "patch_size": 16, "vision_use_head": False,
    },
    "vision_feature_layer": -1,
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
    "internvl": {  # InternVL3-1B-hf
        "family": "internvl.vision",
        "config": {
            "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 256,
            "model_type": "internvl", "projector_hidden_act": "gelu", "text_config": {**TEXT, "model_type": "qwen2"},
            "vision_config": {
                **INTERNVL, "architectures": ["InternVLVisionModel"], "attention_bias": True, "image_size": [56, 56],
                "layer_scale_init_value": 0.1, "model_type": "internvl_vision", "patch_size": [14, 14],
                "use_absolute_position_embeddings": True, "use_mask_token": False, "use_mean_pooling": True,
                "use_qk_norm": False,
            },
            "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        },
    },
    "internvl_chat": {  # InternVL2_5-1B
        "family": "internvl.vision",
        "config": {
            "architectures": ["InternVLChatModel"], "downsample_ratio": 0.5, "dynamic_image_size": True,
            "force_image_size": 56, "llm_config": {**TEXT, "model_type": "qwen2"}, "max_dynamic_patch": 12,
            "min_dynamic_patch": 1, "model_type": "internvl_chat", "ps_version": "v2", "select_layer": -1,
            "vision_config": {
                **INTERNVL, "architectures": ["InternVisionModel"], "image_size": 56, "model_type": "intern_vit_6b",
                "patch_size": 14, "qk_normalization": False, "qkv_bias": True,
            },
        },
        "images": {"crop_size": 56, "size": 56, "resample": 3},
        "respelled": True,
    },
    "gemma4": {  # Gemma 4 31B
        "family": "gemma4.vision",
        "config": {
            "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None, "model_type": "gemma4",
            "text_config": {**TEXT, "model_type": "gemma4_text"}, "vision_config": {**GEMMA4, "standardize": True},
            "vision_soft_tokens_per_image": 280,
        },
        "images": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "do_normalize": False},
    },
    "gemma4_clipped": {  # Gemma 4 E2B
        "family": "gemma4.vision",
        "config": {
            "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": {"model_type": "gemma4_audio"},
            "model_type": "gemma4", "text_config": {**TEXT, "model_type": "gemma4_text"},
            "vision_config": {**GEMMA4, "use_clipped_linears": True}, "vision_soft_tokens_per_image": 280,
        },
        "images": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "do_normalize": False},
    },
    "kimi_vl": {  # Kimi-VL-A3B-Instruct
        "family": "kimi_vl.vision",
        "config": {
            "architectures": ["KimiVLForConditionalGeneration"], "media_placeholder_token_id": 163605,
            "model_type": "kimi_vl", "text_config": {**TEXT, "model_type": "deepseek_v3"},
            "vision_config": {
                "hidden_size": 32, "init_pos_emb_height": 6, "init_pos_emb_width": 6, "intermediate_size": 48,
                "merge_kernel_size": [2, 2], "model_type": "moonvit", "num_attention_heads": 2, "num_hidden_layers": 3,
                "patch_size": 14,
            },
        },
    },
    "kimi_k25": {  # Kimi K2.5
        "family": "kimi_k25.vision",
        "config": {
            "architectures": ["KimiK25ForConditionalGeneration"], "media_placeholder_token_id": 163605,
            "model_type": "kimi_k25", "text_config": {**TEXT, "model_type": "kimi_k2"},
            "vision_config": {
                "init_pos_emb_height": 6, "init_pos_emb_time": 4, "init_pos_emb_width": 6, "merge_kernel_size": [2, 2],
                "merge_type": "sd2_tpool", "mm_hidden_size": 32, "mm_projector_type": "patchmerger", "patch_size": 14,
                "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05,
                "text_hidden_size": 64, "video_attn_type": "spatial_temporal", "vt_hidden_size": 32,
                "vt_intermediate_size": 48, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 3,
            },
        },
        "images": {"media_proc_cfg": {"in_patch_limit": 4096, "patch_size": 14}},
    },
    "lfm2_vl": {  # LFM2-VL-450M
        "family": "lfm2_vl.vision",
        "config": LFM2,
        "images": {"resample": 2, "tile_size": 512},
    },
    "lfm2_5_vl": {  # LFM2.5-VL-1.6B, whose projector has no norm
        "family": "lfm2_vl.vision",
        "config": {**LFM2, "projector_use_layernorm": False},
        "images": {"resample": 2, "tile_size": 512},
    },
    **published_towers_qwen.MODELS,
}  # fmt: skip
"""Name -> the family, config.json, other files, settings of the image processor beyond COLORS, and the name of the text
model's embedding where the tower needs it. `respelled`: the names are those of the rules, which are only read."""


def arrays_of(name: str, dtype: str = "bf16") -> dict[str, np.ndarray]:
    """The tower's tensors under their published names, and those of the text model that it needs."""
    model = MODELS[name]
    arrays = mapped_arrays(name, dtype)
    if model.get("respelled"):
        arrays = respelled(arrays, model["family"], model["config"])
    if "embedding" in model:
        shape = (TEXT["vocab_size"], TEXT["hidden_size"])
        arrays[model["embedding"]] = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    return arrays


def mapped_arrays(name: str, dtype: str = "bf16") -> dict[str, np.ndarray]:
    """The tower's tensors under the names that Squish writes."""
    return model_arrays(MODELS[name]["family"], MODELS[name]["config"], dtype)


def respelled(arrays: Mapping[str, np.ndarray], family: str, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tensors under the names of the rules of folders, joined as these say."""
    stored = dict(arrays)
    for rule in squish.registry().implementation("family", family).names["hf"]:
        for number in range(config["vision_config"]["num_hidden_layers"] if "{n}" in rule.name else 1):
            parts = [name for name, _ in members(rule.of, {"n": number}, 0)]
            if all(part in stored for part in parts):
                stored[fill(rule.name, {"n": number})] = np.concatenate([stored.pop(part) for part in parts])
    return stored


def save(
    folder: Path,
    name: str,
    arrays: Mapping[str, np.ndarray] | None = None,
    config: Any = None,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model's folder, perhaps with other tensors, another config or other files."""
    assets = _files(name, config, files)
    squish.save(folder, arrays or arrays_of(name), format="safetensors:max_shard_size=1GB", assets=assets)
    return folder


def _files(name: str, config: Any = None, files: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    model = MODELS[name]
    images = {**COLORS, **model.get("images", {})}
    contents = {"config.json": config or model["config"], "preprocessor_config.json": images, **model.get("files", {})}
    return {file: json.dumps(content).encode() for file, content in {**contents, **(files or {})}.items()}


def mapped(name: str, arrays: Mapping[str, np.ndarray]) -> MappedFile:
    """The tower of a model in memory under GGUF's names; the specs of all its tensors are computed."""
    file = in_memory(arrays, assets=_files(name))
    result = map_file(file, "gguf", {}, naming_of(file, "vision"))
    list(result.index.tensors.values())
    return result


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
