"""Converts a `config.json` in either spelling to the old spelling, which all engines read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import ErrorCode, FormatError

RENAMED = {"dtype": "torch_dtype", "_sliding_window_pattern": "sliding_window_pattern"}
"""Keys that transformers 5 renamed."""
QUANTIZATION = ("quantization", "quantization_config", "compression_config")
"""Keys that describe the source's quantization; the target's format declares its own."""
EXPERT_COUNTS = ("num_local_experts", "num_experts")
OTHERS = ("vision_config", "audio_config", "img_processor", "audio_processor", "vision_lora", "speech_lora")
"""Settings of parts for other modalities."""
THINKER = "thinker_config"
"""Settings of the part of a model that thinks, with its text part and towers, where another part speaks."""
TIED = "tie_word_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"
LONGROPE = "longrope"
PROPORTIONAL = "proportional"
"""A kind of rotary positions that rotates the first pairs of a head, and leaves the others where they are."""
BEHIND = "layers_behind"
"""Setting that states how many layers behind the last one a file has, which predict more tokens."""
MULTIMODAL = "mrope"
"""A kind of rotary positions that equals the default for text."""


def has_other_parts(config: Mapping[str, Any]) -> bool:
    """Return whether a config describes a multimodal model."""
    return any(key in config for key in ("text_config", THINKER, *OTHERS))


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the text part; `text_config` of a multimodal model overrides the outer settings.

    Only the outer setting decides whether embeddings are tied: Transformers ties the head of the whole model.
    """
    thinker = config.get(THINKER)
    config = {**config, **thinker} if isinstance(thinker, dict) else config
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return {key: value for key, value in config.items() if key not in OTHERS}
    outer = {key: value for key, value in config.items() if not isinstance(value, dict) and key != "architectures"}
    return {**outer, **inner, **{key: outer[key] for key in (TIED,) if key in outer}}


def old_spelling(config: Mapping[str, Any], experts: str | None, *, lists_windows: bool = False) -> dict[str, Any]:
    """Return the settings with the keys of older engines; `experts` is their key for the number of experts.

    `lists_windows`: the engines have a list of the layers with a window, so that these need no pattern.
    """
    spelled = {key: value for key, value in config.items() if key not in (*RENAMED, "rope_parameters")}
    for new, old in RENAMED.items():
        if config.get(new) is not None:
            spelled.setdefault(old, config[new])
    for other in EXPERT_COUNTS:
        if experts is not None and other != experts and other in spelled:
            spelled.setdefault(experts, spelled.pop(other))
    scaling = spelled.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == MULTIMODAL:
        spelled["rope_scaling"] = None
    _spell_rope(spelled, config.get("rope_parameters"))
    scaling = spelled.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type") == LONGROPE:  # mlx-lm and mistral.rs need `type`
        spelled["rope_scaling"] = {"type": LONGROPE, **scaling}
    if not lists_windows:
        _spell_layers(spelled, config.get("layer_types"))
    return spelled


def both_spellings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an unknown model, with the keys of older engines added in each of its parts."""
    own = {
        key: both_spellings(value) if key == "text_config" and isinstance(value, dict) else value
        for key, value in config.items()
    }
    counts = [own[name] for name in EXPERT_COUNTS if name in own]
    try:
        spelled = old_spelling(own, None)
    except FormatError:  # layer_types that no pattern expresses: engines that know the model read them
        spelled = old_spelling({key: value for key, value in own.items() if key != "layer_types"}, None)
    return {**own, **spelled, **{name: own.get(name, counts[0]) for name in EXPERT_COUNTS if counts}}


def _spell_rope(spelled: dict[str, Any], parameters: Any) -> None:
    """Spell `rope_parameters` as `rope_theta` and `rope_scaling`; local layers have their own key."""
    if not isinstance(parameters, dict):
        return
    if isinstance(parameters.get(FULL), dict):
        local = parameters.get(SLIDING)
        if isinstance(local, dict) and "rope_theta" in local:
            spelled.setdefault("rope_local_base_freq", local["rope_theta"])
        parameters = parameters[FULL]
    if "rope_theta" in parameters:  # Transformers 5 uses this one, and may leave an old default next to it
        spelled["rope_theta"] = parameters["rope_theta"]
    kept = ("partial_rotary_factor",) if parameters.get("rope_type") == PROPORTIONAL else ()
    if "partial_rotary_factor" in parameters and not kept:
        spelled.setdefault("partial_rotary_factor", parameters["partial_rotary_factor"])
    others = {"rope_theta", "partial_rotary_factor"}.difference(kept)
    scaling = {key: value for key, value in parameters.items() if key not in others}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in (None, "default", MULTIMODAL):
        spelled.setdefault("rope_scaling", None)
    elif spelled.get("rope_scaling") is None:
        spelled["rope_scaling"] = scaling


def _spell_layers(spelled: dict[str, Any], kinds: Any) -> None:
    """Spell `layer_types` as `sliding_window_pattern`; FormatError if they do not repeat in a pattern."""
    if not isinstance(kinds, list) or SLIDING not in kinds or "sliding_window_pattern" in spelled:
        return
    if FULL not in kinds:
        spelled["sliding_window_pattern"] = len(kinds) + 1
        return
    pattern = kinds.index(FULL) + 1
    expected = [FULL if number % pattern == pattern - 1 else SLIDING for number in range(len(kinds))]
    if kinds != expected:
        raise FormatError(
            "has layer_types that no sliding_window_pattern can express",
            part="config.json",
            code=ErrorCode.CONFIG,
            expected=f"every layer number {pattern} with full attention",
        )
    spelled["sliding_window_pattern"] = pattern


def all_layers(settings: Mapping[str, Any]) -> int:
    """The number of layers, with those behind the last one that predict more tokens.

    Examples
    --------
    >>> all_layers({"num_hidden_layers": 46, "layers_behind": 1})
    47
    """
    return int(settings["num_hidden_layers"]) + int(settings.get(BEHIND) or 0)
