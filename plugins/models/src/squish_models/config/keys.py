"""A table of settings and their GGUF keys. f32 values are read as their shortest decimals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from attrs import frozen

from squish_core.api import ErrorCode, FormatError, Typed

from .gguf_defaults import REQUIRED, LoadedKeys

SIZES_LIST = "array:i32"
"""Type of a setting with several sizes."""
SWITCHES_LIST = "array:bool"
"""Type of a setting that is on or off in each layer."""
MOST_LAYERS = 1 << 18
TEXT = "str"
"""Type of a setting with a text."""
TEXTS_LIST = "array:str"
"""Type of a setting with several texts."""
NUMBERS_LIST = "array:f32"
"""Type of a setting with several numbers."""
LAYER_SIZES = "sizes"
"""Type of a setting with a size for each layer, or one for all."""
LISTS = (SIZES_LIST, SWITCHES_LIST, NUMBERS_LIST, TEXTS_LIST)
MAX_F32 = float(np.finfo(np.float32).max)


@frozen
class Key:
    """A setting of `config.json` and its GGUF key, without the architecture that precedes it."""

    hf: str
    gguf: str
    type: str = "u32"
    required: bool = True


SIZES = (
    Key("max_position_embeddings", "context_length"),
    Key("hidden_size", "embedding_length"),
    Key("num_hidden_layers", "block_count"),
    Key("intermediate_size", "feed_forward_length"),
    Key("num_attention_heads", "attention.head_count"),
    Key("num_key_value_heads", "attention.head_count_kv", required=False),
    Key("head_dim", "attention.key_length", required=False),
    Key("head_dim", "attention.value_length", required=False),
    Key("rotary_dim", "rope.dimension_count", required=False),
    Key("rope_theta", "rope.freq_base", "f32", required=False),
    Key("is_causal", "attention.causal", "bool", required=False),
)
"""Settings of every family. `rotary_dim` is head_dim times `partial_rotary_factor`."""
COMMON = (*SIZES, Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", "f32"))
"""Settings of every family with RMS norms."""
VOCABULARY = Key("vocab_size", "vocab_size", required=False)
MIXTURE = {
    count: (Key(count, "expert_count"), Key("num_experts_per_tok", "expert_used_count"))
    for count in ("num_local_experts", "num_experts")
}
"""Settings of mixtures of experts, by the config's name for the number of experts."""


def shortest(value: float) -> float:
    """Return the shortest decimal that gives the same f32.

    >>> shortest(9.999999747378752e-06)
    1e-05
    """
    return float(str(np.float32(value)))


def gguf_keys(keys: Iterable[Key], architecture: str, settings: Mapping[str, Any]) -> dict[str, Typed]:
    """Return the GGUF keys for settings; settings without a value are omitted."""
    entries = {}
    for key in keys:
        value = settings.get(key.hf)
        if value is not None:
            name = f"{architecture}.{key.gguf}"
            entries[name] = Typed(_stored_type(key, value), _stored(key, name, value))
    return entries


def _stored_type(key: Key, value: Any) -> str:
    return (SIZES_LIST if isinstance(value, list) else "u32") if key.type == LAYER_SIZES else key.type


