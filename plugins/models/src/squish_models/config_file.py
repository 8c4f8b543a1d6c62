"""Converts between config.json and GGUF's keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError, SquishError, Typed

from .config.keys import gguf_keys
from .config.rope import gguf_rope
from .config.spelling import BEHIND, QUANTIZATION, all_layers, has_other_parts
from .keep import same_value
from .settings import CONFIG, INEXPRESSIBLE, LEFT_OUT, TextSettings
from .tokenizer import SpecialTokens

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
OUTPUT = "output.weight"
OF_FILES = (INEXPRESSIBLE, LEFT_OUT)
"""Settings that say something about a file, not about its model."""
STORAGE = {"general.file_type": 0, "general.quantization_version": 2}
"""Keys that describe the stored types of tensors; the writer corrects them."""


def config_keys(family: TextSettings, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return GGUF's keys and tensors for settings."""
    scaling, constants = gguf_rope(settings, family.architecture)
    if lost := [name for name in constants if name not in family.constants]:
        raise FormatError(
            "has a rope_scaling that llama.cpp does not apply to this family",
            part=CONFIG,
            code=ErrorCode.ROPE,
            expected=f"none that needs {lost[0]}",
            found=str(settings["rope_scaling"])[:60],
        )
    whole = {**settings, "num_hidden_layers": all_layers(settings)}
    behind = {"nextn_predict_layers": settings[BEHIND]} if settings.get(BEHIND) else {}
    keys = {
        "general.architecture": Typed("str", family.architecture), "general.type": Typed("str", "model"),
        **gguf_keys(family.keys, family.architecture, whole), **scaling,
        **{f"{family.architecture}.{key}": Typed("u32", value) for key, value in behind.items()},
        **{key: Typed("u32", value) for key, value in STORAGE.items()},
    }  # fmt: skip
    return keys, constants


def written_config(
    family: TextSettings, settings: Mapping[str, Any], special_tokens: SpecialTokens | None
) -> dict[str, Any]:
    """Return config.json for the settings of a GGUF."""
    config = {key: value for key, value in settings.items() if key not in (*family.derived, *OF_FILES)}
    if special_tokens is not None:
        roles = ("bos", "eos", "pad") if family.generates else ("pad",)
        special = {f"{role}_token_id": special_tokens.special.get(role) for role in roles}
        config |= {key: number for key, number in special.items() if number is not None}
        if len(special_tokens.end_ids) > 1 and family.generates:
            config["eos_token_id"] = list(special_tokens.end_ids)
    return config


def respelled(family: TextSettings, data: bytes, settings: Mapping[str, Any]) -> bytes:
    """Return a config.json in the old spelling, with the keys that engines need; unchanged if it already is."""
    config = json.loads(data)
    spelled = {
        key: value for key, value in family.spelled(config).items() if key not in (*QUANTIZATION, *family.derived)
    }
    if has_other_parts(config) or config.get("model_type") == family.mlx_type:
        spelled |= {"model_type": family.model_type, "architectures": [family.class_name]}
    spelled["tie_word_embeddings"] = settings["tie_word_embeddings"]
    for key in family.layer_counts:  # mistral.rs needs them even without a sliding window
        spelled.setdefault(key, settings["num_hidden_layers"])
        spelled.setdefault("use_sliding_window", False)
    return data if spelled == config else dump_json(spelled)


def vector_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that a config declares for dense tensors."""
    stated = config.get("torch_dtype", config.get("dtype"))
    return next((dtype for dtype, name in DTYPES.items() if name == stated), None)


def with_null_dtype(config: bytes) -> bytes:
    """Return a config with a dtype of null: Hugging Face's formats fill it in, other containers store the null."""
    return dump_json({**json.loads(config), "torch_dtype": None})


def dump_json(config: Mapping[str, Any]) -> bytes:
    """Encode JSON as Transformers does."""
    return (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode()


def undeclared(config: bytes) -> bytes:
    """Return a stored config without its declaration of quantization; the target's format declares its own."""
    stated = json.loads(config)
    if not any(key in stated for key in QUANTIZATION):
        return config
    return dump_json({key: value for key, value in stated.items() if key not in QUANTIZATION})


def config_agrees(family: TextSettings, model: Model, config: bytes) -> bool:
    """Return whether a config agrees with the keys."""
    head = {"lm_head.weight": model.tensors[OUTPUT]} if OUTPUT in model.tensors else {}
    try:
        before = family.settings(evolve(model, layout="hf", assets={CONFIG: config}, tensors={**model.tensors, **head}))
        keys, _ = config_keys(family, before)
    except SquishError:
        return False
    stated = [key for key in keys if key.startswith(f"{family.architecture}.") and key in model.meta]
    agrees = all(same_value(model.meta[key], keys[key]) for key in stated)
    return agrees and family.agrees(before) and before["tie_word_embeddings"] == (OUTPUT not in model.tensors)
