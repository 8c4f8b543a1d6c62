"""Sampling defaults: generation_config.json, and GGUF's keys `general.sampling.*`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from squish_core.api import Typed

from ..config.keys import shortest

PREFIX = "general.sampling."
KEYS = {
    "temperature": ("temp", "f32"),
    "top_k": ("top_k", "i32"),
    "top_p": ("top_p", "f32"),
    "min_p": ("min_p", "f32"),
    "repetition_penalty": ("penalty_repeat", "f32"),
    "penalty_last_n": ("penalty_last_n", "i32"),
    "xtc_probability": ("xtc_probability", "f32"),
    "xtc_threshold": ("xtc_threshold", "f32"),
    "mirostat": ("mirostat", "i32"),
    "mirostat_tau": ("mirostat_tau", "f32"),
    "mirostat_eta": ("mirostat_eta", "f32"),
    "sequence": ("sequence", "str"),
}
"""Setting of generation_config.json -> suffix of GGUF's key and its type."""
SAMPLES = {"do_sample": True}
"""Without this setting, Transformers ignores the defaults."""
SUPPRESSED, SUPPRESSED_KEY = "suppress_tokens", "tokenizer.ggml.suppress_tokens"
"""Tokens that are never generated, such as those of images, and GGUF's key for them."""


def stated_sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling defaults in a generation_config.json; values of another type, such as null, are left out."""
    name = "repetition_penalty"
    stated = {**generation, name: generation.get("penalty_repeat", generation.get(name))}  # the converter reads both
    suppressed = {SUPPRESSED: stated[SUPPRESSED]} if _are_ids(stated.get(SUPPRESSED)) else {}
    return {name: value for name in KEYS if _is_legal(value := stated.get(name), KEYS[name][1])} | suppressed


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(type(each) is int and 0 <= each < 1 << 31 for each in value)


def _is_legal(value: Any, kind: str) -> bool:
    if kind == "str":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1 << 31 and (isinstance(value, int) if kind == "i32" else math.isfinite(value))


def sampling_keys(sampling: Mapping[str, Any]) -> dict[str, Typed]:
    """Return GGUF's keys for sampling defaults.

    Examples
    --------
    >>> from squish_models.tokenizer.sampling import sampling_keys
    >>> sampling_keys({"top_k": 20})
    {'general.sampling.top_k': Typed(type='i32', value=20)}
    """
    keys = {}
    for name, value in sampling.items():
        if name == SUPPRESSED:
            keys[SUPPRESSED_KEY] = Typed("array:i32", np.array(value, np.int32))
            continue
        key, kind = KEYS[name]
        keys[f"{PREFIX}{key}"] = Typed(kind, float(np.float32(value)) if kind == "f32" else value)
    return keys


def sampling_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling defaults in GGUF's keys, under the names of generation_config.json."""
    sampling = {}
    for name, (key, kind) in KEYS.items():
        stored = metadata.get(f"{PREFIX}{key}")
        value: Any = getattr(stored, "value", stored)
        if _is_legal(value, kind):
            sampling[name] = shortest(value) if kind == "f32" else value
    stored = metadata.get(SUPPRESSED_KEY)
    if stored is not None and _are_ids(suppressed := np.asarray(getattr(stored, "value", stored)).tolist()):
        sampling[SUPPRESSED] = suppressed
    return sampling
