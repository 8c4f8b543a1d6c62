"""Tiny models of families with latent attention, as in `families`."""

from __future__ import annotations

from typing import Any

ROPE = {"rope_theta": 10000.0, "factor": 4.0, "rope_type": "yarn", "original_max_position_embeddings": 128}
YARN = {**ROPE, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 48, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 32, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
INDEXER = {"num_hidden_layers": 4, "index_n_heads": 16, "index_head_dim": 64, "index_topk": 12}
KIMI_NAMES = {"n_routed_experts": "num_local_experts", "first_k_dense_replace": ""}
"""Settings that a Kimi Linear has under other names, or does not have."""
SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
END = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}

FAMILIES: dict[str, dict[str, Any]] = {
    "kimi_k25": {
        "config": {
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
                "patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4,
            },
            "projection_hidden_size": 32,
        },
        "text": {**SIZE, **LATENT, "model_type": "deepseek_v3", "rope_parameters": YARN},
        "size": {"tie_word_embeddings": False},
        "tokenizer": "llama-bpe",
        "special": END,
    },
    "kimi_linear": {
        "size": {**SIZE, "num_hidden_layers": 4},
        "config": {
            **{name: value for name, value in LATENT.items() if name not in KIMI_NAMES}, "q_lora_rank": None,
            **{own: LATENT[name] for name, own in KIMI_NAMES.items() if own}, "rms_norm_eps": 1e-6,
            "linear_num_heads": 4, "linear_head_dim": 32, "linear_conv_kernel_dim": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        "tokenizer": "llama-bpe", "special": {**END, "bos_token": "<|begin|>"},
    },
    "deepseek_v32": {
        "config": {**LATENT, **INDEXER, "rope_parameters": YARN}, "tokenizer": "deepseek", "special": END,
    },
    "glm_moe_dsa": {"config": {**LATENT, **INDEXER}, "tokenizer": "glm4", "special": END},
    "glm_moe_dsa-shared": {
        "model_type": "glm_moe_dsa",
        "config": {**LATENT, **INDEXER, "indexer_types": ["full", "full", "shared", "full"]},
        "tokenizer": "glm4",
        "special": END,
    },
    "deepseek_v4": {
        "size": {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512, "vocab_size": 640},
        "config": {
            "num_hidden_layers": 5, "moe_intermediate_size": 32, "head_dim": 64, "qk_rope_head_dim": 16,
            "q_lora_rank": 48, "o_groups": 2, "o_lora_rank": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "index_n_heads": 16, "index_head_dim": 128, "index_topk": 4, "sliding_window": 16, "num_hash_layers": 2,
            "compress_ratios": [0, 0, 4, 128, 4], "hc_mult": 4, "swiglu_limit": 10.0, "num_nextn_predict_layers": 0,
            "routed_scaling_factor": 1.5, "tie_word_embeddings": False,
        },
        "tokenizer": "deepseek",
        "special": END,
    },
    "mistral4": {
        "config": {
            **LATENT, "first_k_dense_replace": 0,
            "rope_parameters": {**YARN, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1},
        },
        "tokenizer": "sentencepiece",
        "special": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    },
}  # fmt: skip
