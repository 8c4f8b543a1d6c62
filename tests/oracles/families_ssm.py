"""Tiny models of the families with layers that have a state space."""

from __future__ import annotations

from typing import Any

SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "vocab_size": 640,
}  # fmt: skip
END = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
BOS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GRANITE = {
    "embedding_multiplier": 1.5, "attention_multiplier": 0.125, "residual_multiplier": 0.75, "logits_scaling": 0.5,
    "tie_word_embeddings": True, "shared_intermediate_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2,
    "bos_token_id": None,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 32, "mamba_expand": 2,
}  # fmt: skip
KINDS = ["mamba", "mamba", "attention", "mamba"]
NEMOTRON = {
    "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 32,
    "tie_word_embeddings": False, "bos_token_id": None,
}  # fmt: skip
ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 96, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
FALCON = {
    "head_dim": 16, "bos_token_id": None, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16,
    "mamba_n_groups": 2, "mamba_d_state": 32, "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375,
    "embedding_multiplier": 5.656854249492381, "key_multiplier": 0.39062499999999994, "lm_head_multiplier": 0.5,
    "mlp_multipliers": [0.8838834764831844, 0.5859375], "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    "ssm_out_multiplier": 0.23570226039551587, "mamba_norm_before_gate": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {
        "size": SIZE, "config": {**GRANITE, "intermediate_size": 48, "layer_types": KINDS}, "tokenizer": "dbrx",
        "special": END,
    },
    "granitemoehybrid-dense": {
        "model_type": "granitemoehybrid", "size": SIZE,
        "config": {**GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": KINDS},
        "tokenizer": "dbrx", "special": END,
    },
    "granitemoehybrid-attention": {
        "model_type": "granitemoehybrid", "size": SIZE,
        "config": {
            **GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention"] * 4,
            "position_embedding_type": "rope", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "tokenizer": "dbrx", "special": END,
    },
    "nemotron_h": {
        "size": SIZE,
        "config": {**NEMOTRON, "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
        "tokenizer": "llama-bpe", "special": END,
    },
    "nemotron_h-experts": {
        "model_type": "nemotron_h", "size": SIZE,
        "config": {**NEMOTRON, **ROUTED, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
        "tokenizer": "llama-bpe", "special": END,
    },
    "nemotron_h-latent": {
        "model_type": "nemotron_h", "size": SIZE,
        "config": {
            **NEMOTRON, **ROUTED, "moe_latent_size": 32,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        },
        "tokenizer": "llama-bpe", "special": END,
    },
    "falcon_h1": {
        "size": {**SIZE, "num_hidden_layers": 2}, "config": {**FALCON, "mamba_rms_norm": True, "mamba_n_groups": 1},
        "tokenizer": "llama-bpe", "special": END,
    },
    "falcon_h1-plain": {
        "model_type": "falcon_h1", "size": {**SIZE, "num_hidden_layers": 2},
        "config": {**FALCON, "mamba_rms_norm": False}, "tokenizer": "llama-bpe", "special": END,
    },
    "mamba2": {
        "size": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 640},
        "config": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 32, "bos_token_id": None},
        "tokenizer": "gpt-2", "special": END,
    },
    "mamba2-group": {
        "model_type": "mamba2", "size": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 640},
        "config": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 32, "bos_token_id": None},
        "tokenizer": "gpt-2", "special": END,
    },
    "mamba": {
        "size": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 640},
        "config": {"state_size": 16, "bos_token_id": None}, "tokenizer": "gpt-2", "special": END,
    },
    "falcon_mamba": {
        "size": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 640},
        "config": {"state_size": 16, "bos_token_id": None}, "tokenizer": "llama-bpe", "special": END,
    },
    "jamba": {
        "size": SIZE,
        "config": {
            "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
            "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16, "pad_token_id": 0,
            "tie_word_embeddings": False,
        },
        "tokenizer": "sentencepiece", "special": BOS,
    },
    "jamba-dense": {
        "model_type": "jamba", "size": SIZE,
        "config": {
            "num_experts": 1, "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16, "pad_token_id": 0,
            "tie_word_embeddings": True,
        },
        "tokenizer": "sentencepiece", "special": BOS,
    },
}  # fmt: skip
"""As in `oracles.families`."""