def settings_of(keys: Iterable[Key], architecture: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in GGUF keys, with llama.cpp's defaults for absent ones.

    FormatError if a key is missing, has the wrong type, or contradicts another.
    """
    loaded = LoadedKeys(architecture, meta)
    settings: dict[str, Any] = {}
    for key in sorted(keys, key=lambda key: not loaded.states(key.gguf)):  # keys in the file come first
        name, value = f"{architecture}.{key.gguf}", loaded[key.gguf]
        if value is REQUIRED or (value is None and key.required):
            raise FormatError("is missing, and the model cannot be run without it", part=name, code=ErrorCode.CONFIG)
        if value is None or (not key.required and (loaded.is_disabled(key.gguf) or _is_unstated(loaded, key))):
            continue
        if key.type == SWITCHES_LIST:
            value = _switches(value, loaded["block_count"])
        elif key.type in LISTS:
            value = [value] if isinstance(value, int) else value
        else:
            value = _single(value)
        _check(key, name, value)
        value = _read(key, value)
        if settings.setdefault(key.hf, value) != value and loaded.states(key.gguf):
            raise FormatError(
                "contradicts another key",
                part=name,
                expected=settings[key.hf],
                found=value,
                code=ErrorCode.CONTRADICTION,
            )
    return settings


def _switches(value: Any, layers: Any) -> Any:
    """Return what a pattern says of each layer: with a number n, every n-th one is off."""
    if type(value) is int and type(layers) is int and layers <= MOST_LAYERS:
        return [value == 0 or layer % value < value - 1 for layer in range(layers)]
    stored = _sizes(value)
    return value if stored is None else [bool(each) if each in (0, 1) else each for each in stored]


def _is_unstated(loaded: LoadedKeys, key: Key) -> bool:
    """Return whether a switch is absent, so that config.json need not state it either."""
    return key.type == "bool" and not loaded.states(key.gguf)


def _single(value: Any) -> Any:
    """Return the number that an array repeats for every layer; any other value unchanged."""
    numbers = _sizes(value) or ()
    return numbers[0] if numbers and all(number == numbers[0] for number in numbers) else value


def check_settings(keys: Iterable[Key], settings: Mapping[str, Any], file: str) -> None:
    """Raise FormatError for a setting that is missing or has the wrong type."""
    for key in keys:
        value = settings.get(key.hf)
        if value is None and key.required:
            raise FormatError(
                f"has no {key.hf}, and the model cannot be run without it", part=file, code=ErrorCode.CONFIG
            )
        if value is not None:
            _check(key, f"{file} {key.hf}", value)


def _check(key: Key, place: str, value: Any) -> None:
    if key.type not in _TYPES:
        return
    is_legal, message, expected = _TYPES[key.type]
    if not is_legal(value):
        found = f"{type(value).__name__} {str(value)[:60]}"
        raise FormatError(message, part=place, expected=expected, found=found, code=ErrorCode.CONFIG)


def _read(key: Key, value: Any) -> Any:
    if key.type == NUMBERS_LIST:
        return [shortest(number) for number in _sizes(value) or ()]
    if key.type == SWITCHES_LIST:
        return [*map(bool, _sizes(value) or ())]
    if key.type == TEXTS_LIST:
        return list(value)
    if key.type == TEXT:
        return value
    if key.type in LISTS or (key.type == LAYER_SIZES and not isinstance(value, int)):
        return _sizes(value)
    if key.type == "bool":
        return bool(value)
    return shortest(value) if key.type == "f32" else int(value)


def _stored(key: Key, name: str, value: Any) -> Any:
    _check(key, name, value)
    if key.type in (TEXT, TEXTS_LIST):
        return value if key.type == TEXT else list(value)
    if stored := _ARRAYS.get(_stored_type(key, value)):
        return np.array(value, stored)
    if key.type == "bool":
        return bool(value)
    return float(np.float32(value)) if key.type == "f32" else int(value)


def _sizes(value: Any) -> list[Any] | None:
    """Return the sizes in a list or an array; None for anything else."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return None
    return [each.item() if isinstance(each, np.generic) else each for each in value]


def _are_sizes(value: Any) -> bool:
    sizes = _sizes(value)
    return sizes is not None and all(type(size) is int and 0 <= size < 1 << 31 for size in sizes)


def _are_switches(value: Any) -> bool:
    switches = _sizes(value)
    return switches is not None and all(type(each) in (bool, int) and each in (0, 1) for each in switches)


def _are_texts(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and all(isinstance(each, str) for each in value)


def _are_numbers(value: Any) -> bool:
    numbers = _sizes(value)
    return numbers is not None and all(type(each) in (int, float) and each == each for each in numbers)


def _is_u32(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _is_positive_f32(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_F32


_ARRAYS = {SIZES_LIST: np.int32, SWITCHES_LIST: np.bool_, NUMBERS_LIST: np.float32}
_TYPES = {
    TEXT: (lambda value: isinstance(value, str), "is not a text", "a text"),
    TEXTS_LIST: (_are_texts, "are not texts", "texts"),
    NUMBERS_LIST: (_are_numbers, "are not numbers", "numbers"),
    LAYER_SIZES: (lambda value: _is_u32(value) or _are_sizes(value), "is not a size", "an integer, or one a layer"),
    SIZES_LIST: (_are_sizes, "are not sizes", "integers"),
    SWITCHES_LIST: (_are_switches, "are not switches", "true or false for each layer"),
    "bool": (lambda value: isinstance(value, (bool, np.bool_)), "is neither true nor false", "a bool"),
    "u32": (_is_u32, "is not a size", "an integer from 0 to 4294967295"),
    "f32": (_is_positive_f32, "is not a positive number", "a positive f32"),
}
"""Type of a key -> test of a value, and message and expected value of its error."""
