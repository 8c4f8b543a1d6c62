"""Small models of mixtures of experts, and of their dense relatives."""

from __future__ import annotations

from typing import Any

SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
BOS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
END = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
LLAMA4 = {
    **SIZE, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 48, "intermediate_size_mlp": 96,
    "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "rope_parameters": LLAMA3,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "llama4": {
        "config": {
            "vision_config": {
                "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
                "vision_output_dim": 64, "image_size": 16, "patch_size": 8, "projector_input_dim": 64,
                "projector_output_dim": 64,
            },
        },
        "text": LLAMA4,
        "size": {"tie_word_embeddings": False},
        "tokenizer": "gpt-4o",
        "special": LLAMA,
    },
    "llama4_text": {
        "config": {**LLAMA4, "interleave_moe_layer_step": 1, "tie_word_embeddings": False},
        "tokenizer": "gpt-4o",
        "special": LLAMA,
    },
    "qwen3_vl_moe": {
        "config": {"vision_config": VISION},
        "text": {
            **SIZE, **MOE, "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
            },
        },
        "size": {"tie_word_embeddings": False},
        "tokenizer": "qwen2",
        "special": QWEN,
    },
}  # fmt: skip
"""As in `oracles.families`."""
