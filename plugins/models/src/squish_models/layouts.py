"""A target's data besides tensors: GGUF's keys, or the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from squish_core.api import Carried, Dropped, ErrorCode, FormatError, Model, Options, SquishError, TensorSpec, Typed

from .config.keys import gguf_keys
from .config.rope import gguf_rope
from .config.spelling import QUANTIZATION, has_other_parts
from .keep import KEYS_FILE, kept_files, kept_keys, restored_files, restored_keys, same_value
from .settings import TextSettings
from .tokenizer import FILES, Tokenizer, huggingface_files, read_gguf, read_huggingface
from .tokenizer import gguf_keys as tokenizer_keys

CONFIG = "config.json"
HIDDEN = ("rotary_dim", "mrope_section", "kv_heads")
"""Settings derived from others, or for other modalities, which are not keys of config.json."""
REPORTS = ("uqff_report.json",)
"""Files that describe how a source is stored, not the model."""
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
FRAMEWORK = ("format",)
"""Metadata of a checkpoint that names the framework that saved it."""
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"


def carry_to_gguf(
    family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str, options: Options
) -> Carried:
    """GGUF's keys and tensors for the settings, and the source's files that cannot be rebuilt from them."""
    family.check_for_gguf(settings)
    keys, constants = config_keys(family, settings)
    tokenizer = read_huggingface(model.assets, settings)
    if tokenizer is not None:
        keys |= tokenizer_keys(tokenizer)
    meta = restored_keys(model, keys)
    missing = () if tokenizer is not None else ("tokenizer",)
    files = {name: data for name, data in model.assets.items() if name not in (*REPORTS, KEYS_FILE)}
    if has_other_parts(model.config()):  # GGUF stores only the text part
        files[CONFIG] = respelled(family, files[CONFIG], settings)
    rebuilt = _rebuilt(family, meta, constants, settings) if files else {}
    differing = {name: data for name, data in files.items() if not _gives(rebuilt.get(name), name, data)}
    dropped = tuple(Dropped("metadata", key) for key in model.meta if key not in FRAMEWORK)
    if options.get("keep") == "no":
        dropped += tuple(Dropped("asset", name, "GGUF's keys give other text") for name in differing)
    elif differing or files.keys() != rebuilt.keys():
        meta = {**meta, **kept_files(differing, list(files))}
    return Carried(
        meta=meta, constants=constants, missing=missing, dropped=dropped, notes=family.ignored(settings, layout)
    )


def carry_to_folder(
    family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str, options: Options
) -> Carried:
    """The files of a folder for the settings; a Hugging Face folder gets back the files kept in a GGUF."""
    files = {name: data for name, data in model.assets.items() if name not in REPORTS}
    meta, vectors = dict(model.meta), None
    if model.layout == "gguf":
        folder = _files(family, model, settings)
        files, vectors = folder.files, folder.vectors
        keys, _ = config_keys(family, settings)
        tokenizer = folder.tokenizer or read_huggingface(files, json.loads(files[CONFIG]))
        meta, keys = {"format": "pt"}, keys | (tokenizer_keys(tokenizer) if tokenizer is not None else {})
        files |= kept_keys(model.meta, keys)
    if layout != "hf" or model.layout != "gguf":
        files[CONFIG] = respelled(family, files[CONFIG], settings)
    missing = () if {"tokenizer.json", "tokenizer.model"} & files.keys() else ("tokenizer",)
    kept = tuple(name for name, data in files.items() if model.assets.get(name) == data)
    rebuilt = {name: data for name, data in files.items() if name not in kept}
    notes = family.ignored(settings, layout)
    return Carried(meta=meta, assets=rebuilt, kept=kept, vectors=vectors, missing=missing, notes=notes)


def config_keys(family: TextSettings, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """GGUF's keys and tensors for settings."""
    scaling, constants = gguf_rope(settings, family.architecture)
    if lost := [name for name in constants if name not in family.constants]:
        raise FormatError(
            "has a rope_scaling that llama.cpp does not apply to this family", part=CONFIG, code="rope",
            expected=f"none that needs {lost[0]}", found=str(settings["rope_scaling"])[:60],
        )  # fmt: skip
    keys = {
        "general.architecture": Typed("str", family.architecture), "general.type": Typed("str", "model"),
        **gguf_keys(family.keys, family.architecture, settings), **scaling,
        "general.file_type": Typed("u32", 0), "general.quantization_version": Typed("u32", 2),
    }  # fmt: skip
    return keys, constants


