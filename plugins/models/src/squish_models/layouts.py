"""A target's data besides tensors: GGUF's keys, or the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from squish_core.api import Carried, Dropped, Model, Options, SquishError, TensorSpec

from .config.spelling import has_other_parts
from .config_file import OUTPUT, STORAGE, config_keys, respelled, undeclared
from .gguf_files import REPORTS, VOCABULARIES, FolderFiles, GgufFiles
from .keep import KEYS_FILE, kept_files, restored_keys
from .settings import CONFIG, TextSettings
from .tokenizer import gguf_keys as tokenizer_keys
from .tokenizer import read_huggingface

FRAMEWORK = ("format",)
"""Metadata of a checkpoint that names the framework that saved it."""
EMBEDDINGS = "token_embd.weight"


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
        meta=meta, storage=tuple(STORAGE), constants=constants, missing=missing, dropped=dropped,
        notes=family.ignored(settings, layout),
    )  # fmt: skip


def carry_to_folder(
    family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str, options: Options
) -> Carried:
    """The files of a folder for the settings; a Hugging Face folder gets back the files kept in a GGUF."""
    notes = family.ignored(settings, layout)
    if model.layout == "gguf":
        files = FolderFiles(family, model, settings, layout)
        missing = () if files.files.has_vocabulary else ("tokenizer",)
        return Carried(
            meta={"format": "pt"}, storage=FRAMEWORK, assets=files, vectors=files.files.vectors, missing=missing,
            notes=notes,
        )  # fmt: skip
    assets = {name: data for name, data in model.assets.items() if name not in REPORTS}
    assets[CONFIG] = respelled(family, assets[CONFIG], settings)
    missing = ("tokenizer",) if VOCABULARIES.isdisjoint(assets) else ()
    return Carried(meta=model.meta, assets=assets, missing=missing, notes=notes)


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
        return dict(GgufFiles(family, model, family.settings(model)))
    except SquishError:
        return {}


def _gives(rebuilt: bytes | None, name: str, data: bytes) -> bool:
    """Whether a file is rebuilt exactly, apart from a config's description of quantization, which is not kept."""
    if rebuilt is None or rebuilt == data:
        return rebuilt == data
    config = undeclared(data) if name == CONFIG else data
    return config != data and json.loads(config) == json.loads(rebuilt)
