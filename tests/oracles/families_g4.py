"""Gemma 4 and Gemma 3n for `families.FAMILIES`."""

from __future__ import annotations

from typing import Any

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
WINDOW, FULL = "sliding_attention", "full_attention"
ROPE = {
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    WINDOW: {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA4 = {
    "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "sliding_window": 32,
    "layer_types": [WINDOW, FULL, WINDOW, WINDOW, WINDOW, FULL], "final_logit_softcapping": 30.0,
    "rope_parameters": ROPE, "tie_word_embeddings": True, "attention_k_eq_v": False, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False, "enable_moe_block": False,
}  # fmt: skip
SMALL = {
    **GEMMA4, "layer_types": [WINDOW, WINDOW, FULL] * 2, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 640, "num_key_value_heads": 1,
}  # fmt: skip
"""Per-layer embeddings, and layers that take keys and values of earlier ones, as in E2B."""
WIDE = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
"""Keys that are also values, as in 31B; windows without a period."""
EXPERTS = {
    **WIDE, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
}  # fmt: skip
"""Experts beside a dense MLP, as in 26B-A4B."""
TOKENIZER = {"tokenizer": "gemma4", "special": SPECIAL}

TOWER = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "patch_size": 4, "position_embedding_size": 16,
}  # fmt: skip
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "max_position_embeddings": 512,
    "vocab_size": 640,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma4_text": {"config": SMALL, **TOKENIZER},
    "gemma4_text-31b": {"model_type": "gemma4_text", "config": WIDE, **TOKENIZER},
    "gemma4_text-26b": {"model_type": "gemma4_text", "config": EXPERTS, **TOKENIZER},
    "gemma4_unified_text": {"config": WIDE, **TOKENIZER},
    "gemma4": {"config": {"vision_config": TOWER, "audio_config": None}, "text": {**SIZES, **SMALL}, **TOKENIZER},
}  # fmt: skip
