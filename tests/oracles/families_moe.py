"""Small models of mixtures of experts, and of their dense relatives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import squish_core as squish

from .families_old import Respelling, reference

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
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
ROUTED = {
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 2,
    "moe_intermediate_size": 48, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA4 = {
    **SIZE, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 48, "intermediate_size_mlp": 96,
    "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "rope_parameters": LLAMA3,
}  # fmt: skip


class StepText(Respelling):
    """The text part of a Step 3.7, whose names Transformers saves as they are published, as a Step 3.5."""

    def apply(self, folder: Path) -> None:
        """Rewrite a folder; the model that Transformers runs stays beside it."""
        super().apply(folder)
        with squish.open(reference(folder) / "model.safetensors") as file:
            arrays = {name: file[name].numpy() for name in file if not name.startswith("vi")}
        squish.save(folder / "model.safetensors", arrays, metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        text = {self.config.get(name, name): value for name, value in config.pop("text_config").items()}
        own_of_transformers = ("num_sliding_attention_heads", "mtp_layer_types", "mtp_mlp_layer_types")
        left_out = ("vision_config", "rope_parameters", "per_layer_config", "mlp_layer_types", *own_of_transformers)
        own = {name: value for name, value in {**config, **text, **self.more}.items() if name not in left_out}
        (folder / "config.json").write_text(json.dumps(own, indent=2))


STEP = StepText(
    config={
        "num_key_value_heads": "num_attention_groups",
        "n_routed_experts": "moe_num_experts",
        "num_experts_per_tok": "moe_top_k",
    },
    more={
        "model_type": "step3p5",
        "architectures": ["Step3p5ForCausalLM"],
        "torch_dtype": "float32",
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 6,
            "num_attention_groups": 2,
            "head_dim": 32,
            "true_head_dim": 32,
        },
        "rope_theta": [5000000.0, *[10000.0] * 3, 5000000.0, 10000.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0],
        "yarn_only_types": ["full_attention"],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 512,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "moe_layers_enum": "2,3,4,5",
        "moe_every_n_layer": 1,
        "moe_router_activation": "sigmoid",
        "use_moe": True,
        "use_moe_router_bias": True,
        "norm_expert_weight": True,
        "use_head_wise_attn_gate": True,
    },
)

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
    "arcee": {
        "config": {"tie_word_embeddings": False, "rope_parameters": YARN}, "tokenizer": "llama-bpe", "special": LLAMA,
    },
    "apertus": {
        "config": {"rope_parameters": LLAMA3, "tie_word_embeddings": False}, "tokenizer": "llama-bpe", "special": LLAMA,
    },
    "dots1": {
        "config": {
            **ROUTED, "num_key_value_heads": 4, "num_hidden_layers": 3, "sliding_window": None, "max_window_layers": 3,
        },
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "solar_open": {
        "config": {**ROUTED, "first_k_dense_replace": 0, "head_dim": 32}, "tokenizer": "llama-bpe", "special": END,
    },
    "ernie4_5_moe": {
        "config": {
            "num_hidden_layers": 3, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48,
            "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": True,
        },
        "tokenizer": "sentencepiece",
        "special": BOS,
    },
    "hunyuan_v1_moe": {
        "config": {
            "head_dim": 16, "num_experts": 4, "moe_topk": 2, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1,
                "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0,
            },
        },
        "tokenizer": "qwen2",
        "special": END,
    },
    "exaone_moe": {
        "config": {
            **MOE, "num_hidden_layers": 4, "sliding_window": 32, "head_dim": 16, "num_shared_experts": 1,
            "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "tie_word_embeddings": False,
        },
        "tokenizer": "dbrx",
        "special": END,
    },
    "afmoe": {
        "config": {
            **MOE, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 32, "num_shared_experts": 1,
            "num_dense_layers": 1, "route_scale": 1.5, "mup_enabled": True, "tie_word_embeddings": False,
        },
        "tokenizer": "llama-bpe",
        "special": LLAMA,
    },
    "mellum": {
        "config": {
            **MOE, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 32, "tie_word_embeddings": False,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "rope_parameters": {
                "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        "tokenizer": "starcoder",
        "special": END,
    },
    "mimo_v2_flash": {
        "config": {
            **{key: value for key, value in ROUTED.items() if key not in ("n_shared_experts", "first_k_dense_replace")},
            "num_hidden_layers": 7, "head_dim": 32, "v_head_dim": 16, "sliding_window": 32, "num_key_value_heads": 1,
            "routed_scaling_factor": 1.0,
        },
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "step3p5": {
        "model_type": "step3p7", "lacking": ("transformers",), "respelling": STEP,
        "config": {
            "vision_config": {
                "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
                "max_position_embeddings": 4,
            },
        },
        "text": {
            **SIZE, "num_hidden_layers": 6, "head_dim": 32, "num_sliding_attention_heads": 6, "sliding_window": 32,
            "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention", "sliding_attention"],
            "mlp_layer_types": [*["dense"] * 2, *["sparse"] * 4], "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48, "share_expert_dim": 40, "moe_router_scaling_factor": 1.5,
            "swiglu_limits": [0.0] * 5 + [0.25], "swiglu_limits_shared": [0.0] * 4 + [0.5] * 2,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "llama3", "rope_theta": 5000000.0, "partial_rotary_factor": 0.5, "factor": 2.0,
                    "original_max_position_embeddings": 512, "low_freq_factor": 1.0, "high_freq_factor": 32.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            },
        },
        "size": {"tie_word_embeddings": False},
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "laguna": {
        "config": {
            **MOE, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 32, "shared_expert_intermediate_size": 40,
            "layer_types": ["full_attention", *["sliding_attention"] * 3], "moe_routed_scaling_factor": 2.5,
            "num_attention_heads_per_layer": [4, 6, 6, 6], "tie_word_embeddings": False,
        },
        "tokenizer": "llama-bpe",
        "special": END,
    },
}  # fmt: skip
"""As in `oracles.families`."""
