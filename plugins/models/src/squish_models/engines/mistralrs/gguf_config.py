"""The settings that mistral.rs derives from a GGUF's keys, for the class that loads the file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from .gguf_keys import SCALING, Keys, UnreadError

Config = dict[str, Any]
THETA = 10000.0
SIGMOID = 2
"""Value of `expert_gating_func`."""
LARGE_GEMMA = {"Gemma2ForCausalLM": 46, "Gemma3ForCausalLM": 62}
"""Class -> number of layers of the model whose queries are scaled by the width of all heads."""
EXPERTS = ("expert_count", "expert_used_count")
EXPERT_TENSORS = (".ffn_gate_inp.", ".ffn_gate_exps.", ".ffn_up_exps.", ".ffn_down_exps.")
LATENT = ("attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla")
GEMMA3_LAYER = (
    *(f"attn_{each}" for each in ("q", "k", "v", "output", "norm", "q_norm", "k_norm")), "ffn_gate", "ffn_up",
    "ffn_down", "ffn_norm", "post_attention_norm", "post_ffw_norm",
)  # fmt: skip
COMMON = ("context_length", "embedding_length", "block_count", "attention.head_count")
REQUIRED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "qwen3moe": (EXPERTS, EXPERT_TENSORS), "gpt-oss": (EXPERTS, EXPERT_TENSORS),
    "granitemoe": (EXPERTS, EXPERT_TENSORS), "deepseek2": ((*EXPERTS, *LATENT), (".attn_k_b.", ".attn_v_b.")),
    "lfm2": (("shortconv.l_cache",), (".shortconv.conv.", ".shortconv.in_proj.")),
    "lfm2moe": (("shortconv.l_cache", *EXPERTS), (".shortconv.conv.", ".shortconv.in_proj.")),
    "glm4moe": (EXPERTS, EXPERT_TENSORS),
}  # fmt: skip
"""Architecture -> keys, and parts of tensor names, without which mistral.rs refuses it at once."""
CLASSES = {
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM", "phi3": "Phi3ForCausalLM",
    "glm4": "Glm4ForCausalLM", "gpt-oss": "GptOssForCausalLM", "lfm2": "Lfm2ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM", "mistral3": "MistralForCausalLM",
    "gemma": "GemmaForCausalLM", "smollm3": "SmolLM3ForCausalLM", "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
    "glm4moe": "Glm4MoeForCausalLM", "lfm2moe": "Lfm2MoeForCausalLM",
}  # fmt: skip
"""Architecture -> class; for `llama` and `deepseek2` it depends on the keys."""
OTHER_ARCHITECTURES = (
    "phi2", "phimoe", "qwen3next", "qwen35", "qwen35moe", "granite", "granitemoe", "granitehybrid", "hunyuan-moe",
)  # fmt: skip
"""Architectures that mistral.rs loads as text models and these tables do not describe."""


def class_of(keys: Keys) -> str:
    """Return the class that loads the file; "" for an architecture outside the tables. Raises `UnreadError`."""
    _check_required(keys)
    if keys.architecture == "llama":
        return _class_of_llama(keys)
    if keys.architecture == "deepseek2":
        return _class_of_deepseek(keys)
    return CLASSES.get(keys.architecture, "")


def _check_required(keys: Keys) -> None:
    """Raise `UnreadError` if a key or tensor is missing that mistral.rs looks for before it chooses the class."""
    own, parts = REQUIRED.get(keys.architecture, ((), ()))
    if keys.architecture == "gemma3":
        return
    for name in (*COMMON, *own):
        if keys.name(name) not in keys.meta:
            raise keys.refuse(name, "is missing, and mistral.rs does not load without it")
    if keys.name("vocab_size") not in keys.meta and "tokenizer.ggml.tokens" not in keys.meta:
        raise UnreadError("tokenizer.ggml.tokens", "are missing, and mistral.rs does not load without them")
    for part in ("token_embd.weight", *parts):
        if not keys.has(part):
            raise UnreadError(part.strip("."), "is missing, and mistral.rs does not load without it")
    if keys.architecture in ("glm4", "glm4moe") and keys.name("rope.dimension_sections") in keys.meta:
        raise keys.refuse("rope.dimension_sections", "is there, which mistral.rs does not support")


def _class_of_llama(keys: Keys) -> str:
    if keys.name("expert_count") in keys.meta or keys.has(".ffn_gate_exps."):
        return "MixtralForCausalLM"
    if keys.name("attention.sliding_window") in keys.meta:
        return "MistralForCausalLM"
    names = [keys.stored(f"general.{name}") for name in ("basename", "name")]
    title = next((str(name.value) for name in names if name is not None and name.type == "str"), "")
    first_word = next(filter(None, re.split(r"[^0-9A-Za-z]", title)), "")
    if first_word.lower() == "mistral":
        raise UnreadError(
            "general.name", f"is {title[:40]!r}: mistral.rs takes a Mistral only with its original config.json"
        )
    return "LlamaForCausalLM"


def _class_of_deepseek(keys: Keys) -> str:
    """Return the class: GLM 4.7 Flash shares DeepSeek's architecture, and its name tells them apart."""
    for name in ("name", "basename"):
        stored = keys.stored(f"general.{name}")
        if stored and stored.type == "str" and "glm4" in re.sub(r"[^0-9a-z]", "", str(stored.value).lower()):
            return ""
    raise UnreadError("general.architecture", "is deepseek2, which mistral.rs does not run from a GGUF")


