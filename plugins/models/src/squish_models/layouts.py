"""A target's data besides tensors: GGUF's keys, or the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_convert.api import Carried, Model
from squish_gguf.api import FILE

from squish_core.api import Dropped, Options, SquishError, TensorSpec, check_assets

from .config.spelling import BEHIND, has_other_parts
from .config_file import OUTPUT, STORAGE, config_keys, respelled, undeclared, with_null_dtype
from .general import general_keys
from .gguf_files import REPORTS, VOCABULARIES, FolderFiles, GgufFiles
from .keep import DIGEST, KEYS_FILE, NAMES, kept_files, restored_keys, tokenizer_digest
from .mlx_folder import for_mlx
from .settings import CONFIG, TextSettings
from .tokenizer import (
    Tokenizer,
    Vocabulary,
    check_huggingface,
    describes_tokenizer,
    ignored_ids,
    is_mapped,
    read_huggingface,
    splitting_notes,
    stored_keys,
)
from .tokenizer import gguf_keys as tokenizer_keys

FRAMEWORK = ("format",)
"""Metadata of a checkpoint that names the framework that saved it."""
EMBEDDINGS = "token_embd.weight"
VOCABULARY = [f"tokenizer.ggml.{part}" for part in ("model", "tokens", "token_type", "scores", "merges")]
"""GGUF's keys of a vocabulary."""


def carry_to_gguf(
    family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str, options: Options
) -> Carried:
    """Return GGUF's keys and tensors for the settings, and the source's files that cannot be rebuilt from them."""
    family.check_for_gguf(settings)
    keys, constants = config_keys(family, settings)
    tokenizer = read_huggingface(model.assets, settings, family.pretokenizers, family.merging)
    described = tokenizer_keys(tokenizer) if tokenizer is not None else {}
    tokens = tokenizer.tokens if tokenizer is not None else ()
    general = general_keys(family, model, settings, constants.values(), model.assets, lambda: tokens)
    meta = restored_keys(model, keys | general | described)
    missing = () if tokenizer is not None else ("tokenizer",)
    files = {name: data for name, data in model.assets.items() if name not in (*REPORTS, KEYS_FILE)}
    check_assets({name: data for name, data in files.items() if not describes_tokenizer(name)})
    if has_other_parts(model.config()):  # GGUF stores only the text part
        files[CONFIG] = respelled(family, files[CONFIG], settings)
    is_stored = tokenizer is not None and _has_vocabulary(meta, described)
    vocabulary = tokenizer.vocabulary if tokenizer is not None and is_stored and _keeps_merges(tokenizer) else None
    rebuilt = _rebuilt(family, meta, constants, settings, vocabulary) if files else None
    differing = {name: data for name, data in files.items() if rebuilt is None or not _matches(rebuilt, name, data)}
    dropped = tuple(Dropped("metadata", key) for key in model.meta if key not in FRAMEWORK)
    if options.get("keep") == "no":
        dropped += tuple(Dropped("asset", name, "GGUF's keys produce a different text") for name in differing)
    elif differing or (rebuilt is not None and files.keys() != set(rebuilt)):
        kept = {name: data for name, data in differing.items() if describes_tokenizer(name)}
        unchanged = stored_keys(meta).keys() == described.keys() and all(
            meta[key] is described[key] for key in described
        )
        digest = tokenizer_digest(described, kept, settings) if unchanged else None
        meta = {**meta, **kept_files(differing, list(files), digest)}
    storage = (*STORAGE, *(f"{FILE}{name}" for name in files), NAMES, DIGEST)
    return Carried(
        meta=meta,
        storage=storage,
        constants=constants,
        missing=missing,
        dropped=dropped,
        notes=(*family.ignored(settings, layout), *_tokenizer_notes(tokenizer, settings)),
    )


def carry_gguf(family: TextSettings, model: Model, settings: Mapping[str, Any]) -> Carried:
    """Return the keys of a GGUF for a target that is a GGUF, after a check of its tokenizer."""
    checked = not is_mapped(model.meta) or GgufFiles(family, model, settings).check_tokenizer()
    missing = () if checked else ("tokenizer",)
    return Carried(
        meta=model.meta, missing=missing, notes=(*family.ignored(settings, "gguf"), *ignored_ids(model.meta))
    )


