"""The config.json of a folder as an engine applies it: its defaults, and stand-ins for values that are not checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve
from squish_convert.api import Inventory, take_inventory

from squish_core.api import ErrorCode, File, Part, SquishError, load_json

from ...config.values import COUNT, PATTERN, SCALING, SETTINGS, SHARE, SWITCH
from ..tokenizer import WHOLE
from .mlx_settings import MLX_DEFAULTS, MLX_PARTS
from .tables import FolderEngine
from .transformers_settings import TEXT, VISION, settings_of

CONFIG_FILE = "config.json"
PREFIX, EMBEDDINGS = "model.", "embed_tokens.weight"
HEAD = "lm_head.weight"
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names of one setting in Transformers."""
ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
}  # fmt: skip
"""Aliases that take precedence over the model's own names in Transformers; mlx-lm does not read them."""
_COMPUTED, _TIED, _UNTIED = {"head_dim": None}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
_OVERRIDES: Mapping[str, Any] = {"per_layer_config": None}
FIXED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mlx": {
        **dict.fromkeys(("mixtral", "granite", "qwen2", "qwen2_vl", "qwen2_5_vl", "phi3", "starcoder2"), _COMPUTED),
        **dict.fromkeys(("gpt2", "lfm2"), _COMPUTED | _TIED),
        **dict.fromkeys(("gemma2", "gemma3_text", "gemma3"), _TIED),
        **dict.fromkeys(("glm4", "gpt_oss", "deepseek_v2", "deepseek_v3"), _UNTIED),
        **dict.fromkeys(("gemma4_text", "gemma4"), _OVERRIDES),
    },
    "transformers": {**dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _COMPUTED), "gpt2": {"rope_scaling": None}},
}
"""Engine -> `model_type` -> settings that it does not read, and the value in its models (None: computed)."""
_UNFILLED = (
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "rope_parameters", "full_attn_idxs",
    "mlp_only_layers", TEXT, VISION,
)  # fmt: skip
"""Settings whose default depends on others."""
_UINT32, MOST_LAYERS = 1 << 32, 1 << 18
SCALES = (
    "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", "routed_scaling_factor",
    "query_pre_attn_scalar", "block_ffn_dim_multiplier",
)  # fmt: skip


NEEDED: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"sliding_window": 4096},
    "gpt_oss": {"sliding_window": 128},
}
"""`model_type` -> settings that Squish needs, and the values used if they are null or missing."""


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _UINT32


def _is_size_or_none(value: Any) -> bool:
    return value is None or _is_size(value)


def _is_count_or_none(value: Any) -> bool:
    return value is None or COUNT.is_legal(value)


def _is_pattern_or_none(value: Any) -> bool:
    return value is None or PATTERN.is_legal(value)


def _is_share_or_none(value: Any) -> bool:
    return value is None or SHARE.is_legal(value)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_positive_or_none(value: Any) -> bool:
    return value is None or _is_positive(value)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_layer_count(value: Any) -> bool:
    return value is None or (type(value) is int and value <= MOST_LAYERS)


STAND_INS: Mapping[str, tuple[Callable[[Any], bool], Any]] = {
    **dict.fromkeys(("rope_theta", "rope_local_base_freq"), (_is_positive, 10000.0)),
    **dict.fromkeys(("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon"), (_is_positive, 1e-06)),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), (COUNT.is_legal, 4096)),
    "original_max_position_embeddings": (_is_size, 4096),
    **dict.fromkeys(
        ("n_group", "topk_group", "num_experts_per_tok", "full_attention_interval"), (_is_count_or_none, 1)
    ),
    **dict.fromkeys(SCALES, (_is_positive, 1.0)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (_is_positive_or_none, 1.0)),
    "num_nextn_predict_layers": (_is_layer_count, 0),
    "sliding_window_pattern": (_is_pattern_or_none, None),
    "max_window_layers": (_is_size_or_none, None),
    "sliding_window": (_is_count_or_none, None),
    "partial_rotary_factor": (_is_share_or_none, None),
    "rotary_dim": (_is_count_or_none, None),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "vision_config", "audio_config"), (_is_object_or_none, None)),
}
"""Setting on which no shape depends -> whether Squish reads its value, and the stand-in for other values.

The rules for settings tell whether the engine refuses those.
"""


def effective_inventory(file: File, inventory: Inventory, engine: FolderEngine, layout: str) -> Inventory:
    """Return the inventory of a folder with the engine's defaults for the settings that config.json leaves out."""
    filled = with_defaults(file, folder_config(file), inventory.naming.model_type or "", engine.id)
    if engine.id == "transformers":
        filled = _with_prefix(filled)
    return inventory if filled is file else take_inventory(filled, layout)


