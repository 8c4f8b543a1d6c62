"""Settings that each class of mistral.rs reads from config.json, with their types and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .types import NUMBER, SIZE, SWITCH, TEXT, U32, Either, Kind, ListOf, Maybe, Scalar, Struct, choice

ACTIVATIONS = (
    "gelu", "gelu_new", "newgelu", "relu", "relu2", "relu6", "silu", "sigmoid", "hardsigmoid", "swish", "hardswish",
    "gelu_pytorch_tanh", "gelupytorchtanh", "quickgelu",
)  # fmt: skip


def _is_activation(value: Any) -> bool:
    if isinstance(value, Mapping) and len(value) == 1 and {"elu", "leakyrelu"} & value.keys():
        return not any(NUMBER.problems(next(iter(value.values())), ""))
    return isinstance(value, str) and value in ACTIVATIONS


"""Without "swiglu", which mistral.rs reads and cannot compute: it halves what the next matrix expects."""
ACTIVATION = Scalar("an activation that it has", _is_activation)
QUANTIZED = Struct(
    {
        "quant_method": Maybe(choice("gptq", "awq", "fp8", "bitsandbytes", "afq", "mxfp4")),
        "bits": Maybe(SIZE),
        "group_size": Maybe(SIZE),
        "checkpoint_format": Maybe(TEXT),
        "weight_block_size": Maybe(ListOf(SIZE)),
        "activation_scheme": Maybe(choice("dynamic", "static")),
        "fmt": Maybe(TEXT),
        "modules_to_not_convert": Maybe(ListOf(TEXT)),
        "bnb_4bit_quant_type": Maybe(TEXT),
    }
)
GROUPED = (None, "gptq", "awq", "afq")
"""Methods that require a number of bits and a group size."""
BASE: dict[str, Kind] = {
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "max_position_embeddings"), SIZE,
    ),
    "rms_norm_eps": NUMBER, "rope_theta": NUMBER, "hidden_act": ACTIVATION, "quantization_config": Maybe(QUANTIZED),
    "tie_word_embeddings": SWITCH,
}  # fmt: skip
UNTIED = {"tie_word_embeddings": False}
WINDOW: dict[str, Kind] = {"sliding_window": Maybe(SIZE)}
LLAMA_SCALING = Struct(
    {
        "factor": NUMBER,
        "low_freq_factor": Maybe(NUMBER),
        "high_freq_factor": Maybe(NUMBER),
        "original_max_position_embeddings": Maybe(SIZE),
        "rope_type": choice("llama3", "linear", "default"),
    }
)
MISTRAL_ROPE = Struct(
    {
        "rope_theta": NUMBER,
        "rope_type": choice("default", "yarn"),
        **dict.fromkeys(
            ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "llama_4_scaling_beta"), Maybe(NUMBER)
        ),
        "original_max_position_embeddings": Maybe(SIZE),
    },
    {"rope_type": "default"},
)
SCALED = choice("su", "longrope", "yarn", "dynamic", "linear")
PHI_SCALING = Struct({"short_factor": ListOf(NUMBER), "long_factor": ListOf(NUMBER), "type": SCALED})
GEMMA_SCALING = Struct({"factor": NUMBER, "rope_type": choice("linear")})
YARN = Struct(
    {
        **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "factor"), NUMBER),
        "original_max_position_embeddings": SIZE,
        "type": SCALED,
    }
)
DEEPSEEK_SCALING = Either(
    (YARN, Struct({"type": SCALED, "factor": NUMBER})), "YaRN with all its settings, or a type and a factor"
)
GPT_OSS_SCALING = Struct(
    {
        "rope_type": TEXT,
        "factor": NUMBER,
        "original_max_position_embeddings": SIZE,
        "beta_fast": NUMBER,
        "beta_slow": NUMBER,
        "truncate": SWITCH,
    },
    {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
)
QWEN3: dict[str, Kind] = {
    **BASE, **WINDOW, "head_dim": Maybe(SIZE), "max_window_layers": SIZE, "use_sliding_window": SWITCH,
}  # fmt: skip
DEEPSEEK = Struct(
    {
        **{name: kind for name, kind in BASE.items() if name != "num_key_value_heads"},
        **dict.fromkeys(
            (
                "moe_intermediate_size",
                "moe_layer_freq",
                "first_k_dense_replace",
                "qk_rope_head_dim",
                "kv_lora_rank",
                "v_head_dim",
                "qk_nope_head_dim",
                "n_group",
                "topk_group",
            ),
            SIZE,
        ),
        **dict.fromkeys(("n_shared_experts", "n_routed_experts", "num_experts_per_tok", "q_lora_rank"), Maybe(SIZE)),
        "routed_scaling_factor": NUMBER,
        "topk_method": choice("greedy", "group_limited_greedy"),
        "scoring_func": choice("softmax"),
        "rope_scaling": Maybe(DEEPSEEK_SCALING),
        "attention_bias": SWITCH,
        "norm_topk_prob": SWITCH,
    },
    {
        **UNTIED,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "moe_layer_freq": 1,
        "hidden_act": "silu",
        "first_k_dense_replace": 0,
        "scoring_func": "softmax",
        "norm_topk_prob": False,
    },
)
LFM_DEFAULTS = {
    "vocab_size": 65536, "hidden_size": 1024, "intermediate_size": 2560, "num_hidden_layers": 14,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 128000, "conv_L_cache": 3,
    "block_multiple_of": 256, "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32,
    "num_experts_per_tok": 4,
}  # fmt: skip
LFM_SWITCHES = {
    "conv_bias": False, "block_auto_adjust_ff_dim": True, "tie_word_embeddings": True, "use_expert_bias": True,
    "norm_topk_prob": True,
}  # fmt: skip
LFM_NUMBERS = {"norm_eps": 1e-5, "block_ffn_dim_multiplier": 1.0, "routed_scaling_factor": 1.0}
LFM_ROPE = Struct({"rope_theta": NUMBER, "rope_type": TEXT}, {"rope_theta": 1e6, "rope_type": ""})
LFM = Struct(
    {
        **dict.fromkeys(LFM_DEFAULTS, SIZE),
        **dict.fromkeys(LFM_SWITCHES, SWITCH),
        **dict.fromkeys(LFM_NUMBERS, NUMBER),
        "model_type": Maybe(TEXT),
        "architectures": ListOf(TEXT),
        "block_ff_dim": Maybe(SIZE),
        "rope_parameters": LFM_ROPE,
        "tie_embedding": Maybe(SWITCH),
        "layer_types": ListOf(TEXT),
        "full_attn_idxs": Maybe(ListOf(SIZE)),
        "quantization_config": Maybe(QUANTIZED),
    },
    {**LFM_DEFAULTS, **LFM_SWITCHES, **LFM_NUMBERS, "rope_parameters": {}, "layer_types": []},
)
HUNYUAN_SWITCHES = ("use_cla", "attention_bias", "mlp_bias", "add_classification_head")
"""Settings of HunYuan that mistral.rs reads and does not run."""
HUNYUAN_SCALING = Struct(
    {
        **dict.fromkeys(("alpha", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"), Maybe(NUMBER)),
        "original_max_position_embeddings": Maybe(SIZE),
        "type": TEXT,
    },
    aliases={"rope_type": "type"},
)
GLM: dict[str, Kind] = {
    **BASE,
    **dict.fromkeys(
        ("moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
         "first_k_dense_replace", "n_group", "topk_group"), SIZE,
    ),
    "routed_scaling_factor": NUMBER,
}  # fmt: skip
GLM_DEFAULTS = {
    **UNTIED, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
    "hidden_act": "silu",
}  # fmt: skip
CLASSES: dict[str, Struct] = {
    "LlamaForCausalLM": Struct({**BASE, "rope_scaling": Maybe(LLAMA_SCALING)}, UNTIED),
    "MistralForCausalLM": Struct(
        {**BASE, **WINDOW, "head_dim": Maybe(SIZE), "rope_parameters": Maybe(MISTRAL_ROPE)},
        {**UNTIED, "rope_theta": 10000.0},
    ),
    "MixtralForCausalLM": Struct({**BASE, **WINDOW, "num_experts_per_tok": SIZE, "num_local_experts": SIZE}, UNTIED),
    "Qwen2ForCausalLM": Struct(
        {
            **BASE, **WINDOW, "use_sliding_window": SWITCH, "max_window_layers": SIZE,
            "layer_types": Maybe(ListOf(choice("full_attention", "sliding_attention"))),
        },
        {**UNTIED, "use_sliding_window": False, "max_window_layers": 28},
    ),
    "Qwen3ForCausalLM": Struct(QWEN3, UNTIED),
    "Qwen3MoeForCausalLM": Struct(
        {
            **QWEN3, "mlp_only_layers": ListOf(SIZE), "norm_topk_prob": SWITCH,
            **dict.fromkeys(
                ("moe_intermediate_size", "num_experts", "decoder_sparse_step", "num_experts_per_tok"), SIZE
            ),
        },
        UNTIED,
    ),
    "Gemma2ForCausalLM": Struct(
        {
            **BASE, "attention_bias": SWITCH, "head_dim": SIZE, "hidden_act": Maybe(ACTIVATION),
            "hidden_activation": Maybe(ACTIVATION), "sliding_window": SIZE, "attn_logit_softcapping": Maybe(NUMBER),
            "final_logit_softcapping": Maybe(NUMBER), "query_pre_attn_scalar": SIZE,
        },
        UNTIED,
    ),
    "Gemma3ForCausalLM": Struct(
        {
            **{name: kind for name, kind in BASE.items() if name != "hidden_act"}, "attention_bias": SWITCH,
            "hidden_activation": ACTIVATION, "attn_logit_softcapping": Maybe(NUMBER),
            "final_logit_softcapping": Maybe(NUMBER), "rope_local_base_freq": NUMBER,
            "rope_scaling": Maybe(GEMMA_SCALING),
            **dict.fromkeys(("head_dim", "sliding_window", "query_pre_attn_scalar", "sliding_window_pattern"), SIZE),
        },
        {
            "attention_bias": False, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
            "num_attention_heads": 8, "num_key_value_heads": 4, "rope_theta": 1e6, "vocab_size": 262208,
            "query_pre_attn_scalar": 256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
            "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
        },
    ),
    "Phi3ForCausalLM": Struct(
        {
            **BASE, **WINDOW, "bos_token_id": Maybe(U32), "eos_token_id": Maybe(U32),
            "rope_scaling": Maybe(PHI_SCALING), "rope_scaling_attn_factor": Maybe(NUMBER),
            "original_max_position_embeddings": SIZE, "partial_rotary_factor": Maybe(NUMBER),
        },
        UNTIED,
    ),
    "Glm4ForCausalLM": Struct(
        {
            **BASE, **WINDOW, "partial_rotary_factor": Maybe(NUMBER), "attention_bias": Maybe(SWITCH),
            "head_dim": Maybe(SIZE),
        },
        {**UNTIED, "max_position_embeddings": 32768},
    ),
    "GptOssForCausalLM": Struct(
        {
            **{name: kind for name, kind in BASE.items() if name != "hidden_act"}, **WINDOW, "head_dim": Maybe(SIZE),
            "num_local_experts": SIZE, "num_experts_per_tok": SIZE, "attention_bias": SWITCH,
            "layer_types": ListOf(choice("full_attention", "sliding_attention")), "alpha": NUMBER,
            "swiglu_limit": NUMBER, "rope_scaling": Maybe(GPT_OSS_SCALING),
        },
        {**UNTIED, "alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": False},
    ),
    "DeepseekV2ForCausalLM": DEEPSEEK,
    "DeepseekV3ForCausalLM": Struct(
        {
            **{name: kind for name, kind in DEEPSEEK.fields.items() if name != "norm_topk_prob"},
            "topk_method": choice("noaux_tc", "greedy", "group_limited_greedy"),
            "scoring_func": choice("softmax", "sigmoid"),
        },
        DEEPSEEK.defaults,
        aliases={"quantization": "quantization_config"},
    ),
    "Lfm2ForCausalLM": LFM,
    "Lfm2MoeForCausalLM": LFM,
    "GemmaForCausalLM": Struct(
        {
            **BASE, "attention_bias": SWITCH, "head_dim": SIZE, "hidden_act": Maybe(ACTIVATION),
            "hidden_activation": Maybe(ACTIVATION),
        },
        {**UNTIED, "max_position_embeddings": 4096},
    ),
    "SmolLM3ForCausalLM": Struct(
        {
            **BASE, "rope_scaling": Maybe(LLAMA_SCALING), "no_rope_layers": Maybe(ListOf(SIZE)),
            "no_rope_layer_interval": SIZE,
        },
        {"tie_word_embeddings": True},
    ),
    "HunYuanDenseV1ForCausalLM": Struct(
        {
            **BASE, **dict.fromkeys(HUNYUAN_SWITCHES, SWITCH), "head_dim": Maybe(SIZE), "cla_share_factor": Maybe(SIZE),
            "pretraining_tp": SIZE, "rope_scaling": Maybe(HUNYUAN_SCALING),
        },
        {**UNTIED, **dict.fromkeys(HUNYUAN_SWITCHES, False), "pretraining_tp": 1},
    ),
    "Glm4MoeForCausalLM": Struct(
        {
            **GLM, **dict.fromkeys(("use_qk_norm", "attention_bias", "norm_topk_prob"), SWITCH),
            "partial_rotary_factor": NUMBER, "head_dim": Maybe(SIZE),
        },
        {**GLM_DEFAULTS, "use_qk_norm": False, "attention_bias": False, "norm_topk_prob": True},
        aliases={"quantization": "quantization_config"},
    ),
    "Glm4MoeLiteForCausalLM": Struct(
        {
            **GLM,
            **dict.fromkeys(
                ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                 "moe_layer_freq"), SIZE,
            ),
        },
        {**GLM_DEFAULTS, "moe_layer_freq": 1},
        aliases={"quantization": "quantization_config"},
    ),
    "Starcoder2ForCausalLM": Struct(
        {
            **{name: kind for name, kind in BASE.items() if name != "rms_norm_eps"}, **WINDOW, "norm_epsilon": NUMBER,
            "use_bias": SWITCH,
        },
        UNTIED,
    ),
}  # fmt: skip
"""Class -> settings that it reads."""
OTHER_CLASSES = frozenset((
    "PhiForCausalLM", "PhiMoEForCausalLM", "GraniteMoeHybridForCausalLM", "HunYuanMoEV1ForCausalLM",
    "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM",
))  # fmt: skip
"""Text classes of mistral.rs that these tables do not describe."""
MULTIMODAL = frozenset((
    "Phi3VForCausalLM", "Idefics2ForConditionalGeneration", "LlavaNextForConditionalGeneration",
    "LlavaForConditionalGeneration", "Lfm2VlForConditionalGeneration", "MllamaForConditionalGeneration",
    "Idefics3ForConditionalGeneration", "MiniCPMO", "Phi4MMForCausalLM", "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration",
    "Gemma4UnifiedForCausalLM", "MuseGlimmerForConditionalGeneration", "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "VoxtralRealtimeForConditionalGeneration", "DiffusionGemmaForBlockDiffusion",
))  # fmt: skip
"""Classes with another modality, which these tables do not describe; Qwen 2 VL is refused as a text model."""
AS_MULTIMODAL = ("Gemma3ForCausalLM",)
"""Text models that mistral.rs loads as multimodal ones."""


def has_class(name: str) -> bool:
    """Return whether mistral.rs has a class of models."""
    return name in CLASSES or name in OTHER_CLASSES or name in MULTIMODAL


def quantization_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is missing from a quantization_config whose types are right."""
    quantization = config.get("quantization_config")
    if quantization is not None and quantization.get("quant_method") in GROUPED:
        for name in ("bits", "group_size"):
            if quantization.get(name) is None:
                yield f"quantization_config.{name}", "is missing"
