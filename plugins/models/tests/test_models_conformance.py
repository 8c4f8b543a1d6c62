"""The kit's suite for every family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from squish_testing import FamilySuite

pytestmark = pytest.mark.alone

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LONG = {"type": "longrope", "long_factor": [1.5, 2.0, 3.0, 4.0], "short_factor": [1.0, 1.25, 1.5, 2.0]}


class TestLlama(FamilySuite):
    family = "llama"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "untied": {**SMALL, "model_type": "llama", "rope_theta": 10000.0},
            "tied": {**SMALL, "model_type": "llama", "rope_theta": 100000.0, "tie_word_embeddings": True},
            "mistral with its own head size": {
                **SMALL,
                "model_type": "mistral",
                "head_dim": 16,
                "sliding_window": None,
                "rope_theta": 1e6,
            },
            "llama3 scaling": {
                **SMALL,
                "model_type": "llama",
                "head_dim": 16,
                "rope_theta": 500000.0,
                "rope_scaling": LLAMA3,
            },
            "as transformers 5 writes it": {
                **SMALL,
                "model_type": "llama",
                "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
            },
            "yarn": {
                **SMALL,
                "model_type": "llama",
                "rope_theta": 10000.0,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            },
        }


class TestMixtral(FamilySuite):
    family = "mixtral"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "small": {
                **SMALL,
                "model_type": "mixtral",
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "rope_theta": 1e6,
            },
        }


class TestQwen2(FamilySuite):
    family = "qwen2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {"small": {**SMALL, "model_type": "qwen2", "rope_theta": 1e6}}


class TestQwen3(FamilySuite):
    family = "qwen3"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {"small": {**SMALL, "model_type": "qwen3", "head_dim": 16, "rope_theta": 1e6}}


class TestQwen3Moe(FamilySuite):
    family = "qwen3moe"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16, "rope_theta": 1e6,
               "norm_topk_prob": True}  # fmt: skip
        return {
            "small": {**SMALL, **own, "model_type": "qwen3_moe", "num_experts": 4},
            "as transformers 5 writes it": {**SMALL, **own, "model_type": "qwen3_moe", "num_local_experts": 4},
        }


class TestGemma3(FamilySuite):
    family = "gemma3"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        rope = {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        }
        own = {"head_dim": 16, "sliding_window": 64, "tie_word_embeddings": True, "query_pre_attn_scalar": 16}
        return {
            "small": {
                **SMALL,
                **own,
                "model_type": "gemma3_text",
                "rope_theta": 1e6,
                "rope_local_base_freq": 10000.0,
                "sliding_window_pattern": 6,
            },
            "as transformers 5 writes it": {
                **SMALL,
                **own,
                "model_type": "gemma3_text",
                "rope_parameters": rope,
                "layer_types": ["sliding_attention"] * 2,
            },
        }


class TestPhi3(FamilySuite):
    family = "phi3"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "small": {**SMALL, "model_type": "phi3", "rope_theta": 10000.0, "sliding_window": 64},
            "longrope": {
                **SMALL,
                "model_type": "phi3",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 32,
                "rope_scaling": LONG,
            },
        }


class TestPhi4(FamilySuite):
    family = "phi3"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {"model_type": "phi3", "rope_theta": 250000.0, "sliding_window": None}
        return {
            "phi-4": {**SMALL, **own},
            "phi-4-mini": {**SMALL, **own, "tie_word_embeddings": True, "partial_rotary_factor": 0.75},
        }


class TestGranite(FamilySuite):
    family = "granite"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
               "logits_scaling": 8.0}  # fmt: skip
        return {"small": {**SMALL, **own, "model_type": "granite", "rope_theta": 1e7}}


class TestGemma2(FamilySuite):
    family = "gemma2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {"head_dim": 16, "sliding_window": 64, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0}  # fmt: skip
        return {"small": {**SMALL, **own, "model_type": "gemma2", "rope_theta": 10000.0, "tie_word_embeddings": True}}


class TestOlmo2(FamilySuite):
    family = "olmo2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {"small": {**SMALL, "model_type": "olmo2", "rope_theta": 500000.0}}


class TestGlm4(FamilySuite):
    family = "glm4"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {"model_type": "glm4", "head_dim": 16, "attention_bias": True}
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        return {
            "small": {**SMALL, **own, "rope_theta": 10000.0},
            "as transformers 5 writes it": {**SMALL, **own, "rope_parameters": rope},
        }


class TestStarcoder2(FamilySuite):
    family = "starcoder2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        sizes = {key: value for key, value in SMALL.items() if key != "rms_norm_eps"}
        own = {"norm_epsilon": 1e-5, "use_bias": True, "tie_word_embeddings": True}
        return {"small": {**sizes, **own, "model_type": "starcoder2", "rope_theta": 999999.4}}


class TestLfm2(FamilySuite):
    family = "lfm2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        sizes = {key: value for key, value in SMALL.items() if key != "rms_norm_eps"}
        own = {
            "model_type": "lfm2",
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        }
        kinds = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
        return {
            "small": {**sizes, **own, **kinds},
            "with a size to be adjusted": {**sizes, **own, "full_attn_idxs": [1], "block_multiple_of": 8},
        }


class TestQwen2VL(FamilySuite):
    family = "qwen2vl"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        old = {"type": "mrope", "mrope_section": [1, 1, 2]}
        new = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
        return {
            "small": {**SMALL, "model_type": "qwen2_5_vl", "rope_theta": 1e6, "rope_scaling": old, "vision_config": {}},
            "as transformers 5 writes it": {
                "model_type": "qwen2_5_vl",
                "vision_config": {},
                "text_config": {**SMALL, "rope_parameters": new},
            },
        }


class TestGpt2(FamilySuite):
    family = "gpt2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {
            "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 64,
            "layer_norm_epsilon": 1e-5, "torch_dtype": "bfloat16",
        }  # fmt: skip
        return {
            "small": {**own, "n_ctx": 128},
            "as transformers 5 writes it": {**own, "n_inner": 48, "tie_word_embeddings": True},
            "untied": {**own, "n_inner": 48, "tie_word_embeddings": False},
        }


class TestGptOss(FamilySuite):
    family = "gpt-oss"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {
            **SMALL, "model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
            "sliding_window": 32, "rope_theta": 150000.0,
        }  # fmt: skip
        return {
            "small": {**own, "layer_types": ["sliding_attention", "full_attention"]},
            "as transformers 5 writes it": {
                **own,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 150000.0,
                    "factor": 32.0,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "original_max_position_embeddings": 64,
                    "truncate": False,
                },
            },
        }


class TestDeepseek(FamilySuite):
    family = "deepseek2"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {
            **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 12, "first_k_dense_replace": 1, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 16, "routed_scaling_factor": 1.5,
            "rope_theta": 10000.0,
        }  # fmt: skip
        yarn = {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 32}
        return {
            "2 lite": {**own, "model_type": "deepseek_v2", "rope_scaling": {**yarn, "type": "yarn"}},
            "2": {**own, "model_type": "deepseek_v2", "q_lora_rank": 20, "n_group": 2, "topk_group": 1},
            "3": {**own, "model_type": "deepseek_v3", "q_lora_rank": 20, "norm_topk_prob": True},
            "without dense layers": {**own, "model_type": "deepseek_v3", "q_lora_rank": 20, "first_k_dense_replace": 0},
        }


LATENT = {
    **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 20, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 12, "first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
    "rope_theta": 10000.0,
}  # fmt: skip
INDEXER = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 8}


class TestKimi(FamilySuite):
    family = "kimi"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {"small": {**LATENT, "model_type": "kimi_k2"}}


class TestDeepseekV32(FamilySuite):
    family = "deepseek32"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {"small": {**LATENT, **INDEXER, "model_type": "deepseek_v32"}}


class TestGlmMoeDsa(FamilySuite):
    family = "glm-dsa"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {**LATENT, **INDEXER, "model_type": "glm_moe_dsa"}
        return {
            "small": own,
            "with shared indexers": {**own, "num_hidden_layers": 4, "index_topk_freq": 2},
            "as transformers 5 writes it": {
                **own, "indexer_types": ["full", "shared"], "mlp_layer_types": ["dense", "sparse"],
            },
        }  # fmt: skip


class TestMistral4(FamilySuite):
    family = "mistral4"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        yarn = {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "rope_theta": 10000.0, "partial_rotary_factor": 1 / 3,
        }  # fmt: skip
        return {"small": {**LATENT, "model_type": "mistral4", "rope_parameters": yarn}}


class TestGemma4(FamilySuite):
    family = "gemma4"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        window, full = "sliding_attention", "full_attention"
        own = {
            **SMALL, "model_type": "gemma4_text", "num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 16,
            "layer_types": [window, full] * 2, "sliding_window": 32, "hidden_size_per_layer_input": 0,
            "tie_word_embeddings": True,
        }  # fmt: skip
        wide = {**own, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_key_value_heads": 2}
        return {
            "with embeddings of each layer": {
                **own,
                "hidden_size_per_layer_input": 12,
                "vocab_size_per_layer_input": 64,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
            },
            "with keys that are values, and windows without a period": {
                **wide,
                "layer_types": [window, full, full, full],
            },
            "with experts": {
                **wide,
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 24,
            },
            "as transformers 5 writes it": {
                **{name: value for name, value in own.items() if name != "global_head_dim"},
                "per_layer_config": {"1": {"head_dim": 24}, "3": {"head_dim": 24}},
                "final_logit_softcapping": 30.0,
                "rope_parameters": {
                    full: {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
                    window: {"rope_type": "default", "rope_theta": 20000.0},
                },
            },
        }


class TestGemma3n(FamilySuite):
    family = "gemma3n"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        own = {
            **SMALL, "model_type": "gemma3n_text", "head_dim": 8, "sliding_window": 32, "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"], "vocab_size_per_layer_input": 60,
            "activation_sparsity_pattern": [0.95, 0.95],
            "tie_word_embeddings": True,
        }  # fmt: skip
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        }
        return {
            "small": own,
            "as transformers 5 writes it": {**own, "intermediate_size": [48, 48], "rope_parameters": rope},
        }
