"""Settings that mistral.rs cannot compute with: it divides by them, or its logits become NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .settings import YARN
from .tensors import LLAMAS, has_experts, head_size, routed_as_deepseek

Settings = Mapping[str, Any]
Wrong = tuple[str, str]
NAN = "with which the logits of mistral.rs are not numbers"
MEMORY = 1 << 36
"""Bytes of rotations, which mistral.rs computes for every position at load; more than a machine has."""
SHORT = 8
"""Number of positions up to which some prompts fail; prompts must have fewer tokens."""
UNSURE = -1e-4
"""Epsilon below which it depends on the values whether a mean square plus epsilon has a root."""
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
FACTORS = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
YARN_NEEDS = ("original_max_position_embeddings", "factor", "beta_fast", "beta_slow")


def division_problems(settings: Settings) -> Iterator[Wrong]:
    """Yield settings of 0 by which mistral.rs divides, or counts layers, before it reads a tensor."""
    for name in (
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "decoder_sparse_step",
        "moe_layer_freq",
        "block_multiple_of",
        "sliding_window_pattern",
    ):
        if settings.get(name) == 0:
            yield name, "is 0, with which mistral.rs makes no model"


def number_problems(name: str, settings: Settings) -> Iterator[Wrong]:
    """Yield settings that break the computation of a model whose tensors have the expected shapes."""
    heads, groups = settings["num_attention_heads"], settings.get("num_key_value_heads")
    if groups and heads % groups:
        yield "num_key_value_heads", f"is {groups}, by which {heads} heads cannot be divided"
    cap = settings.get("final_logit_softcapping")
    if cap is not None and cap <= 0:
        yield "final_logit_softcapping", f"is {cap}, and mistral.rs takes a positive one"
    if settings.get("query_pre_attn_scalar") == 0 and settings.get("attn_logit_softcapping") is None:
        yield "query_pre_attn_scalar", f"is 0, {NAN}"
    if settings.get("sliding_window") == 0 and _has_window(name, settings):
        yield "sliding_window", f"is 0, {NAN}"
    yield from _length_problems(settings)
    yield from _rope_problems(name, settings)
    yield from _expert_problems(routed_as_deepseek(settings) if name.startswith("Glm4Moe") else settings)
    if name.startswith("Deepseek"):
        size = settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"]
        if settings["v_head_dim"] != size:
            yield (
                "v_head_dim",
                f"is not qk_nope_head_dim + qk_rope_head_dim, {size}, the only size that mistral.rs runs",
            )


def _has_window(name: str, settings: Settings) -> bool:
    if name == "Qwen2ForCausalLM":
        return bool(settings["use_sliding_window"])
    return name != "GptOssForCausalLM" or "sliding_attention" in settings["layer_types"]


def unsure(settings: Settings) -> str:
    """Return a message about a setting whose effect depends on the tensors' values or on the prompt."""
    for name in ("rms_norm_eps", "norm_eps", "norm_epsilon"):
        if settings.get(name) is not None and settings[name] < UNSURE:
            return f"{name} is {settings[name]}: whether mistral.rs computes numbers with it depends on the tensors"
    length = settings["max_position_embeddings"]
    if 1 < length <= SHORT:
        return f"max_position_embeddings is {length}, and whether mistral.rs runs depends on the prompt"
    return ""


def _length_problems(settings: Settings) -> Iterator[Wrong]:
    length = settings["max_position_embeddings"]
    half = settings.get("qk_rope_head_dim", head_size(settings)) // 2
    if length <= 1:
        yield "max_position_embeddings", f"is {length}, and mistral.rs takes shorter prompts only"
    elif 12 * length * half > MEMORY:
        yield "max_position_embeddings", f"is {length}, and mistral.rs computes the rotations of all when it loads"


