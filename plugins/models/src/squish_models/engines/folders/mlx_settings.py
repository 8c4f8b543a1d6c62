"""Defaults of mlx-lm 0.32 for settings that config.json leaves out, by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MLX_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    "mixtral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 8,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    },
    "granite": {"tie_word_embeddings": True},
    "qwen2": {"max_position_embeddings": 32768, "tie_word_embeddings": True},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 144.0},
    "gemma3_text": {
        "hidden_size": 1152, "num_hidden_layers": 26, "intermediate_size": 6912, "num_attention_heads": 4,
        "head_dim": 256, "rms_norm_eps": 1e-06, "vocab_size": 262144, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "max_position_embeddings": 32768,
    },
    "gemma3": {"vocab_size": 262208},
    "gemma4_text": {
        "hidden_size": 1536, "num_hidden_layers": 35, "intermediate_size": 6144, "num_attention_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "rms_norm_eps": 1e-06, "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
        "hidden_size_per_layer_input": 256, "sliding_window": 512, "max_position_embeddings": 131072,
        "attention_k_eq_v": False, "final_logit_softcapping": 30.0, "use_double_wide_mlp": True,
        "enable_moe_block": False, "tie_word_embeddings": True,
    },
    "phi3": {
        "partial_rotary_factor": 1.0, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    },
    "olmo2": {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    "glm4": {"max_position_embeddings": 32768},
    "starcoder2": {"norm_epsilon": 1e-05, "vocab_size": 49152, "tie_word_embeddings": True},
    "deepseek_v2": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 32, "routed_scaling_factor": 1.0,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim":
        128, "moe_layer_freq": 1, "first_k_dense_replace": 0, "max_position_embeddings": 2048, "rms_norm_eps":
        1e-06, "attention_bias": False,
    },
    "deepseek_v3": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 32, "routed_scaling_factor": 1.0,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim":
        128, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "moe_layer_freq": 1,
        "first_k_dense_replace": 0, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "attention_bias": False,
    },
    "gpt_oss": {
        "num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4, "vocab_size": 201088,
        "rms_norm_eps": 1e-05, "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8,
    },
    "mistral": {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
}  # fmt: skip
MLX_PARTS = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"}
"""Model type -> type of its `text_config`, the only part that mlx-lm reads."""