def carry_to_folder(
    family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str, options: Options
) -> Carried:
    """Return the files of a folder for the settings; a Hugging Face folder gets the files stored in a GGUF."""
    family.check_engine(layout, settings)
    notes = family.ignored(settings, layout)
    left_out = tuple(family.behind(settings)) if layout != "hf" else ()
    if model.layout == "gguf":
        family.check_for_folder(settings)
        files = FolderFiles(family, model, settings, layout)
        missing = () if files.files.has_vocabulary else ("tokenizer",)
        return Carried(
            meta={"format": "pt"},
            storage=FRAMEWORK,
            assets=files,
            vectors=files.files.vectors,
            left_out=left_out,
            missing=missing,
            notes=(*notes, *ignored_ids(model.meta), *splitting_notes(model.meta)),
        )
    assets = {name: data for name, data in model.assets.items() if name not in REPORTS}
    assets[CONFIG] = respelled(family, assets[CONFIG], settings)
    if layout == "mlx":
        assets[CONFIG] = for_mlx(assets[CONFIG], model.tensors, model.name, family.mlx_type, family.mlx_part)
    check_assets({name: data for name, data in assets.items() if not describes_tokenizer(name)})
    notes += _left_out(check_huggingface(assets, settings), settings)
    missing = ("tokenizer",) if VOCABULARIES.isdisjoint(assets) else ()
    return Carried(meta=model.meta, storage=FRAMEWORK, assets=assets, left_out=left_out, missing=missing, notes=notes)


def _tokenizer_notes(tokenizer: Tokenizer | None, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes about what a GGUF cannot express of a tokenizer."""
    if tokenizer is None:
        return ()
    lost = f"llama.cpp adds one token on each side of a text, and not {', '.join(map(repr, tokenizer.lost))}"
    return (*_left_out(tokenizer.left_out, settings), *((lost,) if tokenizer.lost else ()))


def _left_out(tokens: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note about added tokens that the model has no embedding for."""
    if not tokens:
        return ()
    first, size = repr(tokens[0][:40]), settings["vocab_size"]
    if len(tokens) == 1:
        return (f"the added token {first} has no embedding: its id is beyond the vocab_size of {size}",)
    count = f"{len(tokens)} added tokens"
    return (f"{count} have no embedding, such as {first}: their ids are beyond the vocab_size of {size}",)


def _has_vocabulary(meta: Mapping[str, Any], described: Mapping[str, Any]) -> bool:
    """Return whether the metadata has the vocabulary of a tokenizer's keys, none restored or left out."""
    return all(meta.get(key) is described.get(key) for key in VOCABULARY)


def _keeps_merges(tokenizer: Tokenizer) -> bool:
    """Return whether GGUF stores the merges unchanged, which fails for tokens with a space."""
    return " " not in "".join(map("".join, tokenizer.merges))


def _rebuilt(
    family: TextSettings,
    meta: Mapping[str, Any],
    constants: Mapping[str, Any],
    settings: Mapping[str, Any],
    vocabulary: Vocabulary | None,
) -> GgufFiles | None:
    """Return the files that can be rebuilt from GGUF's keys and tensors alone; None without settings or a tokenizer."""
    shape = (settings["vocab_size"], settings["hidden_size"])
    tensors = {EMBEDDINGS: TensorSpec(name=EMBEDDINGS, shape=shape, dtype="f32")}
    if not settings["tie_word_embeddings"]:
        tensors[OUTPUT] = evolve(tensors[EMBEDDINGS], name=OUTPUT)
    if settings.get(BEHIND):
        name = f"blk.{settings['num_hidden_layers']}.attn_norm.weight"
        tensors[name] = evolve(tensors[EMBEDDINGS], name=name)
    model = Model(
        name="",
        layout="gguf",
        meta=meta,
        assets={},
        tensors=tensors,
        vectors=constants,
        limits=None,
    )
    try:
        files = GgufFiles(family, model, family.settings(model), vocabulary)
        list(files)
    except SquishError:
        return None
    return files


def _matches(rebuilt: GgufFiles, name: str, data: bytes) -> bool:
    """Return whether a file is rebuilt exactly, except a config's null dtype and its declaration of quantization."""
    if rebuilt.matches(name, data):
        return True
    if name != CONFIG:
        return False
    config = undeclared(data)
    own = rebuilt[name]
    return data == with_null_dtype(own) or (config != data and json.loads(config) == json.loads(own))
