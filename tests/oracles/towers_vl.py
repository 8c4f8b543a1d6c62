"""Tiny models with the towers of Pixtral, InternVL, LFM2-VL, Gemma 4 and Kimi-VL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import squish_core as squish

from . import families_g4

SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
COLORS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 56, "patch_size": 14, "head_dim": 16, "rope_theta": 10000.0,
}  # fmt: skip
BREAK = {"tokenizer_config.json": {"added_tokens_decoder": {"12": {"content": "[IMG_BREAK]", "special": True}}}}
SAVED = {"vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."}
"""Published prefixes -> those of the classes in Transformers."""
INTERNVL = {
    "architectures": ["InternVisionModel"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 2, "image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True,
    "layer_norm_eps": 1e-5,
}  # fmt: skip
"""The class is not Transformers' own but the authors', the only one that llama.cpp's converter knows."""
CHAT = {
    "language_model.": "language_model.", "multi_modal_projector.layer_norm.": "mlp1.0.",
    "multi_modal_projector.linear_1.": "mlp1.1.", "multi_modal_projector.linear_2.": "mlp1.3.",
    "vision_tower.": "vision_model.",
}  # fmt: skip
CHAT_PARTS = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding", "encoder.layer.": "encoder.layers.",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.projection_layer": "attn.proj",
    "lambda_1": "ls1", "lambda_2": "ls2",
}  # fmt: skip
GEMMA4 = {
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "patch_size": 16, "position_embedding_size": 40,
}  # fmt: skip
GEMMA4_TEXT = {**SIZE, **families_g4.GEMMA4}


def fill_buffers(folder: Path) -> None:
    """Give the buffers of a Gemma 4 values that count: bounds of matrices, and the bias and scale of the tower."""
    with squish.open(folder / "model.safetensors") as file:
        arrays = {name: file[name].numpy() for name in file}
    bounds = {"input_max": 1.5, "input_min": -1.25, "output_max": 0.75, "output_min": -0.5}
    generator = np.random.default_rng(3)
    for name, array in arrays.items():
        kind = name.rpartition(".")[2]
        if kind in bounds:
            arrays[name] = np.full_like(array, bounds[kind])
        elif kind in ("std_bias", "std_scale"):
            arrays[name] = (1 + 0.2 * generator.standard_normal(array.shape)).astype(array.dtype)
    (folder / "model.safetensors").unlink()
    squish.save(folder / "model.safetensors", arrays)


def spell_as_the_authors(folder: Path) -> None:
    """Give an InternVL the names of `internvl_chat`, with fused queries, keys and values, and its config.json."""
    with squish.open(folder / "model.safetensors") as file:
        arrays = {name: file[name].numpy() for name in file}
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        prefix = next(each for each in CHAT if name.startswith(each))
        own = CHAT[prefix] + name.removeprefix(prefix)
        for part, replacement in CHAT_PARTS.items() if "vision" in own else ():
            own = own.replace(part, replacement)
        if "k_proj" in own or "v_proj" in own:
            continue
        if "q_proj" in own and "vision" in own:
            array = np.concatenate([arrays[name.replace("q_proj", f"{each}_proj")] for each in "qkv"])
            own = own.replace("attention.q_proj", "attn.qkv")
        renamed[own] = array
    (folder / "model.safetensors").unlink()
    squish.save(folder / "model.safetensors", renamed)
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    for name, own in {"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"}.items():
        vision[own] = vision.pop(name)
    vision |= {"image_size": 56, "patch_size": 14, "model_type": "intern_vit_6b"}
    config |= {"llm_config": config.pop("text_config"), "model_type": "internvl_chat", "ps_version": "v2"}
    config |= {
        "architectures": ["InternVLChatModel"],
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
        "select_layer": -1,
    }
    (folder / "config.json").write_text(json.dumps(config))


MODELS: dict[str, dict[str, Any]] = {
    "mistral3": {
        "config": {
            "text_config": {**SIZE, "head_dim": 32, "model_type": "mistral"},
            "vision_config": {**PIXTRAL, "hidden_act": "silu"},
            "spatial_merge_size": 2,
        },
        "images": {**COLORS, "size": {"longest_edge": 56}, "patch_size": 14},
        "files": BREAK,
    },
    "llava": {
        "config": {
            "text_config": {**SIZE, "model_type": "mistral"},
            "vision_config": {**PIXTRAL, "hidden_act": "gelu"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        "images": {**COLORS, "size": {"longest_edge": 56}, "patch_size": 14},
        "files": BREAK,
    },
    "internvl": {
        "config": {
            "text_config": {**SIZE, "model_type": "qwen2"},
            "vision_config": INTERNVL,
            "downsample_ratio": 0.5,
        },
        "images": {**COLORS, "size": {"height": 56, "width": 56}},
        "published": SAVED,
    },
    "internvl_chat": {
        "model_type": "internvl",
        "config": {
            "text_config": {**SIZE, "model_type": "qwen2"},
            "vision_config": INTERNVL,
            "downsample_ratio": 0.5,
        },
        "images": {**COLORS, "size": 56, "crop_size": 56},
        "finish": spell_as_the_authors,
    },
    "gemma4": {
        "config": {"text_config": GEMMA4_TEXT, "vision_config": {**GEMMA4, "standardize": True}, "audio_config": None},
        "images": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
        "finish": fill_buffers,
    },
    "gemma4-clipped": {
        "model_type": "gemma4",
        "config": {
            "text_config": GEMMA4_TEXT,
            "vision_config": {**GEMMA4, "use_clipped_linears": True},
            "audio_config": None,
        },
        "images": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
        "finish": fill_buffers,
    },
    "lfm2_vl": {
        "config": {
            "text_config": {**SIZE, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "patch_size": 16,
                "num_patches": 256,
                "vision_use_head": False,
            },
            "projector_hidden_size": 40,
            "downsample_factor": 2,
        },
        "images": {**COLORS, "size": {"height": 512, "width": 512}, "resample": 2, "tile_size": 512},
        "published": {"model.vision_tower.": "model.vision_tower.vision_model."},
    },
}
"""As in `towers`; `files`: other files of the folder; `finish`: a function of the folder."""
