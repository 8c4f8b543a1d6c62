"""Tiny models with the towers of Pixtral, InternVL, LFM2-VL, Gemma 4 and Kimi-VL."""

from __future__ import annotations

from typing import Any

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
HUB = {"model.vision_tower.": "vision_tower.", "model.multi_modal_projector.": "multi_modal_projector."}

MODELS: dict[str, dict[str, Any]] = {
    "mistral3": {
        "config": {
            "text_config": {**SIZE, "head_dim": 32, "model_type": "mistral"},
            "vision_config": {**PIXTRAL, "hidden_act": "silu"},
            "spatial_merge_size": 2,
        },
        "images": {**COLORS, "size": {"longest_edge": 56}, "patch_size": 14},
        "files": BREAK,
        "published": {**HUB, "model.language_model.": "language_model.model."},
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
        "published": {**HUB, "model.language_model.": "language_model.model."},
    },
}
"""As in `towers`; `files`: other files of the folder."""
