"""mlx-lm's settings for models without a family in Squish: their names, the required ones, and what mlx-lm refuses or
computes differently. The oracle `test_models_carried_oracle.py` compares each line with mlx-lm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from squish_core.api import TensorSpec

from .spelling import TIED, both_spellings

Config = Mapping[str, Any]
Setting = Callable[[Config, Config], Any]
"""Computes a setting from those of its part of the model and from the whole config."""
PART = "text_config"
UNKNOWN = object()
"""A setting that cannot be computed."""


def _rope(name: str, *layers: str) -> Setting:
    """Return a getter for a value of `rope_parameters`, or of those for one kind of layer."""

    def value(part: Config, config: Config) -> Any:
        parameters = part["rope_parameters"]
        for each in layers:
            parameters = parameters[each]
        return parameters[name]

    return value


def _key(name: str) -> Setting:
    return lambda part, config: part[name]


def _are(name: str, kind: str, as_type: type = bool) -> Setting:
    """Return a getter that tells for each layer whether it has this kind."""
    return lambda part, config: [as_type(each == kind) for each in part[name]]


def _head_size(part: Config, config: Config) -> int:
    return int(part["hidden_size"]) // int(part["num_attention_heads"])


def _dense_layers(part: Config, config: Config) -> int:
    return list(part["mlp_layer_types"]).index("sparse")


def _no_window(part: Config, config: Config) -> int | None:
    """Return the window of all layers if every text fits into it."""
    window = part["sliding_window"]
    return window if window >= part["max_position_embeddings"] else None


def _rotary_size(part: Config, config: Config) -> int:
    return int(part["head_dim"] * part["rope_parameters"]["partial_rotary_factor"])


def _unit_longrope(part: Config, config: Config) -> dict[str, Any]:
    """Return a longrope scaling without an effect."""
    return {"type": "longrope", "original_max_position_embeddings": part["max_position_embeddings"]}


_NO_AUX = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
SPELLED: Mapping[str, Mapping[str, Any]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "exaone4": {"head_dim": _head_size},
    "exaone_moe": {"head_dim": _head_size, "is_moe_layer": _are("mlp_layer_types", "sparse")},
    "glm4_moe": {"head_dim": _head_size},
    "gpt_neox": {"rotary_emb_base": _rope("rope_theta"), "rotary_pct": _rope("partial_rotary_factor")},
    "granitemoehybrid": {"time_step_limit": [0.0, float("inf")]},
    "longcat_flash": {"attention_method": "MLA", "zero_expert_type": "identity", "mla_scale_q_lora": True,
                      "mla_scale_kv_lora": True},
    "mamba2": {"time_step_limit": [0.0, float("inf")]},
    "mimo_v2_flash": {
        **_NO_AUX, "hybrid_layer_pattern": _are("layer_types", "sliding_attention", int),
        "moe_layer_freq": _are("mlp_layer_types", "sparse", int), "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "sliding_window_size": _key("sliding_window"), "n_shared_experts": None,
        "layernorm_epsilon": _key("rms_norm_eps"), "swa_rope_theta": _rope("rope_theta", "sliding_attention"),
        "swa_num_attention_heads": _key("num_attention_heads"),
        "swa_num_key_value_heads": lambda part, config: 2 * part["num_key_value_heads"],
        "swa_head_dim": _key("head_dim"), "swa_v_head_dim": _key("v_head_dim"),
        "partial_rotary_factor": _rope("partial_rotary_factor", "full_attention"),
    },
    "minicpm3": {"rope_scaling": _unit_longrope},
    "minimax_m2": {"shared_intermediate_size": 0, "rotary_dim": _rotary_size},
    "solar_open": {"intermediate_size": _key("moe_intermediate_size"), "first_k_dense_replace": 0,
                   "partial_rotary_factor": 1.0, "use_qk_norm": False},
}  # fmt: skip
"""Model type -> settings that Transformers 5 implies or stores elsewhere: constants or functions."""
RESPELLED: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "minicpm": {"tie_word_embeddings": lambda tied: False},  # mlx-lm makes a head of the embeddings, and scales it
    "exaone4": {"sliding_window_pattern": lambda every: "L" * (every - 1) + "G" if isinstance(every, int) else every},
}  # fmt: skip
"""Model type -> settings whose values Transformers 5 spells differently."""
USUAL = frozenset((
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "rms_norm_eps", "num_key_value_heads", "rope_theta", "max_position_embeddings", "tie_word_embeddings",
    "text_config", "layer_norm_eps", "moe_intermediate_size", "num_experts_per_tok", "attention_bias", "rope_scaling",
    "num_experts", "norm_topk_prob", "head_dim", "sliding_window", "layer_types", "n_routed_experts",
    "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor",
))  # fmt: skip
"""Settings that a config.json states under these names, wherever its model has them."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "afm7": ("hidden_dim", "num_layers", "num_kv_reuse_layers", "num_heads", "num_kv_heads"),
    "apertus": ("mlp_bias", "post_norm", "qk_norm"),
    "baichuan_m1": ("sliding_window_layers", "conv_window"),
    "bailing_hybrid": (
        "num_shared_experts", "n_group", "topk_group", "layer_group_size", "group_norm_size", "kv_lora_rank",
        "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"
    ),
    "bailing_moe": ("num_shared_experts",),
    "bailing_moe_linear": ("num_shared_experts", "layer_group_size", "group_norm_size"),
    "dbrx": ("d_model", "ffn_config", "attn_config", "n_layers", "n_heads"),
    "ernie4_5": ("use_bias",),
    "ernie4_5_moe": ("use_bias", "moe_num_experts"),
    "exaone": ("num_layers", "layer_norm_epsilon"),
    "exaone4": ("sliding_window_pattern",),
    "exaone_moe": ("num_shared_experts", "is_moe_layer"),
    "falcon_mamba": ("state_size", "conv_kernel", "use_bias", "use_conv_bias", "time_step_rank"),
    "glm4_moe": ("n_group", "topk_group", "use_qk_norm", "partial_rotary_factor"),
    "gpt_bigcode": ("n_embd", "n_layer", "n_inner", "n_head", "n_positions", "layer_norm_epsilon"),
    "gpt_neox": ("rotary_emb_base", "rotary_pct"),
    "granitemoe": (
        "logits_scaling", "attention_multiplier", "embedding_multiplier", "residual_multiplier", "num_local_experts"
    ),
    "granitemoehybrid": ("embedding_multiplier", "attention_multiplier", "logits_scaling", "residual_multiplier"),
    "helium": ("mlp_bias",),
    "hunyuan": ("moe_topk", "num_shared_expert", "use_mixed_mlp_moe", "use_qk_norm", "use_cla", "cla_share_factor"),
    "jamba": (
        "attn_layer_offset", "attn_layer_period", "expert_layer_offset", "expert_layer_period", "mamba_d_conv",
        "mamba_d_state", "mamba_expand"
    ),
    "Klear": ("mlp_only_layers", "decoder_sparse_step"),
    "lfm2_moe": ("use_expert_bias", "num_dense_layers", "norm_eps", "conv_bias", "conv_L_cache"),
    "lille-130m": ("block_size", "n_embd", "n_head", "n_kv_heads", "n_layer"),
    "longcat_flash": (
        "attention_method", "zero_expert_type", "ffn_hidden_size", "moe_topk", "expert_ffn_hidden_size",
        "zero_expert_num", "num_layers", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
        "v_head_dim", "mla_scale_q_lora", "mla_scale_kv_lora"
    ),
    "longcat_flash_ngram": (
        "ffn_hidden_size", "moe_topk", "expert_ffn_hidden_size", "zero_expert_num", "num_layers", "kv_lora_rank",
        "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "mla_scale_q_lora", "mla_scale_kv_lora"
    ),
    "mamba": ("state_size", "conv_kernel", "use_bias", "use_conv_bias", "time_step_rank"),
    "mamba2": (
        "num_heads", "state_size", "layer_norm_epsilon", "conv_kernel", "n_groups", "use_bias", "use_conv_bias",
        "time_step_limit", "time_step_rank"
    ),
    "mimo_v2_flash": (
        "hybrid_layer_pattern", "moe_layer_freq", "add_swa_attention_sink_bias", "add_full_attention_sink_bias",
        "sliding_window_size", "topk_method", "scoring_func", "n_group", "topk_group", "layernorm_epsilon",
        "swa_rope_theta", "swa_num_attention_heads", "swa_num_key_value_heads", "v_head_dim", "swa_head_dim",
        "swa_v_head_dim", "partial_rotary_factor"
    ),
    "minicpm": ("dim_model_base", "scale_depth", "scale_emb"),
    "minicpm3": (
        "dim_model_base", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "scale_depth",
        "scale_emb"
    ),
    "minimax": ("num_local_experts", "shared_intermediate_size", "rotary_dim"),
    "minimax_m2": ("num_local_experts", "shared_intermediate_size", "rotary_dim"),
    "nemotron": ("hidden_act", "norm_eps"),
    "nemotron_h": (
        "mamba_num_heads", "mamba_head_dim", "mamba_proj_bias", "ssm_state_size", "conv_kernel", "n_groups",
        "mlp_bias", "layer_norm_epsilon", "use_bias", "use_conv_bias"
    ),
    "olmo_hybrid": (
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "linear_allow_neg_eigval"
    ),
    "openelm": (
        "num_transformer_layers", "model_dim", "ffn_dim_divisor", "num_query_heads", "num_kv_heads",
        "ffn_multipliers"
    ),
    "phi3small": ("dense_attention_every_n_layers", "ff_intermediate_size", "gegelu_limit", "layer_norm_epsilon"),
    "qwen2_moe": ("shared_expert_intermediate_size",),
    "qwen3_next": (
        "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "decoder_sparse_step", "shared_expert_intermediate_size", "mlp_only_layers",
        "partial_rotary_factor"
    ),
    "recurrent_gemma": ("conv1d_width", "logits_soft_cap", "attention_window_size"),
    "rwkv7": ("norm_eps", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "decay_low_rank_dim"),
    "solar_open": ("partial_rotary_factor",),
    "spark2_5": ("rope_parameters",),
    "stablelm": ("use_qkv_bias", "partial_rotary_factor"),
    "step3p5": ("num_attention_groups",),
}  # fmt: skip
"""Settings without a default in mlx-lm, apart from those that every config.json states."""
COMPUTED: Mapping[str, Mapping[str, Any]] = {
    "cohere2": {"head_dim": _head_size},
    "glm": {"partial_rotary_factor": 1.0},
    "gpt_neox": {"intermediate_size": lambda part, config: 4 * part["hidden_size"]},
    "internlm3": {"head_dim": _head_size},
    "falcon_h1": {"mamba_n_groups": lambda part, config: 1 if part["mamba_rms_norm"] else part["mamba_n_groups"]},
    "jamba": {"num_experts": 1},
    "llama4": {f"{PART}.num_experts_per_tok": 1},
    "mamba2": {"n_groups": 1},
    "minicpm3": {"v_head_dim": _head_size, "tie_word_embeddings": False},
    "ministral3": {"sliding_window": _no_window},
    "mistral3": {f"{PART}.sliding_window": _no_window},
    "olmo3": {"rope_local_base_freq": _key("rope_theta")},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "recurrent_gemma": {"num_key_value_heads": 1, "rope_theta": 10000.0},
}  # fmt: skip
"""Model type -> settings that mlx-lm fixes to one value, regardless of config.json."""
UNREAD: Mapping[str, str] = {
    "longcat_flash": "*.mlp.experts.{n_routed_experts}.*",
    "muse_glimmer": "model.vision_*",
    "nanochat": "model.embed_tokens.weight",
    "olmo_hybrid": "*.attention_layer_norm.weight",
}
"""Model type -> Transformers 5's names of tensors that mlx-lm names differently or does not have."""
NEEDED: Mapping[str, str] = {"bitnet": "*.weight_scale"}
"""Model type -> names of tensors that mlx-lm requires."""
LACKING = ("arcee", "hunyuan_v1_moe")
"""Types of known families that mlx-lm does not have (its `hunyuan` does not normalize the weights of experts)."""


