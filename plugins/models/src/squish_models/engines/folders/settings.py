"""Settings of a config.json as engines apply them: they refuse values of other types, and fill absent ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from squish_core.api import Problem

from .effective import CONFIG_FILE, engine_defaults
from .experts import expert_problems
from .rope import LATENT, rope_problems
from .tables import FolderEngine
from .transformers_settings import TEXT, VISION, Setting, settings_of

LAYER_TYPES = (
    "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
    "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
    "hybrid_sliding", "reference_sliding_attention", "linear_attention",
)  # fmt: skip
DTYPES = (
    "float32", "float16", "bfloat16", "float64", "float", "half", "double", "auto", "torch.float32", "torch.float16",
    "torch.bfloat16", "torch.float64",
)  # fmt: skip
ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu",
    "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu",
)  # fmt: skip
EPSILONS = ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
BOUNDED = ("llama",)
"""Model types whose `initializer_range` Transformers checks."""
METHODS = ("greedy", "group_limited_greedy")
WINDOWED = ("gemma2", "gemma3_text", "gemma3", "gpt_oss")
MAY_BE_WINDOWED, OWN_CACHE = ("phi3", "mistral", "mixtral", "starcoder2"), "lfm2"
_TOKENS = ("pad_token_id",)
"""Ids that Transformers looks up in the embeddings when it builds the model."""


def json_type(value: Any) -> str:
    """Return the type of a JSON value, as Python names it."""
    return "null" if value is None else type(value).__name__


def fits(value: Any, types: tuple[str, ...]) -> bool:
    """Return whether a value has one of the types; for a list, the types of its items count."""
    if "any" in types:
        return True
    if isinstance(value, list):
        items = [each.removeprefix("list[").removesuffix("]") for each in types if each.startswith("list[")]
        return any(each == "list" for each in types) or any(
            all(json_type(item) == each for item in value) for each in items
        )
    return json_type(value) in types


def type_problems(config: Mapping[str, Any], model_type: str, engine: FolderEngine) -> Iterator[Problem]:
    """Find the settings that Transformers refuses, whatever the tensors are, in each part of a config.json."""
    title = engine.title
    for place in ("", TEXT, VISION):
        settings = settings_of(model_type, place)
        values = config.get(place) if place else config
        if settings is None or not isinstance(values, Mapping):
            continue
        for name, value in values.items():
            setting = settings.get(name)
            if setting is not None and not fits(value, setting.types):
                message = f"is {json.dumps(value)[:60]}, which {title} refuses: it must be {_listed(setting.types)}"
                yield _refused(f"{place}.{name}" if place else name, message)
        yield from _layer_problems(values, settings, title)
        for name in ("dtype", "torch_dtype"):
            value = values.get(name)
            if isinstance(value, list) or (engine.id != "mlx" and isinstance(value, str) and value not in DTYPES):
                where = f"{place}.{name}" if place else name
                yield _refused(where, f"is {json.dumps(value)[:40]}, which {title} does not know")
    part = config.get(TEXT)
    text: Mapping[str, Any] = part if isinstance(part, Mapping) else config
    for name, message in rope_problems(text, model_type, engine.id, title):
        yield _refused(name, message)
    yield from _number_problems(text, model_type, engine)
    effective = engine_defaults(model_type, TEXT if text is part else "", engine.id, text) | dict(text)
    for name, message in expert_problems(effective, model_type, engine.id, title):
        yield _refused(name, message)
    if engine.id == "mlx":
        yield from _mlx_problems(config, text, model_type)
    else:
        yield from _transformers_problems(config, text, model_type, title)


def _refused(name: str, message: str) -> Problem:
    return Problem(code="engine-setting", severity="error", where=f"{CONFIG_FILE} {name}", message=message)


def _layer_problems(values: Mapping[str, Any], settings: Mapping[str, Setting], title: str) -> Iterator[Problem]:
    kinds = values.get("layer_types")
    if "layer_types" not in settings or not isinstance(kinds, list):
        return
    layers = values.get("num_hidden_layers", settings["num_hidden_layers"].default)
    if len(kinds) != layers:
        yield _refused("layer_types", f"are {len(kinds)}, which {title} refuses beside num_hidden_layers {layers}")
    elif unknown := [kind for kind in kinds if kind not in LAYER_TYPES]:
        yield _refused("layer_types", f"have {str(unknown[0])[:40]!r}, which {title} does not know")


def _number_problems(config: Mapping[str, Any], model_type: str, engine: FolderEngine) -> Iterator[Problem]:
    """Yield numbers outside the range that an engine can compute with."""
    title = engine.title
    spread = config.get("initializer_range", 0)
    if model_type in BOUNDED and fits(spread, ("int", "float")) and not 0 <= spread <= 1:
        yield _refused("initializer_range", f"is {spread}, which {title} refuses: it must be from 0 to 1")
    scalar: Any = config.get("query_pre_attn_scalar")
    if fits(scalar, ("int", "float")) and scalar <= 0:
        yield _refused("query_pre_attn_scalar", f"is {scalar}, whose root {title} takes")
    factor: Any = config.get("block_ffn_dim_multiplier")
    if model_type == "lfm2" and fits(factor, ("int", "float")) and factor <= 0:
        yield _refused("block_ffn_dim_multiplier", f"is {factor}, by which {title} multiplies a size")
    share: Any = config.get("partial_rotary_factor")
    if fits(share, ("int", "float")) and share > 1:
        yield _refused("partial_rotary_factor", f"is {share}, and {title} rotates no more than a head")


def _transformers_problems(
    config: Mapping[str, Any], text: Mapping[str, Any], model_type: str, title: str
) -> Iterator[Problem]:
    """Yield what only Transformers refuses."""
    settings = settings_of(model_type, TEXT if TEXT in config else "") or {}
    defaults = {name: setting.default for name, setting in settings.items()}
    yield from _token_problems(defaults | dict(text), title)
    yield from _cache_problems(defaults, text, model_type, title)
    method = text.get("topk_method", METHODS[0])
    if model_type == "deepseek_v2" and method not in METHODS:
        yield _refused("topk_method", f"is {json.dumps(method)[:40]}, which {title} does not know")
    for name in ("hidden_act", "hidden_activation", "activation_function"):
        if isinstance(text.get(name), str) and text[name] not in ACTIVATIONS:
            yield _refused(name, f"is {text[name][:40]!r}, which {title} does not know")
    quantization = config.get("quantization_config")
    if (
        isinstance(quantization, Mapping)
        and (quantization or TEXT not in config)
        and "quant_method" not in quantization
        and not {"load_in_4bit", "load_in_8bit"} & quantization.keys()
    ):
        yield _refused("quantization_config", f"has no quant_method, and {title} does not load without it")


def _cache_problems(
    defaults: Mapping[str, Any], text: Mapping[str, Any], model_type: str, title: str
) -> Iterator[Problem]:
    """Yield problems with attention and its cache, which Transformers builds before the first token."""
    effective = {**defaults, **text}
    window: Any = text.get("sliding_window")
    if window is not None and not (type(window) is int or "sliding_window" in defaults or model_type == OWN_CACHE):
        yield _refused("sliding_window", f"is {json.dumps(window)[:40]}, not a number")
    if model_type in MAY_BE_WINDOWED and type(window) is int and window <= 0:
        yield _refused("sliding_window", f"is {window}, and {title} looks back at least one token")
    if model_type in WINDOWED and not (
        type(effective.get("sliding_window")) is int and effective["sliding_window"] > 0
    ):
        yield _refused(
            "sliding_window", f"is {json.dumps(effective.get('sliding_window'))[:40]}, and {title} has layers with it"
        )
    if model_type in LATENT:
        heads, groups = (text.get(name, defaults[name]) for name in ("num_attention_heads", "num_key_value_heads"))
        if type(heads) is int and type(groups) is int and (groups == 0 or heads // groups != 1):
            yield _refused("num_key_value_heads", f"is {groups}, and {title} expects {heads}")
    head: Any = text.get("head_dim")
    if model_type == "deepseek_v3" and type(head) is int and head not in (0, effective.get("qk_rope_head_dim")):
        yield _refused(
            "head_dim", f"is {head}, and {title} rotates qk_rope_head_dim {effective.get('qk_rope_head_dim')}"
        )
    if isinstance(text.get("model_type"), list | dict):
        yield _refused(f"{TEXT}.model_type", f"is {json.dumps(text['model_type'])[:40]}, not a text")


def _mlx_problems(config: Mapping[str, Any], text: Mapping[str, Any], model_type: str) -> Iterator[Problem]:
    """Yield what only mlx-lm refuses."""
    if config.get("model_file") is not None:
        yield _refused("model_file", "names code of the model, which mlx-lm does not run unless it is trusted")
    if TEXT in config and not isinstance(config[TEXT], Mapping):
        yield _refused(TEXT, "is not an object, as mlx-lm expects")
    elif model_type == "gemma3" and TEXT not in config:
        yield _refused(TEXT, "is missing, and mlx-lm does not load without it")
    quantization = config.get("quantization_config")
    has_method = isinstance(quantization, Mapping) and "quant_method" in quantization
    if config.get("quantization") is None and quantization and not has_method:
        yield _refused("quantization_config", "has no quant_method, and mlx-lm does not load without it")
    if (
        model_type == "qwen3"
        and text.get("rope_theta") is None
        and not (text.get("rope_parameters") or {}).get("rope_theta")
    ):
        yield _refused("rope_theta", "is missing, and mlx-lm does not load without it")
    pattern = text.get("sliding_window_pattern", 1)
    if model_type.startswith("gemma3") and (type(pattern) is not int or not pattern):
        yield _refused("sliding_window_pattern", f"is {json.dumps(pattern)[:40]}, which mlx-lm cannot compute with")
    share: Any = text.get("partial_rotary_factor")
    if fits(share, ("int", "float")) and share <= 0:
        yield _refused("partial_rotary_factor", f"is {share}, and mlx-lm rotates something")
    if model_type == "lfm2" and text.get("block_dim") != text.get("hidden_size"):
        yield _refused("block_dim", f"is {json.dumps(text.get('block_dim'))[:40]}, and mlx-lm expects hidden_size")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if model_type == "gemma2" and name in text and text[name] is None:
            yield _refused(name, "is null, and mlx-lm computes with it")
    if model_type.startswith("gemma3") and text.get("rope_local_base_freq", 1) is None:
        yield _refused("rope_local_base_freq", "is null, and mlx-lm does not load without it")
    if not fits(config.get("architectures"), ("null", "list", "str", "dict")):
        yield _refused("architectures", "are not a list")
    for name in () if model_type.startswith("gemma") else EPSILONS:
        if isinstance(text.get(name), int | float) and text[name] <= 0:
            yield _refused(name, f"is {text[name]}, which mlx-lm refuses: it must be positive")


def _listed(types: tuple[str, ...]) -> str:
    return " or ".join(sorted(types))


def _token_problems(config: Mapping[str, Any], title: str) -> Iterator[Problem]:
    size = config.get("vocab_size")
    for name in _TOKENS:
        number = config.get(name)
        if type(size) is int and type(number) is int and not -size <= number < size:
            yield Problem(
                code="engine-setting",
                severity="error",
                where=f"{CONFIG_FILE} {name}",
                message=f"is {number}, for which {title} has no embedding: there are {size}",
            )