def config_of(name: str, keys: Keys) -> Config:
    """Return the settings for a class. Raises `UnreadError`."""
    config = BUILDERS[name](name, keys)
    finite = {
        each: None if isinstance(value, float) and not math.isfinite(value) else value for each, value in config.items()
    }
    return {**finite, "architectures": [name], "quantization_config": None}


def _vocabulary(keys: Keys) -> int:
    size = keys.maybe_size("vocab_size")
    if size is not None:
        return size
    tokens = keys.stored("tokenizer.ggml.tokens")
    if tokens is None or not tokens.type.startswith("array:"):
        raise UnreadError("tokenizer.ggml.tokens", "are not an array, as mistral.rs expects")
    return len(tokens.value)


def _epsilon(keys: Keys) -> float:
    values = [keys.maybe_number(f"attention.layer_norm_{kind}epsilon") for kind in ("rms_", "")]
    stored = next((value for value in values if value is not None), None)
    if stored is None:
        raise keys.refuse("attention.layer_norm_rms_epsilon", "is missing, and mistral.rs does not load without it")
    return stored


def _theta(keys: Keys, default: float | None) -> float:
    base = keys.maybe_number("rope.freq_base") if default is not None else keys.number("rope.freq_base")
    return THETA if base is None else base


def _standard(keys: Keys, theta: float | None = THETA) -> Config:
    hidden, heads = keys.uniform("embedding_length"), keys.uniform("attention.head_count")
    key_length = keys.maybe_size("attention.key_length")
    epsilon = _epsilon(keys)
    return {
        "vocab_size": _vocabulary(keys),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": keys.uniform("feed_forward_length"),
        "num_hidden_layers": keys.layers(),
        "num_key_value_heads": keys.uniform("attention.head_count_kv", but_zero=True),
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": epsilon,
        "norm_epsilon": epsilon,
        "norm_eps": epsilon,
        "rope_theta": _theta(keys, theta),
        "sliding_window": keys.window(),
        "hidden_act": "silu",
        "head_dim": keys.divided("embedding_length", "attention.head_count") if key_length is None else key_length,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
    }


def _llama(name: str, keys: Keys) -> Config:
    config, scaling = _standard(keys), None
    if not keys.has("rope_freqs") and keys.scaling("linear"):
        scaling = {"factor": _finite(keys.number(f"{SCALING}factor")), "rope_type": "linear"}
    return {**config, "rope_scaling": scaling}


def _smollm3(name: str, keys: Keys) -> Config:
    return {**_llama(name, keys), "no_rope_layers": None, "no_rope_layer_interval": 4}


