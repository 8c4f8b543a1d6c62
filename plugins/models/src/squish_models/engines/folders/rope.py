"""RoPE settings as engines apply them. mlx-lm's tokenizers read them with Transformers first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

NUMBERS = (
    "factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
    "mscale", "mscale_all_dim", "attention_factor",
)  # fmt: skip
NULLABLE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
"""Numbers that Transformers computes if they are null."""
DIVISORS = {"llama3": ("low_freq_factor", "high_freq_factor")}
"""Kind of scaling -> numbers by which the engines divide."""
UNROTATED = ("gpt2",)
LATENT = ("deepseek_v2", "deepseek_v3")
"""Model types that scale attention by the factor; the first one states its head size elsewhere."""
PHI, PHI_KINDS = "phi3", ("default", "longrope", "su", "yarn")
"""A model type with its own kinds of scaling, and the kinds."""
NESTED = ("gemma3_text", "gemma3", "gemma4_text", "gemma4")
"""Model types with settings for each kind of layer, which Transformers copies from any value that is not null."""
SCALED = (
    "llama", "mistral", "qwen2", "qwen2_vl", "qwen2_5_vl", "qwen3", "olmo2", "granite", "deepseek_v2", "deepseek_v3",
    "gpt_oss", "gemma3_text", "gemma3",
)  # fmt: skip
"""Model types whose scaling mlx-lm reads; for those of KINDLESS it ignores the kind, and requires a scaling."""
KINDLESS = ("deepseek_v2",)
SECTIONED, SECTIONS = ("qwen2_vl", "qwen2_5_vl"), [16, 24, 24]
"""Model types that divide a head into sections, and the sections if config.json states none."""
BY_LAYER = ("step3p5",)
"""Model types whose base may be a list with one for each layer."""
Found = Iterator[tuple[str, str]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def rope_problems(config: Mapping[str, Any], model_type: str, engine: str, title: str) -> Found:
    """Yield the RoPE settings that an engine refuses, and what is wrong with them."""
    parameters = config.get("rope_parameters")
    if "rope_theta" in config and config["rope_theta"] is None and not (parameters and "rope_theta" in parameters):
        yield "rope_theta", f"is null, which {title} cannot compute with"
    for name in ("rope_theta", "rope_local_base_freq"):
        value = config.get(name)
        is_list = model_type in BY_LAYER and isinstance(value, list) and all(map(_is_number, value))
        if model_type not in UNROTATED and value is not None and not (is_list or _is_number(value)):
            yield name, f"is {json.dumps(config[name])[:40]}, not a number"
    head: Any = config.get("head_dim")
    if model_type not in UNROTATED and head is not None:
        share = config.get("partial_rotary_factor", 1.0)
        if not _is_number(head):
            yield "head_dim", f"is {json.dumps(head)[:40]}, not a number"
        elif model_type != LATENT[0] and head > 4 and head % 2 and _is_number(share) and int(head * share) == head:
            yield "head_dim", f"is {head}, and {title} rotates pairs"
    if engine == "transformers" and model_type in SECTIONED:
        yield from _section_problems(config, title)
    yield from _absence_problems(config.get("rope_scaling"), "rope_scaling" in config, model_type, engine, title)
    for name in ("rope_scaling", "rope_parameters"):
        scaling = config.get(name)
        if scaling and not isinstance(scaling, Mapping):
            yield name, f"is {json.dumps(scaling)[:40]}, not an object"
        elif scaling and (model_type not in UNROTATED or engine == "mlx"):
            yield from _scaling_problems(config, scaling, name, model_type, engine, title)


def _section_problems(config: Mapping[str, Any], title: str) -> Found:
    """Yield sections for text, height and width that do not fill the pairs of a head."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    section: Any = scaling.get("mrope_section", SECTIONS) if isinstance(scaling, Mapping) else SECTIONS
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not (type(hidden) is int and type(heads) is int and heads > 0 and isinstance(section, list)):
        return
    if all(type(each) is int for each in section) and sum(section) != hidden // heads // 2:
        yield "rope_parameters.mrope_section", f"is {section}, and {title} has {hidden // heads // 2} pairs in a head"