def mlx_config(config: Config) -> dict[str, Any]:
    """Return the settings of a model, with those that mlx-lm reads added."""
    kind = config["model_type"]
    spelled = both_spellings(config)
    if isinstance(spelled.get(PART), dict):
        tied = {TIED: spelled[TIED]} if isinstance(spelled.get(TIED), bool) else {}
        spelled[PART] = {**spelled[PART], **tied}
    for place, setting in SPELLED.get(kind, {}).items():
        part, name = _place(spelled, place)
        if part is None or part.get(name) is not None:
            continue
        value = _value(setting, part, spelled)
        if value is not UNKNOWN:
            part[name] = value
    for name, words in RESPELLED.get(kind, {}).items():
        spelled[name] = words(spelled[name]) if name in spelled else None
    return spelled


def refusal(config: Config, tensors: Mapping[str, TensorSpec]) -> str:
    """Return why mlx-lm does not load a model with these settings of `mlx_config`, or computes another; or ""."""
    kind = config["model_type"]
    if kind in LACKING:
        return "it has no such model"
    absent = [name for name in REQUIRED.get(kind, ()) if name not in config]
    if absent:
        return f"it needs {', '.join(absent)} in config.json"
    for place, setting in COMPUTED.get(kind, {}).items():
        part, name = _place(config, place)
        value = UNKNOWN if part is None or name not in part else _value(setting, part, config)
        if value is not UNKNOWN and part[name] != value:
            return f"it computes with {name} of {value}, and config.json states {str(part[name])[:60]}"
    unread = UNREAD.get(kind, "").replace("{n_routed_experts}", str(config.get("n_routed_experts")))
    for name in tensors:
        if fnmatchcase(name, unread):
            return f"it has no {name}, as Transformers 5 names tensors"
    needed = NEEDED.get(kind)
    if needed is not None and not any(fnmatchcase(name, needed) for name in tensors):
        return f"it needs tensors like {needed}"
    return ""


def _place(config: Config, place: str) -> tuple[Any, str]:
    """Return the part of a config that has a setting, and its name in it; None if the part is not an object."""
    name = place.removeprefix(f"{PART}.")
    part = config.get(PART) if name != place else config
    return (part if isinstance(part, dict) else None), name


def _value(setting: Any, part: Config, config: Config) -> Any:
    """Return a setting's value; UNKNOWN if the config does not have Transformers 5's spelling."""
    if not callable(setting):
        return setting
    try:
        return setting(part, config)
    except (KeyError, IndexError, TypeError, ValueError, StopIteration, ZeroDivisionError):
        return UNKNOWN