def written_config(settings: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """config.json for settings that came from GGUF."""
    config = {key: value for key, value in settings.items() if key not in HIDDEN}
    if tokenizer is not None:
        special = {f"{role}_token_id": tokenizer.special.get(role) for role in ("bos", "eos", "pad")}
        config |= {key: number for key, number in special.items() if number is not None}
        if len(tokenizer.end_ids) > 1:
            config["eos_token_id"] = list(tokenizer.end_ids)
    return config


def respelled(family: TextSettings, data: bytes, settings: Mapping[str, Any]) -> bytes:
    """A config.json in the old spelling, with the keys that engines need; unchanged if it already is."""
    config = json.loads(data)
    spelled = {key: value for key, value in family.spelled(config).items() if key not in (*QUANTIZATION, *HIDDEN)}
    if has_other_parts(config):
        spelled |= {"model_type": family.model_type, "architectures": [family.class_name]}
    spelled.setdefault("tie_word_embeddings", settings["tie_word_embeddings"])
    for key in family.layer_counts:  # mistral.rs needs them even without a sliding window
        spelled.setdefault(key, settings["num_hidden_layers"])
        spelled.setdefault("use_sliding_window", False)
    return data if spelled == config else dump_json(spelled)


def vector_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype that a config declares for dense tensors."""
    stated = config.get("torch_dtype", config.get("dtype"))
    return next((dtype for dtype, name in DTYPES.items() if name == stated), None)


def dump_json(config: Mapping[str, Any]) -> bytes:
    """JSON as transformers writes it."""
    return (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode()


@frozen
class _Folder:
    """The files of a GGUF, the dtype of vectors that its config states, and the tokenizer in the files if it was
    compared with the keys."""

    files: dict[str, bytes]
    vectors: str | None
    tokenizer: Tokenizer | None = None


def _files(family: TextSettings, model: Model, settings: Mapping[str, Any]) -> _Folder:
    """The files of a GGUF: kept ones that still agree with the keys, the others rebuilt."""
    kept, names = restored_files(model.meta)
    lent = {name: data for name, data in model.assets.items() if name not in REPORTS}
    if CONFIG in lent and not _config_agrees(family, model, lent[CONFIG]):
        raise FormatError(
            "contradicts the keys of the GGUF", part=CONFIG, code=ErrorCode.CONTRADICTION,
            hint="Leave out assets=; the GGUF contains the settings.",
        )  # fmt: skip
    files = {**kept, **lent}
    tokenizer = read_gguf(model.meta)
    vectors = None
    if CONFIG in files and _config_agrees(family, model, files[CONFIG]):
        vectors = vector_dtype(json.loads(files[CONFIG]))
        files[CONFIG] = _undeclared(files[CONFIG])
    else:
        files[CONFIG] = dump_json(written_config(settings, tokenizer))
    if tokenizer is None:
        return _Folder(files, vectors)
    from_keys = huggingface_files(tokenizer, gemma=family.gemma_tokenizer)
    own = {name for name in from_keys if name in names or not (names or "tokenizer.json" in files)}
    rebuilt = {name: data for name, data in from_keys.items() if name in own}
    describing = {name for name in files if name in FILES and name != CONFIG}
    if not describing:
        return _Folder({**rebuilt, **files}, vectors)
    stored = _agreeing_tokenizer(model, {**rebuilt, **files})
    if stored is not None:
        return _Folder({**rebuilt, **files}, vectors, stored)
    others = {name: data for name, data in files.items() if name not in describing}
    return _Folder({name: data for name, data in from_keys.items() if not names or name in names} | others, vectors)


def _rebuilt(
    family: TextSettings, meta: Mapping[str, Any], constants: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files that can be rebuilt from GGUF's keys and tensors alone; none without settings."""
    shape = (settings["vocab_size"], settings["hidden_size"])
    tensors = {EMBEDDINGS: TensorSpec(name=EMBEDDINGS, shape=shape, dtype="f32")}
    if not settings["tie_word_embeddings"]:
        tensors[OUTPUT] = evolve(tensors[EMBEDDINGS], name=OUTPUT)
    model = Model(
        name="", layout="gguf", meta=meta, assets={}, tensors=tensors, vectors=constants, limits=None,
    )  # fmt: skip
    try:
        return _files(family, model, family.settings(model)).files
    except SquishError:
        return {}


def _gives(rebuilt: bytes | None, name: str, data: bytes) -> bool:
    """Whether a file is rebuilt exactly, apart from a config's description of quantization, which is not kept."""
    if rebuilt is None or rebuilt == data:
        return rebuilt == data
    undeclared = _undeclared(data) if name == CONFIG else data
    return undeclared != data and json.loads(undeclared) == json.loads(rebuilt)


def _undeclared(config: bytes) -> bytes:
    """A kept config without its description of quantization; the target's format declares its own."""
    stated = json.loads(config)
    if not any(key in stated for key in QUANTIZATION):
        return config
    return dump_json({key: value for key, value in stated.items() if key not in QUANTIZATION})


def _config_agrees(family: TextSettings, model: Model, config: bytes) -> bool:
    """Whether a config agrees with the keys."""
    tensors = {"lm_head.weight": model.tensors[OUTPUT]} if OUTPUT in model.tensors else {}
    try:
        before = family.settings(evolve(model, layout="hf", assets={CONFIG: config}, tensors=tensors))
        keys, _ = config_keys(family, before)
    except SquishError:
        return False
    prefix = f"{family.architecture}."
    stated = {key for key in (*keys, *model.meta) if key.startswith(prefix) and key in keys and key in model.meta}
    agrees = all(same_value(model.meta[key], keys[key]) for key in stated)
    return agrees and before["tie_word_embeddings"] == (OUTPUT not in model.tensors)


def _agreeing_tokenizer(model: Model, files: Mapping[str, bytes]) -> Tokenizer | None:
    """The tokenizer in files if it agrees with the keys."""
    try:
        tokenizer = read_huggingface(files, json.loads(files[CONFIG]))
    except SquishError:
        return None
    keys = {} if tokenizer is None else tokenizer_keys(tokenizer)
    agrees = all(same_value(model.meta[key], value) for key, value in keys.items() if key in model.meta)
    return tokenizer if agrees else None
