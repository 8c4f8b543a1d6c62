"""Small towers of Qwen and GLM with configs in the spelling of published checkpoints."""

from __future__ import annotations

from typing import Any

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip
FLAT = {**SIZES, "hidden_act": "silu", "tie_word_embeddings": False, "use_sliding_window": False}
ROPE = {"type": "mrope", "mrope_section": [4, 2, 2]}
NESTED = {**SIZES, "head_dim": 16, "attention_bias": False, "hidden_act": "silu", "rope_theta": 5000000}
EXPERTS = {
    "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True,
    "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
DELTA = {
    "attn_output_gate": True, "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 16, "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
        "rope_type": "default",
    },
}  # fmt: skip
QWEN2 = {
    "depth": 2, "embed_dim": 32, "mlp_ratio": 4, "num_heads": 2, "in_chans": 3, "hidden_size": 64, "patch_size": 14,
    "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
}  # fmt: skip
QWEN25 = {
    "depth": 4, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "in_chans": 3,
    "out_hidden_size": 64, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [1, 3], "tokens_per_second": 2, "temporal_patch_size": 2,
}  # fmt: skip
QWEN3 = {
    "deepstack_visual_indexes": [0, 2], "depth": 3, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32,
    "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 48, "model_type": "qwen3_vl", "num_heads": 2,
    "num_position_embeddings": 16, "out_hidden_size": 64, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
GLM = {
    "attention_bias": False, "attention_dropout": 0.0, "depth": 3, "hidden_act": "silu", "hidden_dropout_prob": 0.0,
    "hidden_size": 32, "image_size": 56, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 96,
    "model_type": "glm4v", "num_heads": 2, "out_hidden_size": 64, "patch_size": 14, "rms_norm_eps": 1e-05,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
SECTIONS = {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"}
IMAGES = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7], "patch_size": 14, "merge_size": 2}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "family": "qwen3vl.vision",
        "config": {
            "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 60, "model_type": "qwen3_vl",
            "text_config": {**NESTED, "model_type": "qwen3_vl_text", "rope_scaling": SECTIONS},
            "tie_word_embeddings": False, "vision_config": QWEN3,
        },
    },
    "qwen3_vl_moe": {
        "family": "qwen3vl.vision",
        "config": {
            "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
            "text_config": {**NESTED, **EXPERTS, "model_type": "qwen3_vl_moe_text", "rope_scaling": SECTIONS},
            "vision_config": {**QWEN3, "deepstack_visual_indexes": [1], "model_type": "qwen3_vl_moe"},
        },
    },
    "qwen2_5_vl": {
        "family": "qwen25vl.vision",
        "config": {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", **FLAT,
            "rope_scaling": ROPE, "vision_config": QWEN25,
        },
    },
    "qwen2_vl": {
        "family": "qwen2vl.vision",
        "config": {
            "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", **FLAT,
            "rope_scaling": ROPE, "vision_config": QWEN2,
        },
    },
    "qwen3_5": {
        "family": "qwen3vl.vision",
        "config": {
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "text_config": {**NESTED, **DELTA, "model_type": "qwen3_5_text"},
            "vision_config": {**QWEN3, "deepstack_visual_indexes": [], "model_type": "qwen3_5"},
        },
    },
    "glm4v": {
        "family": "glm4v.vision",
        "config": {
            "architectures": ["Glm4vForConditionalGeneration"], "model_type": "glm4v", "tie_word_embeddings": False,
            "text_config": {**NESTED, "model_type": "glm4v_text", "rope_scaling": ROPE}, "vision_config": GLM,
        },
    },
    "glm4v_moe": {
        "family": "glm4v.vision",
        "config": {
            "architectures": ["Glm4vMoeForConditionalGeneration"], "model_type": "glm4v_moe",
            "text_config": {**NESTED, "model_type": "glm4v_moe_text", "n_routed_experts": 4, "rope_scaling": ROPE},
            "tie_word_embeddings": False, "vision_config": {**GLM, "model_type": "glm4v_moe"},
        },
    },
}  # fmt: skip
"""As in `published_towers`."""
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_vl", {"vision_config.temporal_patch_size": 1}, "config"),
    ("qwen3_vl", {"vision_config.hidden_act": "quick_gelu"}, "config"),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [0, 3]}, "config"),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [0, 0]}, "config"),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [-1, 0]}, "config"),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": 2}, "config"),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [0]}, "unmapped"),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [0, 1, 2]}, "unmapped"),
    ("qwen3_vl", {"vision_config.num_position_embeddings": 17}, "contradiction"),
    ("qwen3_vl", {"vision_config.num_position_embeddings": "16"}, "config"),
    ("qwen3_vl", {"vision_config.depth": None}, "config"),
    ("qwen3_vl", {"vision_config.depth": 1 << 31}, "unmapped"),
    ("qwen3_vl", {"vision_config.spatial_merge_size": 3}, "contradiction"),
    ("qwen3_5", {"vision_config.deepstack_visual_indexes": [0]}, "unmapped"),
    ("qwen2_5_vl", {"vision_config.fullatt_block_indexes": [1, 2]}, "config"),
    ("qwen2_5_vl", {"vision_config.fullatt_block_indexes": [0, 3]}, "config"),
    ("qwen2_5_vl", {"vision_config.fullatt_block_indexes": []}, "config"),
    ("qwen2_5_vl", {"vision_config.fullatt_block_indexes": "1"}, "config"),
    ("qwen2_5_vl", {"vision_config.window_size": 56}, "config"),
    ("qwen2_5_vl", {"vision_config.spatial_merge_size": 4}, "contradiction"),
    ("qwen2_5_vl", {"vision_config.hidden_act": "gelu"}, "config"),
    ("qwen2_vl", {"vision_config.temporal_patch_size": 1}, "config"),
    ("qwen2_vl", {"vision_config.hidden_act": "silu"}, "config"),
    ("qwen2_vl", {"vision_config.mlp_ratio": "4"}, "config"),
    ("qwen2_vl", {"vision_config.mlp_ratio": 2}, "contradiction"),
    ("qwen2_vl", {"vision_config.embed_dim": None}, "config"),
    ("glm4v", {"vision_config.hidden_act": "quick_gelu"}, "config"),
    ("glm4v", {"vision_config.rms_norm_eps": 0}, "config"),
    ("glm4v", {"vision_config.spatial_merge_size": 4}, "config"),
    ("glm4v", {"vision_config.image_size": 112}, "contradiction"),
    ("glm4v", {"vision_config.depth": "3"}, "config"),
    ("glm4v", {"vision_config.num_heads": 3}, "contradiction"),
    ("qwen2_vl", {"vision_config.num_heads": 0}, "contradiction"),
    ("glm4v_moe", {"vision_config.intermediate_size": 48}, "contradiction"),
]
"""Name, changes to config.json, and the code of the error."""