def _with_prefix(file: File) -> File:
    """Return the file with `model.` before the names of a headless model, as Transformers loads it."""
    tensors = file.index.tensors
    if EMBEDDINGS not in tensors or PREFIX + EMBEDDINGS in tensors:
        return file
    renamed = {
        new: evolve(spec, name=new)
        for name, spec in tensors.items()
        for new in [name if name == HEAD or "/" in name else PREFIX + name]  # a slash: of a module behind the pooling
    }
    return File(file.source, evolve(file.index, tensors=renamed), file.registry, file.limits)


def folder_config(file: File) -> dict[str, Any]:
    """Return the config.json of a folder; empty without one."""
    if CONFIG_FILE not in file.assets:
        return {}
    return load_json(bytes(file.assets[CONFIG_FILE].raw), "file", file.limits, piece=WHOLE, constants=True)


def with_last_keys(file: File) -> File:
    """Return the file with the last of the duplicate keys in its config.json, as the engines read it."""
    try:
        folder_config(file)
    except SquishError as error:
        if error.code != ErrorCode.DUPLICATE:
            return file
    else:
        return file
    try:
        return _with_config(file, json.loads(bytes(file.assets[CONFIG_FILE].raw)))
    except (ValueError, RecursionError):  # invalid JSON after the duplicate key is an error everywhere
        return file


def _with_config(file: File, config: Mapping[str, Any]) -> File:
    data = json.dumps(config).encode()
    assets = {**file.index.assets, CONFIG_FILE: Part(dtype="u8", shape=(len(data),), data=data)}
    return File(file.source, evolve(file.index, assets=assets), file.registry, file.limits)


def with_defaults(file: File, config: Mapping[str, Any], model_type: str, engine: str) -> File:
    """Return the file with the engine's defaults for settings that config.json leaves out."""
    effective = dict(config)
    _take_aliases(effective, ALIASES.get(model_type, {}), engine)
    _stand_in(effective, FIXED.get(engine, {}).get(model_type, {}))
    if isinstance(inner := config.get(TEXT), dict):
        inner = dict(inner)
        _stand_in(inner, FIXED.get(engine, {}).get(model_type, {}))
        effective[TEXT] = engine_defaults(model_type, TEXT, engine, inner) | inner
        if engine == "mlx" and "tie_word_embeddings" in effective[TEXT]:  # mlx-lm reads only the inner one
            effective["tie_word_embeddings"] = effective[TEXT]["tie_word_embeddings"]
    else:
        effective = engine_defaults(model_type, "", engine, config) | effective
    for name, value in NEEDED.get(model_type, {}).items():
        if effective.get(name) is None:
            effective[name] = value
    return file if effective == config else _with_config(file, effective)


def _take_aliases(config: dict[str, Any], aliases: Mapping[str, str], engine: str) -> None:
    for alias, name in aliases.items():
        if alias in config:
            value = config.pop(alias)
            if engine == "transformers":
                config[name] = int(value) if isinstance(value, bool) else value


def _stand_in(config: dict[str, Any], fixed: Mapping[str, Any]) -> None:
    for name, value in fixed.items():
        config.pop(name, None)
        if value is not None:
            config[name] = value
    for name, (is_read, other) in STAND_INS.items():
        if name in config and not is_read(config[name]):
            config[name] = other
    for name in (name for name, kind in SETTINGS.items() if kind is SWITCH and config.get(name) is not None):
        config[name] = bool(config[name])
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := config.get(name), Mapping):
            config[name] = {key: _legal_rope(each) if isinstance(each, Mapping) else each for key, each in rope.items()}
            config[name] = _legal_rope(config[name])


def _legal_rope(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a rotation, without those that Squish does not read."""
    return {
        name: value
        for name, value in scaling.items()
        if name not in SCALING or value is None or SCALING[name].is_legal(value)
    }


def engine_defaults(model_type: str, part: str, engine: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's default settings for a config.json, or for a part of it, with these stated settings."""
    if engine == "mlx":
        kind = MLX_PARTS.get(model_type, model_type) if part else model_type
        return {"max_position_embeddings": 4096, **MLX_DEFAULTS.get(kind, {})}  # any length will do
    settings = settings_of(model_type, part) or {}
    excluded = {*_UNFILLED, *(EXPERT_COUNTS if any(name in stated for name in EXPERT_COUNTS) else ())}
    return {
        name: setting.default
        for name, setting in settings.items()
        if setting.default is not None and name not in excluded and not name.endswith("_token_id")
    }
