"""Checks the values of settings that families read, whether they have GGUF keys for them or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from squish_core.api import ErrorCode, FormatError

from .keys import MAX_F32
from .spelling import FULL, SLIDING

CONFIG = "config.json"
MOST = (1 << 32) - 1


@frozen
class Kind:
    """A kind of values: a test, and what it expects. `null` says nothing in any of them."""

    expected: str
    is_legal: Callable[[Any], bool]
    code: str = ErrorCode.CONFIG


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_F32


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_is_size, value))


OBJECT = Kind("an object", lambda value: isinstance(value, dict))
SIZE = Kind(f"an integer from 0 to {MOST}", _is_size)
COUNT = Kind(f"an integer from 1 to {MOST}", lambda value: _is_size(value) and value > 0)
SHARE = Kind("a number above 0, at most 1", lambda value: _is_number(value) and 0 < value <= 1)
LENGTH = Kind(
    COUNT.expected, lambda value: _is_number(value) and 1 <= value <= MOST and value == int(value), ErrorCode.ROPE
)
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value > 0, ErrorCode.ROPE)
NUMBER = Kind("a number, at least 0", lambda value: _is_number(value) and value >= 0, ErrorCode.ROPE)
BASE = Kind("a positive f32", POSITIVE.is_legal)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
KINDS = Kind("a list of texts", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value))
PATTERN = Kind("a number of layers", lambda value: isinstance(value, (str, list)) or _is_size(value))
SIZES = Kind("a list of sizes", _are_sizes, ErrorCode.ROPE)

SIZE_OF_ALL = Kind(f"{SIZE.expected}, or a list of such", lambda value: _is_size(value) or _are_sizes(value))
TEXT = Kind("a text", lambda value: isinstance(value, str))

PARTS = {
    **dict.fromkeys(("text_config", "vision_config", "audio_config", "rope_parameters"), OBJECT),
    "tie_word_embeddings": SWITCH,
}  # fmt: skip
SETTINGS = {
    "rope_scaling": OBJECT, "rope_theta": BASE, "layer_types": KINDS, "partial_rotary_factor": SHARE,
    "sliding_window": SIZE, "sliding_window_pattern": PATTERN,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "full_attention_interval", "rotary_dim"), COUNT),
    **dict.fromkeys(("n_group", "topk_group", "type_vocab_size"), COUNT),
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"), SIZE),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), SIZE),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), SIZE_OF_ALL),
    "position_embedding_type": TEXT,
    "num_nextn_predict_layers": SIZE,
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "conv_bias", "use_expert_bias", "use_qk_norm"), SWITCH),
    **dict.fromkeys(("norm_topk_prob", "use_sliding_window", "block_auto_adjust_ff_dim"), SWITCH),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "vocab_size"), SIZE),
}  # fmt: skip
SCALING = {
    "mrope_section": SIZES, "original_max_position_embeddings": LENGTH,
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "attention_factor"), POSITIVE),
    **dict.fromkeys(("beta_fast", "beta_slow", "alpha", "rope_theta"), POSITIVE),
    **dict.fromkeys(("mscale", "mscale_all_dim", "llama_4_scaling_beta"), NUMBER),
}  # fmt: skip
"""Settings within `rope_scaling` or `rope_parameters`."""


def check_parts(config: Mapping[str, Any]) -> None:
    """Raise FormatError for a part of a config.json that is no object, or states the rotation in no usable way."""
    for place, settings in (("", config), ("text_config ", config.get("text_config"))):
        if settings is None:
            continue
        _check(PARTS, settings if isinstance(settings, Mapping) else {"text_config": settings}, CONFIG)
        for name in ("rope_parameters", "rope_scaling"):
            rope = settings.get(name)
            if isinstance(rope, Mapping):
                _check(dict.fromkeys((FULL, SLIDING), OBJECT), rope, f"{CONFIG} {place}{name}")
                kinds = {key: each for key, each in rope.items() if isinstance(each, Mapping)}
                for kind, each in {"": rope, **kinds}.items():
                    _check(SCALING, each, " ".join(filter(None, (f"{CONFIG} {place}{name}", kind))))


def check_spellings(config: Mapping[str, Any], spellings: Mapping[str, Sequence[str]]) -> None:
    """Raise FormatError for such a setting under one of its other names; `spellings` has the names of each setting."""
    _check({other: SETTINGS[name] for name in spellings.keys() & SETTINGS for other in spellings[name]}, config, CONFIG)


def check_values(settings: Mapping[str, Any], own_names: Mapping[str, str]) -> None:
    """Raise FormatError for a setting with a value of the wrong type, or that no model has."""
    stated = {own_names.get(name, name): kind for name, kind in SETTINGS.items()}
    _check(stated, settings, CONFIG)
    if settings.get("use_sliding_window") is not False:  # Transformers writes 0 for a window that is not used
        _check({"sliding_window": COUNT}, settings, CONFIG)
    kinds, count = settings.get("layer_types"), settings.get("num_hidden_layers")
    if kinds is not None and count is not None and len(kinds) != count:
        raise FormatError(
            "does not give a kind for each layer",
            part=f"{CONFIG} layer_types",
            code=ErrorCode.CONFIG,
            expected=f"{count} (num_hidden_layers)",
            found=len(kinds),
        )


def _check(kinds: Mapping[str, Kind], settings: Mapping[str, Any], place: str) -> None:
    for name, kind in kinds.items():
        value = settings.get(name)
        if value is not None and not kind.is_legal(value):
            raise FormatError(
                "has the wrong type or value",
                part=f"{place} {name}",
                code=kind.code,
                expected=kind.expected,
                found=f"{type(value).__name__} {str(value)[:40]}",
            )
