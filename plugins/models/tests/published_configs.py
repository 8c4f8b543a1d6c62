"""`config.json` of published models with small sizes: keys, values and spelling are the models' own."""

from __future__ import annotations

from typing import Any

import published_encoders
import published_mixtures
import published_modern_encoders
import published_old
from published_parts import QWEN3_VL, SIZES, WINDOWS

YARN = {
    "rope_type": "yarn", "type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 32,
    "rope_theta": 1000000.0,
}  # fmt: skip
LLAMA3 = {
    "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
MULTIPLIERS = {
    "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22,
}  # fmt: skip
LINEAR = [*["linear_attention"] * 3, "full_attention"]
DELTA = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
}  # fmt: skip
QWEN3_5 = {
    **SIZES, "attention_bias": False, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 63,
    "full_attention_interval": 4, "head_dim": 16, "hidden_act": "silu", "layer_types": LINEAR, **DELTA,
    "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    "rms_norm_eps": 1e-06, "use_cache": True,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [1, 1, 0], "rope_type": "default", "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
    },
}  # fmt: skip
SHARED = {
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2,
    "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}  # fmt: skip
ROUTED = {
    "attention_bias": False, "attention_dropout": 0.0, "first_k_dense_replace": 1, "hidden_act": "silu",
    "moe_intermediate_size": 16, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_experts_per_tok": 2, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
}  # fmt: skip
LATENT_YARN = {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 32, "type": "yarn",
}  # fmt: skip
KIMI = {
    **SIZES, **LATENT, **ROUTED, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
    "aux_loss_alpha": 0.001, "ep_size": 1, "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-05,
    "rope_scaling": LATENT_YARN, "rope_theta": 50000.0, "seq_aux": True, "use_cache": True,
}  # fmt: skip
INDEXER = {"index_head_dim": 16, "index_n_heads": 4, "index_topk": 8}
GLM5 = {
    **SIZES, **LATENT, **ROUTED, **INDEXER, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
    "head_dim": 8, "indexer_rope_interleave": True, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    "qk_head_dim": 24, "rms_norm_eps": 1e-05, "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
}  # fmt: skip
MISTRAL4 = {
    **SIZES, **LATENT, **{key: value for key, value in ROUTED.items() if key not in ("scoring_func", "topk_method")},
    "first_k_dense_replace": 0, "model_type": "mistral4", "head_dim": 24, "qk_head_dim": 24, "rms_norm_eps": 1e-06,
    "rope_interleave": True, "rope_parameters": {**YARN, "partial_rotary_factor": 8 / 24},
}  # fmt: skip


def _gemma4(kind: str, **own: Any) -> dict[str, Any]:
    """The config of a Gemma 4, in which the text part is one of three."""
    window, full = "sliding_attention", "full_attention"
    text = {
        **SIZES, "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2,
        "dtype": "bfloat16", "enable_moe_block": False, "eos_token_id": 1, "final_logit_softcapping": 30.0,
        "global_head_dim": 16, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0, "initializer_range": 0.02, "layer_types": [window, full] * 2,
        "model_type": f"{kind}_text", "moe_intermediate_size": None, "num_experts": None,
        "num_global_key_value_heads": 1, "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_parameters": {
            full: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            window: {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 64, "tie_word_embeddings": True, "top_k_experts": None, "use_bidirectional_attention": None,
        "use_cache": True, "use_double_wide_mlp": False, "vocab_size_per_layer_input": SIZES["vocab_size"],
    }  # fmt: skip
    name = "".join(part.title() for part in kind.split("_"))
    return {
        "architectures": [f"{name}ForConditionalGeneration"], "audio_config": None, "audio_token_id": 258881,
        "boi_token_id": 255999, "dtype": "bfloat16", "eos_token_id": [1, 106], "image_token_id": 258880,
        "initializer_range": 0.02, "model_type": kind, "text_config": {**text, **own}, "tie_word_embeddings": True,
        "vision_config": {"model_type": f"{kind}_vision"}, "vision_soft_tokens_per_image": 280,
    }  # fmt: skip


STATES = {
    "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 16,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 8, "mamba_proj_bias": False,
}  # fmt: skip
GRANITE4 = {
    **SIZES, **MULTIPLIERS, **STATES, "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid", "attention_bias": False, "hidden_act": "silu",
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "normalization_function": "rmsnorm", "num_experts_per_tok": 0, "num_local_experts": 0,
    "output_router_logits": False, "position_embedding_type": "nope", "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 48, "tie_word_embeddings": True,
    "use_cache": True,
}  # fmt: skip
NEMOTRON = {
    **SIZES, "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"}, "chunk_size": 128, "conv_kernel": 4,
    "expand": 2, "head_dim": 16, "hybrid_override_pattern": "M-*-", "layer_norm_epsilon": 1e-05, "mamba_head_dim": 8,
    "mamba_hidden_act": "silu", "mamba_num_heads": 8, "mamba_proj_bias": False, "mlp_bias": False,
    "mlp_hidden_act": "relu2", "n_groups": 2, "num_logits_to_keep": 1, "rescale_prenorm_residual": True,
    "residual_in_fp32": False, "rms_norm_eps": 1e-05, "sliding_window": None, "ssm_state_size": 16,
    "tie_word_embeddings": False, "time_step_floor": 0.0001, "time_step_limit": [0.0, float("inf")],
    "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 2, "use_bias": False, "use_conv_bias": True,
    "use_mamba_kernels": True,
}  # fmt: skip
NEMOTRON3 = {
    **NEMOTRON, "hybrid_override_pattern": "ME*E", "intermediate_size": 24, "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40, "n_group": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "norm_eps": 1e-05, "norm_topk_prob": True, "num_experts_per_tok": 2, "partial_rotary_factor": 1.0,
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "topk_group": 1,
}  # fmt: skip
FALCON = {
    **SIZES, **STATES, "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "attention_bias": False,
    "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "attn_layer_indices": None,
    "embedding_multiplier": 5.656854249492381, "head_dim": 8, "hidden_act": "silu",
    "key_multiplier": 0.39062499999999994, "lm_head_multiplier": 0.0390625, "mamba_d_ssm": 64,
    "mamba_norm_before_gate": False, "mamba_rms_norm": False, "mamba_use_mlp": True, "mlp_bias": False,
    "mlp_expansion_factor": 8, "mlp_multipliers": [0.8838834764831844, 0.5859375], "num_logits_to_keep": 1,
    "projectors_bias": False, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000000.0,
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": False,
}  # fmt: skip
RECURRENT = {
    "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "conv_kernel": 4, "expand": 2, "hidden_act": "silu",
    "layer_norm_epsilon": 1e-05, "rescale_prenorm_residual": False, "residual_in_fp32": True, "state_size": 16,
    "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 2, "use_bias": False,
    "use_cache": True, "use_conv_bias": True,
}  # fmt: skip
JAMBA = {
    **SIZES, "architectures": ["JambaForCausalLM"], "model_type": "jamba", "attn_layer_offset": 2,
    "attn_layer_period": 4, "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_act": "silu",
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 2, "mamba_expand": 2,
    "mamba_proj_bias": False, "num_experts": 4, "num_experts_per_tok": 2, "num_logits_to_keep": 1,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "use_mamba_kernels": True,
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-VL-4B-Instruct": ("qwen3vl", {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": QWEN3_VL,
        "tie_word_embeddings": True, "vision_config": {"deepstack_visual_indexes": [5, 11, 17], "depth": 24},
    }),
    "Qwen3.5-4B": ("qwen35", {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "image_token_id": 60,
        "text_config": {**QWEN3_5, "model_type": "qwen3_5_text", "tie_word_embeddings": True},
        "tie_word_embeddings": True, "vision_config": {"model_type": "qwen3_5", "depth": 24},
    }),
    "Qwen3.6-35B-A3B": ("qwen35moe", {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "image_token_id": 60,
        "text_config": {
            **{key: value for key, value in QWEN3_5.items() if key != "intermediate_size"}, **SHARED,
            "model_type": "qwen3_5_moe_text",
        },
        "tie_word_embeddings": False, "vision_config": {"model_type": "qwen3_5_moe", "depth": 27},
    }),
    "Qwen3-Next-80B-A3B-Instruct": ("qwen3next", {
        **SIZES, **DELTA, **SHARED, "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False,
        "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 16, "hidden_act": "silu",
        "mlp_only_layers": [], "model_type": "qwen3_next", "norm_topk_prob": True, "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_sliding_window": False,
    }),
    "Qwen1.5-MoE-A2.7B": ("qwen2_moe", {
        **SIZES, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "decoder_sparse_step": 1,
        "hidden_act": "silu", "max_window_layers": 4, "moe_intermediate_size": 24, "norm_topk_prob": False,
        "num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": False, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "shared_expert_intermediate_size": 40,
        "tie_word_embeddings": False, "use_sliding_window": False,
    }),
    "GLM-4.5-Air": ("glm4_moe", {
        **SIZES, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True,
        "head_dim": 16, "hidden_act": "silu", "partial_rotary_factor": 0.5, "moe_intermediate_size": 24,
        "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "n_shared_experts": 1,
        "routed_scaling_factor": 1.0, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "rms_norm_eps": 1e-05,
        "num_nextn_predict_layers": 1, "rope_scaling": None, "rope_theta": 1000000, "tie_word_embeddings": False,
        "use_qk_norm": False,
    }),
    "GLM-4.7-Flash": ("glm4_moe_lite", {
        **SIZES, **LATENT, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
        "attention_bias": False, "hidden_act": "silu", "moe_intermediate_size": 24, "topk_method": "noaux_tc",
        "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "n_shared_experts": 1,
        "routed_scaling_factor": 1.8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 1000000, "tie_word_embeddings": False,
    }),
    "MiniMax-M2": ("minimax_m2", {
        **SIZES, "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "attn_type_list": [1] * 4,
        "head_dim": 16, "hidden_act": "silu", "mtp_transformer_layers": 1, "num_experts_per_tok": 2,
        "num_local_experts": 4, "num_mtp_modules": 3, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
        "rope_theta": 5000000, "rotary_dim": 8, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "tie_word_embeddings": False, "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True,
    }),
    "Ministral-3-3B": ("mistral3", {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "tie_word_embeddings": True,
        "text_config": {
            **SIZES, "model_type": "ministral3", "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-05,
            "rope_parameters": YARN, "sliding_window": None,
        },
        "vision_config": {"model_type": "pixtral"},
    }),
    "Devstral-2-123B": ("mistral3", {
        **SIZES, "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "head_dim": 16,
        "hidden_act": "silu", "rms_norm_eps": 1e-05, "sliding_window": None, "tie_word_embeddings": False,
        "rope_parameters": {**YARN, "mscale_all_dim": 0.0},
    }),
    "Mistral-Small-3.1-24B": ("mistral3", {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": {
            **SIZES, "model_type": "mistral", "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-05,
            "rope_theta": 1000000000.0, "sliding_window": None,
        },
        "vision_config": {"model_type": "pixtral"},
    }),
    "LFM2-VL-450M": ("lfm2", {
        "architectures": ["Lfm2VlForConditionalGeneration"], "model_type": "lfm2_vl", "downsample_factor": 2,
        "text_config": {
            **SIZES, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "block_auto_adjust_ff_dim": True,
            "block_dim": 64, "block_ff_dim": 144, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 16,
            "conv_L_cache": 3, "conv_bias": False, "layer_types": ["conv", "conv", "full_attention", "conv"],
            "norm_eps": 1e-05, "rope_theta": 1000000.0,
        },
        "vision_config": {"model_type": "siglip2_vision_model"},
    }),
    "LFM2-8B-A1B": ("lfm2_moe", {
        **SIZES, "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "conv_L_cache": 3,
        "conv_bias": False, "layer_types": ["conv", "conv", "full_attention", "conv"], "moe_intermediate_size": 24,
        "norm_eps": 1e-05, "norm_topk_prob": True, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2,
        "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "use_expert_bias": True,
    }),
    "Olmo-3-7B": ("olmo3", {
        **SIZES, **WINDOWS, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "attention_bias": False,
        "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_scaling": {
            "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
            "original_max_position_embeddings": 64, "rope_type": "yarn",
        },
        "rope_theta": 500000, "sliding_window": 32, "tie_word_embeddings": False,
    }),
    "SmolLM3-3B": ("smollm3", {
        **SIZES, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False,
        "hidden_act": "silu", "layer_types": ["full_attention"] * 4, "max_window_layers": 28, "mlp_bias": False,
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0], "pretraining_tp": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
    }),
    "Seed-OSS-36B": ("seed_oss", {
        **SIZES, "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": True,
        "attention_out_bias": False, "head_dim": 16, "hidden_act": "silu", "mlp_bias": False, "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": False,
    }),
    "ERNIE-4.5-0.3B-PT": ("ernie4_5", {
        **SIZES, "architectures": ["Ernie4_5_ForCausalLM"], "model_type": "ernie4_5", "head_dim": 16,
        "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000, "tie_word_embeddings": True,
        "use_bias": False,
    }),
    "Hunyuan-1.8B": ("hunyuan-dense", {
        **SIZES, "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "head_dim": 16,
        "attention_bias": False, "attention_head_dim": 16, "hidden_act": "silu", "mlp_bias": False,
        "rms_norm_eps": 1e-05, "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "type": "dynamic",
        },
        "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cla": False, "use_qk_norm": True,
    }),
    "EXAONE-4.0-1.2B": ("exaone4", {
        **SIZES, "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "head_dim": 8,
        "hidden_act": "silu", "layer_types": ["full_attention"] * 4, "rms_norm_eps": 1e-05, "rope_scaling": LLAMA3,
        "rope_theta": 1000000, "sliding_window": None, "sliding_window_pattern": None, "tie_word_embeddings": True,
    }),
    "EXAONE-4.0-32B": ("exaone4", {
        **SIZES, "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "head_dim": 8,
        "num_hidden_layers": 64, "hidden_act": "silu", "layer_types": [*WINDOWS["layer_types"]] * 16,
        "rms_norm_eps": 1e-05, "rope_scaling": LLAMA3, "rope_theta": 1000000, "sliding_window": 4096,
        "sliding_window_pattern": "LLLG", "tie_word_embeddings": False,
    }),
    "Command-R7B": ("cohere2", {
        **SIZES, "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "attention_bias": False,
        "head_dim": 8, "hidden_act": "silu", "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rope_scaling": None,
        "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 32, "sliding_window_pattern": 4, "use_qk_norm": False,
        "use_gated_activation": True, "use_parallel_block": True, "use_embedding_sharing": True,
    }),
    "Command-R": ("cohere", {
        **SIZES, "architectures": ["CohereForCausalLM"], "model_type": "cohere", "attention_bias": False,
        "hidden_act": "silu", "layer_norm_eps": 1e-05, "logit_scale": 0.0625, "model_max_length": 131072,
        "pretraining_tp": 1, "rope_theta": 8000000.0, "use_qk_norm": False,
    }),
    "Command-R+": ("cohere", {
        **SIZES, "architectures": ["CohereForCausalLM"], "model_type": "cohere", "attention_bias": False,
        "hidden_act": "silu", "layer_norm_eps": 1e-05, "logit_scale": 0.8333333333333334, "num_hidden_layers": 64,
        "model_max_length": 131072, "rope_theta": 75000000.0, "use_qk_norm": True,
    }),
    "granite-3.0-1b-a400m": ("granitemoe", {
        **SIZES, **MULTIPLIERS, "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe",
        "attention_bias": False, "hidden_act": "silu", "num_experts_per_tok": 2, "num_local_experts": 4,
        "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": True,
    }),
    "OLMoE-1B-7B-0924": ("olmoe", {
        **SIZES, "num_key_value_heads": 4, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe",
        "attention_bias": False, "clip_qkv": None, "hidden_act": "silu", "norm_topk_prob": False, "num_experts": 4,
        "num_experts_per_tok": 2, "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False,
    }),
    "gemma-2b": ("gemma", {
        **SIZES, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": False, "head_dim": 16,
        "hidden_act": "gelu", "hidden_activation": None, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 10000.0, "num_key_value_heads": 1,
    }),
    "Kimi-K2-Instruct": ("kimi", KIMI),
    "Kimi-VL-A3B-Instruct": ("kimi", {
        "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "tie_word_embeddings": False,
        "text_config": {
            **KIMI, "model_type": "deepseek_v3", "q_lora_rank": None, "rope_scaling": None, "rope_theta": 800000.0,
        },
        "vision_config": {"model_type": "moonvit"}, "media_placeholder_token_id": 5,
    }),
    "Kimi-K2.5": ("kimi", {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": KIMI,
        "tie_word_embeddings": False, "vision_config": {"patch_size": 14, "vt_hidden_size": 32},
    }),
    "Kimi-Linear-48B-A3B-Instruct": ("kimi_linear", {
        **{name: size for name, size in SIZES.items() if name != "max_position_embeddings"}, "num_key_value_heads": 4,
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "first_k_dense_replace": 1,
        "head_dim": 8, "hidden_act": "silu", "initializer_range": 0.02, "kv_lora_rank": 32,
        "linear_attn_config": {
            "full_attn_layers": [4], "head_dim": 16, "kda_layers": [1, 2, 3], "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True, "model_max_length": 1024, "moe_intermediate_size": 24, "moe_layer_freq": 1,
        "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "num_experts": 4,
        "num_experts_per_token": 2, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "q_lora_rank": None,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1,
        "use_cache": True, "use_grouped_topk": True, "v_head_dim": 16,
    }),
    "DeepSeek-V3.2": ("deepseek32", {
        **SIZES, **LATENT, **ROUTED, **INDEXER, "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32", "n_group": 2, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-06,
        "rope_scaling": LATENT_YARN, "rope_theta": 10000,
    }),
    "GLM-5": ("glm-dsa", GLM5),
    "GLM-5.2": ("glm-dsa", {**GLM5, "indexer_types": ["full", "full", "shared", "full"]}),
    "Mistral-Small-4": ("mistral4", {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": MISTRAL4,
        "vision_config": {"model_type": "pixtral", "hidden_size": 64},
    }),
    "gemma-4-E2B-it": ("gemma4", _gemma4(
        "gemma4", attention_k_eq_v=False, num_key_value_heads=1, num_global_key_value_heads=None,
        num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=12, sliding_window=32,
    )),
    "gemma-4-26B-A4B-it": ("gemma4", _gemma4(
        "gemma4", enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=24,
        use_bidirectional_attention="vision",
    )),
    "gemma-4-31B-it": ("gemma4", _gemma4("gemma4", use_bidirectional_attention="vision")),
    "gemma-4-12B-it": ("gemma4", _gemma4("gemma4_unified", use_bidirectional_attention="vision")),
    "granite-4.0-h-micro": ("granitehybrid", GRANITE4),
    "granite-4.0-h-tiny": ("granitehybrid_moe", {
        **GRANITE4, "intermediate_size": 24, "num_experts_per_tok": 2, "num_local_experts": 4,
    }),
    "granite-4.0-micro": ("granite4", {
        **GRANITE4, "layer_types": ["attention"] * 4, "position_embedding_type": "rope", "rope_theta": 10000000,
    }),
    "NVIDIA-Nemotron-Nano-9B-v2": ("nemotron_h", NEMOTRON),
    "NVIDIA-Nemotron-3-Nano-30B-A3B": ("nemotron_h_moe", NEMOTRON3),
    "NVIDIA-Nemotron-3-Super-120B-A12B": ("nemotron_h_moe", {
        **NEMOTRON3, "moe_latent_size": 16, "mtp_hybrid_override_pattern": "*E", "num_nextn_predict_layers": 1,
    }),
    "Falcon-H1-0.5B": ("falcon_h1", FALCON),
    "Falcon-H1-7B": ("falcon_h1", {**FALCON, "mamba_rms_norm": True}),
    "Mamba-Codestral-7B": ("mamba2", {
        **RECURRENT, "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "chunk_size": 256, "head_dim": 8,
        "norm_before_gate": True, "num_heads": 8, "n_groups": 2, "rms_norm": True, "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")],
    }),
    "mamba2-130m": ("mamba2", {
        **RECURRENT, "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "head_dim": 8, "num_heads": 8,
        "n_groups": 1, "tie_word_embeddings": True,
    }),
    "mamba-130m": ("mamba", {
        **RECURRENT, "architectures": ["MambaForCausalLM"], "model_type": "mamba", "d_inner": 64, "d_model": 32,
        "fused_add_norm": True, "intermediate_size": 64, "n_layer": 2, "pad_vocab_size_multiple": 8, "rms_norm": True,
        "ssm_cfg": {}, "time_step_init_scheme": "random", "time_step_scale": 1.0,
    }),
    "falcon-mamba-7b": ("falcon_mamba", {
        **RECURRENT, "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba",
        "intermediate_size": 64, "mixer_rms_eps": 1e-06, "tie_word_embeddings": False,
    }),
    "Jamba-v0.1": ("jamba", JAMBA),
    "AI21-Jamba-Reasoning-3B": ("jamba", {
        **JAMBA, "num_experts": 1, "num_experts_per_tok": 1, "tie_word_embeddings": True,
    }),
    "gemma-3n-E2B-it": ("gemma3n", {
        "architectures": ["Gemma3nForConditionalGeneration"], "audio_soft_tokens_per_image": 188,
        "audio_token_id": 262273, "boi_token_id": 255999, "eos_token_id": [1, 6], "image_token_id": 262145,
        "initializer_range": 0.02, "model_type": "gemma3n", "torch_dtype": "bfloat16",
        "text_config": {
            **SIZES, "activation_sparsity_pattern": [0.95] * 4, "altup_active_idx": 0, "altup_coef_clip": 120.0,
            "altup_correct_scale": True, "altup_lr_multiplier": 1.0, "altup_num_inputs": 4, "attention_bias": False,
            "attention_dropout": 0.0, "final_logit_softcapping": 30.0, "head_dim": 8,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 256, "initializer_range": 0.02,
            "intermediate_size": [48] * 4, "laurel_rank": 64, "layer_types": WINDOWS["layer_types"],
            "model_type": "gemma3n_text", "num_kv_shared_layers": 0, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
            "sliding_window": 64, "vocab_size_per_layer_input": 60,
        },
        "vision_config": {"model_type": "gemma3n_vision"},
    }),
}  # fmt: skip
"""Model -> its family, and its config."""
WITHOUT_MLX, LAGUNA = published_mixtures.WITHOUT_MLX, published_mixtures.LAGUNA
PUBLISHED |= published_old.PUBLISHED | published_mixtures.PUBLISHED | published_encoders.PUBLISHED
PUBLISHED |= published_modern_encoders.PUBLISHED