def _rope_problems(name: str, settings: Settings) -> Iterator[Wrong]:
    head, share = settings.get("qk_rope_head_dim", head_size(settings)), settings.get("partial_rotary_factor")
    rotated = 2 * (-(-int(head * (1.0 if share is None else share)) // 2))
    if not 0 < rotated <= head:
        where = "head_dim" if share is None else "partial_rotary_factor"
        yield where, f"lets mistral.rs rotate {rotated} rows of heads that have {head}"
    local_base = settings.get("rope_local_base_freq")
    for where, base in (("rope_theta", _base(settings)), ("rope_local_base_freq", local_base)):
        if base is not None and base <= 0 and rotated > 2:
            yield where, f"is {base}, {NAN}"
    parameters = settings.get("rope_parameters") or {}
    for each in YARN_NEEDS if parameters.get("rope_type") == "yarn" else ():
        if parameters.get(each) is None:
            yield f"rope_parameters.{each}", "is missing"
    scaling = settings.get("rope_scaling")
    if scaling and name == "HunYuanDenseV1ForCausalLM":
        yield from _hunyuan_problems(scaling)
    elif scaling:
        yield from _scaling_problems(name, settings, scaling, rotated)


def _scaling_problems(name: str, settings: Settings, scaling: Settings, rotated: int) -> Iterator[Wrong]:
    factor = scaling.get("factor", 1)
    if factor == 0 or (factor < 0 and name == "GptOssForCausalLM"):
        yield "rope_scaling.factor", f"is {factor}, {NAN}"
    for each in FACTORS if name in LLAMAS and scaling["rope_type"] == "llama3" else ():
        if scaling.get(each) is None:
            yield f"rope_scaling.{each}", "is missing"
    if name == "Phi3ForCausalLM":
        yield from _factor_problems(settings, scaling, rotated // 2)
    if name.startswith("Deepseek") and any(YARN.problems(scaling, "")):
        yield "rope_scaling", "lacks a setting of YaRN, and mistral.rs computes no other scaling for DeepSeek"


def _hunyuan_problems(scaling: Settings) -> Iterator[Wrong]:
    kind, alpha = scaling.get("type", scaling.get("rope_type")), scaling.get("alpha")
    if kind not in ("default", "dynamic"):
        yield "rope_scaling.type", f"is {str(kind)[:40]}, which mistral.rs does not compute for HunYuan"
    elif kind == "dynamic" and not (alpha or 0) > 0:
        yield "rope_scaling.alpha", f"is {alpha}, and mistral.rs expects a positive number"


def _base(settings: Settings) -> float | None:
    parameters = settings.get("rope_parameters")
    theta = parameters.get("rope_theta") if isinstance(parameters, Mapping) else None
    return settings.get("rope_theta") if theta is None else theta


def _factor_problems(settings: Settings, scaling: Settings, count: int) -> Iterator[Wrong]:
    for name in ("short_factor", "long_factor"):
        if len(scaling[name]) < count:
            yield f"rope_scaling.{name}", f"has {len(scaling[name])} factors, and mistral.rs reads {count}"
        elif 0 in scaling[name][:count]:
            yield f"rope_scaling.{name}", f"has a factor of 0, {NAN}"
    original_length = settings["original_max_position_embeddings"]
    if settings["max_position_embeddings"] <= original_length:
        return
    if scaling["type"] in ("linear", "dynamic"):
        yield "rope_scaling.type", f"is {scaling['type']}, which mistral.rs does not compute for Phi 3"
    elif original_length <= 1:
        yield "original_max_position_embeddings", f"is {original_length}, {NAN}"


def _expert_problems(settings: Settings) -> Iterator[Wrong]:
    used = settings.get("num_experts_per_tok")
    for name in COUNTS:
        count = settings.get(name)
        if count is None or (name == "n_routed_experts" and not _any_experts(settings)):
            continue
        if used is None or used > count:
            yield "num_experts_per_tok", f"is {used}, and mistral.rs has {count} experts to choose from"
        elif settings.get("topk_method", "greedy") != "greedy":
            yield from _group_problems(settings, count)


def _group_problems(settings: Settings, count: int) -> Iterator[Wrong]:
    groups = settings["n_group"]
    if not groups or count % groups:
        yield "n_group", f"is {groups}, by which {count} experts cannot be divided"
    elif settings["topk_method"] == "noaux_tc" and count // groups < 2:
        yield "n_group", f"is {groups}, and mistral.rs compares the two best of each group"
    elif settings["topk_group"] > groups:
        yield "topk_group", f"is {settings['topk_group']}, and there are {groups} groups"


def _any_experts(settings: Settings) -> bool:
    return any(has_experts(settings, layer) for layer in range(settings["num_hidden_layers"]))
