"""What surrounds the tensors in a target: GGUF's keys, or the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squish_core.api import Carried, Dropped, Model, Options, Typed

from .config.keys import gguf_keys
from .config.rope import gguf_rope
from .config.spelling import QUANTIZATION, old_spelling, text_config
from .keep import kept_files, kept_keys, restored_files, restored_keys

if TYPE_CHECKING:
    from .family import TextModel

CONFIG = "config.json"
HIDDEN = ("rotary_dim",)
"""Settings that stand for others and are no keys of config.json."""
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
TOKENIZERS = {"tokenizer.json", "tokenizer.model"}


def carry_to_gguf(family: TextModel, model: Model, settings: Mapping[str, Any], options: Options) -> Carried:
    """GGUF's keys and tensors for the settings, and the source's files where the keys do not give them back."""
    keys, constants = config_keys(family, settings)
    meta = restored_keys(model, keys)
    missing = () if "tokenizer.ggml.model" in meta else ("a tokenizer (tokenizer.ggml.model)",)
    if options.get("keep") != "no":
        meta = {**meta, **kept_files(model.assets)}
        dropped: tuple[Dropped, ...] = ()
    else:
        dropped = tuple(Dropped("asset", name, "keep=no") for name in model.assets if name != CONFIG)
    return Carried(meta=meta, constants=constants, missing=missing, dropped=dropped)


def carry_to_folder(family: TextModel, model: Model, settings: Mapping[str, Any], options: Options) -> Carried:
    """The files of a folder for the settings; those that the source keeps are given back as they were."""
    files = dict(model.assets)
    vectors = None
    meta = {}
    if model.layout == "gguf":
        files = restored_files(model.meta)
        original = files.get(CONFIG)
        if original is not None and _agrees(family, model, original):
            vectors = vector_dtype(json.loads(original))
        else:
            files[CONFIG] = dump_json(written_config(family, settings))
        files |= kept_keys(model.meta, config_keys(family, settings)[0])
    else:
        files[CONFIG] = respelled(family, model)
        meta = dict(model.meta)
    missing = () if TOKENIZERS & files.keys() else ("a tokenizer (tokenizer.json)",)
    kept = tuple(name for name, data in files.items() if model.assets.get(name) == data)
    made = {name: data for name, data in files.items() if name not in kept}
    return Carried(meta=meta, assets=made, kept=kept, vectors=vectors, missing=missing)


def config_keys(family: TextModel, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """GGUF's keys and tensors that stand for settings."""
    scaling, constants = gguf_rope(settings, family.architecture)
    keys = {
        "general.architecture": Typed("str", family.architecture), "general.type": Typed("str", "model"),
        **gguf_keys(family.keys, family.architecture, settings), **scaling,
        "general.file_type": Typed("u32", 0), "general.quantization_version": Typed("u32", 2),
    }  # fmt: skip
    return keys, constants


def written_config(family: TextModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """config.json for settings that came from GGUF."""
    return {key: value for key, value in settings.items() if key not in HIDDEN}


def respelled(family: TextModel, model: Model) -> bytes:
    """The source's config.json in the old spelling; its own bytes where it has that already."""
    config = model.config()
    made = {
        key: value
        for key, value in old_spelling(text_config(config), family.experts).items()
        if key not in QUANTIZATION
    }
    if "text_config" in config:
        made |= {"model_type": family.model_type, "architectures": [family.class_name]}
    made.setdefault("tie_word_embeddings", not any(name.endswith("lm_head.weight") for name in model.tensors))
    return model.assets[CONFIG] if made == config else dump_json(made)


def vector_dtype(config: Mapping[str, Any]) -> str | None:
    """The type that a config states for plain tensors."""
    stated = config.get("torch_dtype", config.get("dtype"))
    return next((dtype for dtype, name in DTYPES.items() if name == stated), None)


def dump_json(config: Mapping[str, Any]) -> bytes:
    """JSON as transformers writes it."""
    return (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode()


def _agrees(family: TextModel, model: Model, original: bytes) -> bool:
    """Whether a config that was kept still says what the keys say."""
    from attrs import evolve

    head = "output.weight"
    tensors = {"lm_head.weight": model.tensors[head]} if head in model.tensors else {}
    try:
        before = family.settings(evolve(model, layout="hf", assets={CONFIG: original}, tensors=tensors))
        keys, _ = config_keys(family, before)
    except ValueError:
        return False
    return all(
        key in model.meta and model.meta[key] == value for key, value in keys.items() if not key.startswith("general.")
    ) and before["tie_word_embeddings"] == (head not in model.tensors)
