"""`config.json` of published mixtures of experts, and of Arcee, with small sizes: the spelling is the models' own."""

from __future__ import annotations

from typing import Any

from published_parts import QWEN3_VL, SIZES, WINDOWS

LLAMA4 = {
    **SIZES, "attention_bias": False, "attention_chunk_size": 8192, "attn_scale": 0.1, "attn_temperature_tuning": 4,
    "floor_scale": 8192, "for_llm_compressor": False, "head_dim": 16, "hidden_act": "silu",
    "interleave_moe_layer_step": 1, "intermediate_size": 24, "intermediate_size_mlp": 40, "model_type": "llama4_text",
    "no_rope_layers": [], "num_experts_per_tok": 1, "num_local_experts": 4, "output_router_logits": False,
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
}  # fmt: skip
ROUTED = {
    "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "AFM-4.5B": ("arcee", {
        **SIZES, "architectures": ["ArceeForCausalLM"], "model_type": "arcee", "attention_bias": False, "head_dim": 16,
        "hidden_act": "relu2", "mlp_bias": False, "rms_norm_eps": 1e-05, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn",
        },
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    }),
    "Llama-4-Scout-17B-16E-Instruct": ("llama4", {
        "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 60, "eoi_token_index": 61,
        "image_token_index": 62, "model_type": "llama4", "text_config": {**LLAMA4, "use_qk_norm": True},
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "llama4_vision_model", "num_hidden_layers": 34},
    }),
    "Llama-4-Maverick-17B-128E-Instruct": ("llama4", {
        "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": {
            **LLAMA4, "interleave_moe_layer_step": 2, "num_local_experts": 128, "rope_scaling": None,
            "use_qk_norm": False,
        },
        "vision_config": {"model_type": "llama4_vision_model", "num_hidden_layers": 34},
    }),
    "Qwen3-VL-30B-A3B-Instruct": ("qwen3vlmoe", {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "image_token_id": 60,
        "text_config": {
            **QWEN3_VL, "model_type": "qwen3_vl_moe_text", "decoder_sparse_step": 1, "mlp_only_layers": [],
            "moe_intermediate_size": 24, "norm_topk_prob": True, "num_experts": 4, "num_experts_per_tok": 2,
        },
        "tie_word_embeddings": False, "vision_config": {"deepstack_visual_indexes": [8, 16, 24], "depth": 27},
    }),
    "dots.llm1.inst": ("dots1", {
        **SIZES, **ROUTED, "num_key_value_heads": 4, "architectures": ["Dots1ForCausalLM"], "model_type": "dots1",
        "attention_bias": False, "hidden_act": "silu", "max_window_layers": 4, "norm_topk_prob": True,
        "moe_layer_freq": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000000,
        "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "sliding_window": None,
        "tie_word_embeddings": False, "use_sliding_window": False,
    }),
    "Solar-Open-100B": ("solar_open", {
        **SIZES, **ROUTED, "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", "head_dim": 16,
        "attention_bias": False, "first_k_dense_replace": 0, "hidden_act": "silu", "n_shared_experts": 1,
        "norm_topk_prob": True, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "use_qk_norm": False,
    }),
    "ERNIE-4.5-21B-A3B-PT": ("ernie4_5_moe", {
        **SIZES, "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_act": "silu",
        "moe_capacity": [4, 4, 4], "moe_gate": "topk", "moe_intermediate_size": 24, "moe_k": 2,
        "moe_layer_end_index": 3, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_num_experts": 4,
        "moe_num_shared_experts": 2, "moe_use_aux_free": True, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False,
    }),
    "Hunyuan-A13B-Instruct": ("hunyuan-moe", {
        **SIZES, "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe",
        "attention_head_dim": 8, "attention_bias": False, "hidden_act": "silu", "moe_drop_tokens": False,
        "moe_intermediate_size": [48] * 4, "moe_layer_num_skipped": 0, "moe_topk": [2] * 4, "num_experts": 4,
        "num_shared_expert": [1] * 4, "norm_type": "rms", "rms_norm_eps": 1e-05, "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "type": "dynamic",
        },
        "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cla": False, "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
    }),
    "K-EXAONE-236B-A23B": ("exaone_moe", {
        **SIZES, **WINDOWS, "architectures": ["ExaoneMoEForCausalLM"], "model_type": "exaone_moe", "head_dim": 16,
        "first_k_dense_replace": 1, "hidden_act": "silu", "is_moe_layer": [False, True, True, True],
        "moe_intermediate_size": 24, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "n_group": 1,
        "norm_topk_prob": True, "num_experts": 4, "num_experts_per_tok": 2, "num_nextn_predict_layers": 1,
        "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_parameters": {
            "rope_theta": 1000000, "rope_type": "default",
        },
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "sliding_window": 128,
        "sliding_window_pattern": "LLLG", "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
    }),
    "Trinity-Mini": ("afmoe", {
        **SIZES, **WINDOWS, "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe", "head_dim": 16,
        "global_attn_every_n_layers": 4, "hidden_act": "silu", "load_balance_coeff": 0.001,
        "moe_intermediate_size": 24, "mup_enabled": True, "n_group": 1, "num_dense_layers": 2,
        "num_expert_groups": 1, "num_experts": 4, "num_experts_per_tok": 2, "num_limited_groups": 1,
        "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
        "route_norm": True, "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 32,
        "tie_word_embeddings": False, "topk_group": 1, "use_grouped_mm": True,
    }),
    "Mellum2-12B-A2.5B": ("mellum", {
        **SIZES, **WINDOWS, "architectures": ["MellumForCausalLM"], "model_type": "mellum", "head_dim": 16,
        "attention_bias": False, "hidden_act": "silu", "mlp_layer_types": ["sparse"] * 4,
        "moe_intermediate_size": 24, "norm_topk_prob": True, "num_experts": 4, "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-06, "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 500000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 32,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        },
        "sliding_window": 32, "tie_word_embeddings": False, "use_sliding_window": True,
    }),
    "MiMo-V2-Flash": ("mimo_v2_flash", {
        **SIZES, "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash",
        "add_full_attention_sink_bias": False, "add_swa_attention_sink_bias": True, "attention_bias": False,
        "attention_chunk_size": 128, "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 12,
        "hidden_act": "silu", "hybrid_block_size": None, "hybrid_layer_pattern": [0, 1, 1, 0],
        "initializer_range": 0.02, "layernorm_epsilon": 1e-05, "moe_intermediate_size": 24,
        "moe_layer_freq": [0, 1, 1, 1], "n_group": 1, "n_routed_experts": 4, "n_shared_experts": None,
        "norm_topk_prob": True, "num_experts_per_tok": 2, "partial_rotary_factor": 0.334, "rope_theta": 5000000,
        "routed_scaling_factor": None, "scoring_func": "sigmoid", "sliding_window": 128, "sliding_window_size": 128,
        "swa_head_dim": 12, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_rope_theta": 10000,
        "swa_v_head_dim": 8, "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
        "v_head_dim": 8,
    }),
    "Step-3.5-Flash": ("step35", {
        **{name: size for name, size in SIZES.items() if name != "num_key_value_heads"},
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "att_impl_type": "GQA",
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16,
            "true_head_dim": 16,
        },
        "head_dim": 16, "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "moe_every_n_layer": 1, "moe_intermediate_size": 24, "moe_layer_offset": 0, "moe_layers_enum": "1,2,3",
        "moe_num_experts": 4, "moe_router_activation": "sigmoid", "moe_router_scaling_factor": 3.0, "moe_top_k": 2,
        "need_fp32_gate": True, "norm_expert_weight": True, "num_attention_groups": 2, "num_nextn_predict_layers": 1,
        "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5], "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072, "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "rope_theta": [5000000.0, 10000.0, 10000.0, 10000.0, 5000000.0], "share_expert_dim": 20, "sliding_window": 32,
        "swiglu_limits": [0.0, 0.0, 0.0, 7.0, 0.0], "swiglu_limits_shared": [0.0, 0.0, 0.0, 16.0, 0.0],
        "tie_word_embeddings": False, "use_head_wise_attn_gate": True, "use_moe": True, "use_moe_router_bias": True,
        "yarn_only_types": ["full_attention"], "zero_centered": True,
    }),
    "Ling-mini-2.0": ("bailing_moe", {
        **SIZES, "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "head_dim": 8,
        "embedding_dropout": 0.0, "first_k_dense_replace": 1, "hidden_act": "silu", "moe_intermediate_size": 24,
        "moe_router_enable_expert_bias": True, "moe_shared_expert_intermediate_size": 24, "n_group": 4,
        "norm_topk_prob": True, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1,
        "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 600000,
        "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
        "tie_word_embeddings": False, "topk_group": 2, "use_bias": False, "use_qk_norm": True,
        "use_qkv_bias": False, "use_rmsnorm": True,
    }),
}  # fmt: skip
"""Model -> its family, and its config."""
WITHOUT_MLX = ("AFM-4.5B", "Hunyuan-A13B-Instruct")
"""Those that mlx-lm does not have."""
LAGUNA = {
    **SIZES, "architectures": ["LagunaForCausalLM"], "model_type": "laguna", "attention_bias": False,
    "gating": True, "head_dim": 16, "hidden_act": "silu",
    "layer_types": ["full_attention", *["sliding_attention"] * 3],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "moe_apply_router_weight_on_input": False,
    "moe_intermediate_size": 24, "moe_routed_scaling_factor": 2.5, "num_attention_heads_per_layer": [4, 6, 6, 6],
    "num_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-06, "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn", "rope_theta": 500000.0, "factor": 32.0, "original_max_position_embeddings": 32,
            "beta_fast": 64.0, "beta_slow": 1.0, "attention_factor": 1.0, "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    },
    "shared_expert_intermediate_size": 40, "sliding_window": 32, "tie_word_embeddings": False,
    }  # fmt: skip
"""config.json of Laguna-XS.2, whose layers have heads of different numbers, which the kit cannot make."""