def _gemma1(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    activation = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
    return {**_standard(keys), **activation, "attention_bias": keys.has(".attn_q.bias")}


def _hunyuan(name: str, keys: Keys) -> Config:
    biases = {"attention_bias": keys.has(".attn_q.bias"), "mlp_bias": keys.has(".ffn_gate.bias")}
    return {**_standard(keys, None), **biases, "rope_scaling": None}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _yarn(keys: Keys) -> Config:
    sizes = {"original_max_position_embeddings": keys.size(f"{SCALING}original_context_length")}
    names = {"factor": "factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    return sizes | {each: _finite(keys.number(f"{SCALING}{key}")) for each, key in names.items()}


def _mistral(name: str, keys: Keys) -> Config:
    config, rope = _standard(keys), None
    if keys.scaling("yarn"):
        rope = {
            **_yarn(keys), "rope_type": "yarn", "rope_theta": _finite(config["rope_theta"]), "mscale": 1.0,
            "mscale_all_dim": _finite(keys.number(f"{SCALING}yarn_log_multiplier")),
            "llama_4_scaling_beta": keys.maybe_number("attention.temperature_scale"),
        }  # fmt: skip
    return {**config, "rope_parameters": rope}


def _mixtral(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    counts = {"num_local_experts": keys.size("expert_count"), "num_experts_per_tok": keys.size("expert_used_count")}
    return {**_standard(keys), **counts}


def _phi3(name: str, keys: Keys) -> Config:
    config = _standard(keys)
    factors = [keys.has(part) for part in ("rope_factors_long", "rope_factors_short")]
    if any(factors):
        if not all(factors):
            raise UnreadError("rope_factors_long.weight", "and rope_factors_short.weight are not both there")
        keys.number(f"{SCALING}attn_factor")
    else:
        keys.scaling()
    original = keys.maybe_size(f"{SCALING}original_context_length")
    return {
        **config,
        "original_max_position_embeddings": config["max_position_embeddings"] if original is None else original,
        "rope_scaling": None,
        "rope_scaling_attn_factor": keys.maybe_number(f"{SCALING}attn_factor"),
        "partial_rotary_factor": _rotated(keys, config),
        "bos_token_id": _id(keys, "bos_token_id"),
        "eos_token_id": _id(keys, "eos_token_id"),
    }


def _id(keys: Keys, name: str) -> int | None:
    """Return a token id, of any integer type."""
    number = Keys("tokenizer.ggml", keys.meta, ()).maybe_size(name)
    if number is not None and number >= 1 << 32:
        raise UnreadError(f"tokenizer.ggml.{name}", "is not an id of 32 bits")
    return number


def _rotated(keys: Keys, config: Config) -> float:
    """Return the fraction of a head that is rotated."""
    rows, head = keys.size("rope.dimension_count"), config["head_dim"]
    if not head or rows > head or head >= 1 << 32:
        raise keys.refuse("rope.dimension_count", f"is {rows}, and heads have {head} rows")
    return rows / head


def _qwen2(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    config = _standard(keys, None)
    layers, kinds = config["num_hidden_layers"], None
    if config["sliding_window"]:
        has_window = keys.pattern(layers)
        kinds = _kinds([True] * min(layers, len(keys.tensors)) if has_window is None else has_window)
    return {
        **config,
        "use_sliding_window": kinds is not None,
        "max_window_layers": layers,
        "layer_types": kinds,
    }


def _kinds(has_window: list[bool]) -> list[str]:
    return ["sliding_attention" if each else "full_attention" for each in has_window]


def _qwen3(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    config = _standard(keys, None)
    layers, has_window = config["num_hidden_layers"], None
    if config["sliding_window"]:
        has_window = keys.pattern(layers)
        if has_window is None:
            raise keys.refuse("attention.sliding_window_pattern", "is missing beside attention.sliding_window")
        if has_window != sorted(has_window):
            raise keys.refuse("attention.sliding_window_pattern", "is not a window in all layers from one on")
    start = layers if not has_window or not any(has_window) else has_window.index(True)
    config |= {"use_sliding_window": start < layers, "max_window_layers": start}
    if name == "Qwen3MoeForCausalLM":
        config |= _qwen3_experts(keys)
    return config


def _qwen3_experts(keys: Keys) -> Config:
    norm = keys.maybe_switch("expert_weights_norm")
    return {
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "norm_topk_prob": True if norm is None else norm,
        "decoder_sparse_step": 1,
        "mlp_only_layers": sorted(keys.layers_with(".ffn_gate.") - keys.layers_with(".ffn_gate_inp.")),
    }


def _gemma2(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    config = _standard(keys)
    if config["sliding_window"] is None:
        raise keys.refuse("attention.sliding_window", "is missing or 0, and mistral.rs does not load without it")
    return {**config, **_gemma(name, keys, config)}


def _gemma(name: str, keys: Keys, config: Config) -> Config:
    is_large = config["num_hidden_layers"] == LARGE_GEMMA[name]
    return {
        "attention_bias": keys.has(".attn_q.bias"),
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": keys.maybe_number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.maybe_number("final_logit_softcapping"),
        "query_pre_attn_scalar": keys.divided("embedding_length", "attention.head_count")
        if is_large
        else config["head_dim"],
    }


def _gemma3(name: str, keys: Keys) -> Config:
    """Return the settings of Gemma 3, whose own loader accepts no arrays."""
    names = {
        "max_position_embeddings": "context_length", "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
    }  # fmt: skip
    config: Config = {each: keys.size(key) for each, key in names.items()}
    if keys.size("attention.value_length") != config["head_dim"]:
        raise keys.refuse("attention.value_length", f"is not attention.key_length, {config['head_dim']}")
    if keys.has("rope_freqs"):
        raise UnreadError("rope_freqs.weight", "has rope factors, which mistral.rs does not read for gemma3")
    tokens = keys.stored("tokenizer.ggml.tokens")
    if tokens is None or not tokens.type.startswith("array:") or not len(tokens.value):
        raise UnreadError("tokenizer.ggml.tokens", "are not tokens, and mistral.rs does not load without them")
    window, period = keys.window(), 1
    if window:
        own = keys.maybe_size("attention.sliding_window_pattern")
        period = 6 if own is None else own
    is_linear = keys.scaling("linear")
    _check_gemma3_layers(keys)
    bases = [keys.maybe_number(f"rope.freq_base{end}") for end in ("", "_swa")]
    return {
        **config,
        **_gemma(name, keys, config),
        "vocab_size": len(tokens.value),
        "attention_bias": _gemma3_bias(keys),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": 1e6 if bases[0] is None else bases[0],
        "rope_local_base_freq": THETA if bases[1] is None else bases[1],
        "sliding_window": window or config["max_position_embeddings"],
        "sliding_window_pattern": period,
        "rope_scaling": {"factor": _finite(keys.number(f"{SCALING}factor")), "rope_type": "linear"}
        if is_linear
        else None,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
    }


def _check_gemma3_layers(keys: Keys) -> None:
    """Raise `UnreadError` if a layer after the last one, which mistral.rs reads, too, lacks a tensor."""
    names = set(keys.tensors)
    for layer in sorted(keys.layers_with("")):
        for role in GEMMA3_LAYER if layer >= keys.size("block_count") else ():
            if f"blk.{layer}.{role}.weight" not in names:
                raise UnreadError(f"blk.{layer}.{role}.weight", "is missing, and mistral.rs reads the layer")


def _gemma3_bias(keys: Keys) -> bool:
    names = {
        f"blk.{layer}.attn_{each}.bias"
        for layer in range(min(keys.size("block_count"), len(keys.tensors)))
        for each in ("q", "k", "v", "output")
    }
    present = names.intersection(keys.tensors)
    if present and present != names:
        raise UnreadError(min(names - present), "is missing, and other matrices of attention have a bias")
    return bool(present)


def _glm4(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    config = _standard(keys, None)
    return {
        **config,
        "partial_rotary_factor": _rotated(keys, config),
        "attention_bias": keys.has(".attn_q.bias"),
    }


def _glm4_moe(name: str, keys: Keys) -> Config:
    counts = {
        "moe_intermediate_size": "expert_feed_forward_length", "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count", "num_experts_per_tok": "expert_used_count",
    }  # fmt: skip
    optional = {
        "first_k_dense_replace": ("leading_dense_block_count", 0), "n_group": ("expert_group_count", 1),
        "topk_group": ("expert_group_used_count", 1),
    }  # fmt: skip
    sizes = {each: keys.maybe_size(key) for each, (key, _) in optional.items()}
    return {
        **_glm4(name, keys),
        "use_qk_norm": keys.has(".attn_q_norm."),
        **{each: keys.size(key) for each, key in counts.items()},
        **{each: optional[each][1] if size is None else size for each, size in sizes.items()},
        **_routing(keys),
    }


def _routing(keys: Keys) -> Config:
    scale, norm = keys.maybe_number("expert_weights_scale"), keys.maybe_switch("expert_weights_norm")
    return {"routed_scaling_factor": 1.0 if scale is None else scale, "norm_topk_prob": norm is not False}


def _lfm2_moe(name: str, keys: Keys) -> Config:
    gating = keys.maybe_size("expert_gating_func")
    if gating not in (None, SIGMOID):
        raise keys.refuse("expert_gating_func", f"is {gating}, and mistral.rs computes {SIGMOID}, a sigmoid")
    return {
        **_lfm2(name, keys),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "num_dense_layers": keys.maybe_size("leading_dense_block_count") or 0,
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "use_expert_bias": keys.has(".exp_probs_b"),
        **_routing(keys),
    }


def _gpt_oss(name: str, keys: Keys) -> Config:
    config = _standard(keys, None)
    if config["sliding_window"] is None:
        raise keys.refuse("attention.sliding_window", "is missing or 0, and mistral.rs does not load without it")
    layers, scaling = config["num_hidden_layers"], None
    has_window = keys.pattern(layers)
    if has_window is None:
        has_window = [layer % 2 == 0 for layer in range(min(layers, len(keys.tensors)))]
    if keys.scaling("yarn"):
        scaling = {**_yarn(keys), "rope_type": "yarn", "truncate": False}
    return {
        **config,
        "intermediate_size": keys.size("expert_feed_forward_length"),
        "layer_types": _kinds(has_window),
        "num_local_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "attention_bias": keys.has(".attn_q.bias"),
        "alpha": 1.702,
        "swiglu_limit": 7.0,
        "rope_scaling": scaling,
    }


def _lfm2(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    layers = keys.layers()
    groups = keys.sizes("attention.head_count_kv")
    if len(groups) not in (1, layers):
        raise keys.refuse("attention.head_count_kv", f"has {len(groups)} numbers for {layers} layers")
    counts = groups * min(layers, len(keys.tensors)) if len(groups) == 1 else groups
    conv_layers = keys.layers_with(".shortconv.")
    inner = keys.uniform("feed_forward_length")
    return {
        "vocab_size": _vocabulary(keys),
        "hidden_size": keys.uniform("embedding_length"),
        "intermediate_size": inner,
        "block_ff_dim": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": keys.uniform("attention.head_count"),
        "num_key_value_heads": keys.uniform("attention.head_count_kv", but_zero=True),
        "num_dense_layers": layers,
        "max_position_embeddings": keys.size("context_length"),
        "norm_eps": _epsilon(keys),
        "rope_parameters": {"rope_theta": _finite(_theta(keys, None)), "rope_type": "default"},
        "conv_bias": keys.has(".shortconv.conv.bias"),
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "layer_types": [
            "conv" if not count or layer in conv_layers else "full_attention" for layer, count in enumerate(counts)
        ],
    }


def _starcoder2(name: str, keys: Keys) -> Config:
    keys.refuse_scaling()
    has_bias = keys.has(".attn_q.bias") or keys.has(".ffn_up.bias")
    return {**_standard(keys), "hidden_act": "gelu_pytorch_tanh", "use_bias": has_bias}


BUILDERS: dict[str, Callable[[str, Keys], Config]] = {
    "LlamaForCausalLM": _llama, "MistralForCausalLM": _mistral, "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2, "Qwen3ForCausalLM": _qwen3, "Qwen3MoeForCausalLM": _qwen3,
    "Gemma2ForCausalLM": _gemma2, "Gemma3ForCausalLM": _gemma3, "Phi3ForCausalLM": _phi3, "Glm4ForCausalLM": _glm4,
    "GemmaForCausalLM": _gemma1, "SmolLM3ForCausalLM": _smollm3, "HunYuanDenseV1ForCausalLM": _hunyuan,
    "Glm4MoeForCausalLM": _glm4_moe, "Lfm2MoeForCausalLM": _lfm2_moe,
    "GptOssForCausalLM": _gpt_oss, "Lfm2ForCausalLM": _lfm2, "Starcoder2ForCausalLM": _starcoder2,
}  # fmt: skip