def _absence_problems(scaling: Any, is_stated: bool, model_type: str, engine: str, title: str) -> Found:
    """Yield a missing scaling, or an empty value that is neither null nor an object."""
    if engine == "mlx" and model_type in KINDLESS and scaling is None:
        yield "rope_scaling", f"is missing, and {title} does not load without it"
    is_empty = is_stated and scaling is not None and not scaling and not isinstance(scaling, Mapping)
    if is_empty and (model_type in NESTED or (engine == "mlx" and model_type in SCALED)):
        yield "rope_scaling", f"is {json.dumps(scaling)}, which {title} takes for an object"


def _scaling_problems(
    config: Mapping[str, Any], scaling: Mapping[str, Any], name: str, model_type: str, engine: str, title: str
) -> Found:
    key = "rope_type" if "rope_type" in scaling else "type"
    kind = scaling.get(key)
    is_read = engine != "mlx" or (model_type in SCALED and model_type not in KINDLESS)
    if (
        key in scaling
        and (not kind or (model_type == PHI and kind not in PHI_KINDS))
        and (is_read or model_type == PHI)
    ):
        yield f"{name}.{key}", f"is {json.dumps(kind)[:40]}, which {title} does not know for {model_type}"
    if kind == "longrope":
        yield from _factor_problems(config, scaling, name, title)
        return
    if kind == "dynamic" and not config.get("max_position_embeddings", 1):
        yield "max_position_embeddings", f"is nothing, by which {title} divides for dynamic"
    base = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    if kind == "yarn" and _is_number(base) and (base <= 0 or base == 1):
        yield "rope_theta", f"is {base}, by whose logarithm {title} divides for yarn"
    for divisor in DIVISORS.get(str(kind), ()):
        if scaling.get(divisor) == 0:
            yield f"{name}.{divisor}", f"is 0, by which {title} divides"
    nullable: tuple[str, ...] = ("attention_factor",)
    if engine != "mlx":
        nullable = (*NULLABLE, *(("factor",) if kind == "yarn" and model_type not in LATENT else ()))
    yield from _number_problems(scaling, name, str(kind), nullable, engine, title)


def _number_problems(
    scaling: Mapping[str, Any], name: str, kind: str, nullable: tuple[str, ...], engine: str, title: str
) -> Found:
    for key in NUMBERS:
        value = scaling.get(key, 1)
        if value is None and key in nullable:
            continue
        is_beta, is_length = key.startswith("beta_"), key == "original_max_position_embeddings" and kind == "yarn"
        if not _is_number(value):
            yield f"{name}.{key}", f"is {json.dumps(value)[:40]}, not a number"
        elif (is_length and value <= 0) or (is_beta and (value < 0 or (value == 0 and engine == "mlx"))):
            yield f"{name}.{key}", f"is {value}, whose logarithm {title} takes"


def _factor_problems(config: Mapping[str, Any], scaling: Mapping[str, Any], name: str, title: str) -> Found:
    """Yield lists of factors whose length is not half of the rotated part of a head."""
    sizes: list[Any] = [config.get(each) for each in ("hidden_size", "num_attention_heads")]
    if not all(type(size) is int and size > 0 for size in sizes):
        return
    head = config.get("head_dim") or sizes[0] // sizes[1]
    share = config.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))
    if not _is_number(share) or type(head) is not int:
        return
    count = int(head * share) // 2
    for key in ("long_factor", "short_factor"):
        factors = scaling.get(key)
        if key in scaling and not isinstance(factors, list):
            yield f"{name}.{key}", f"is {json.dumps(factors)[:40]}, not a list of factors"
        elif isinstance(factors, list) and len(factors) != count:
            yield f"{name}.{key}", f"has {len(factors)} factors; {title} expects {count}"
