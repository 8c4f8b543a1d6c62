"""The checkpoint of a whole model, from the GGUFs of its text layers and of its tower: its names and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squish_convert.api import TEXT, Family, Model, Whole

from squish_core.api import ErrorCode, FormatError, SquishError, Typed, registry

from ..config.keys import gguf_keys
from ..config_file import config_agrees, dump_json
from ..keep import kept_files, restored_files, same_value
from ..settings import CONFIG, TextSettings

if TYPE_CHECKING:
    from .tower import Tower

VISION = "clip.vision"
PREFIXES = "squish.prefixes"
"""GGUF's key with the prefixes that the names of the whole checkpoint have, text layers included."""
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files that state how images are prepared; the second one counts where both state a setting."""
OUTER = ("tie_word_embeddings", "torch_dtype")
"""Settings that the whole model states, and not its text part."""


def kept_for_joining(tower: Tower, model: Model) -> dict[str, Typed]:
    """Return GGUF's keys with what a folder has of the whole model: its config.json, its processor, its prefixes.

    Parameters
    ----------
    tower, model
        The family of the tower, and the folder.

    Returns
    -------
    dict
        Keys that only Squish reads.
    """
    files = {name: model.assets[name] for name in (CONFIG, *PREPROCESSORS) if name in model.assets}
    texts = [text.prefixes for text in _text_families(model.config().get("model_type"))]
    known = dict.fromkeys(prefix for each in (tower.prefixes, *texts) for prefix in each)
    used = [prefix for prefix in known if any(name.startswith(prefix) for name in model.tensors)]
    return {**kept_files(files, list(files)), PREFIXES: Typed("array:str", used)}


def whole_model(tower: Tower, model: Model, text: Family, text_model: Model) -> Whole:
    """Describe the checkpoint of a whole model.

    Parameters
    ----------
    tower, model
        The family of the tower, and its GGUF.
    text, text_model
        The family of the text layers, and their GGUF.

    Returns
    -------
    Whole
        The names of the folder that both were written from, or the published ones; and its files.

    Raises
    ------
    FormatError
        The tower is that of another model, or no config.json can be written for both.
    """
    assert isinstance(text, TextSettings)
    settings, text_settings = tower.settings(model), text.settings(text_model)
    if settings["text_hidden_size"] != text_settings["hidden_size"]:
        raise FormatError(
            f"is the tower of another model than {text_model.name}",
            part=f"{VISION}.projection_dim",
            code=ErrorCode.CONTRADICTION,
            expected=f"{text_settings['hidden_size']}, the size of the text layers",
            found=settings["text_hidden_size"],
            hint="Name the two files of one model.",
        )
    kept, _ = restored_files(model.meta)
    beside = text_model.config()
    if "vision_config" in beside:
        if contradiction := _contradiction(tower, model, text_model.assets[CONFIG]):
            raise contradiction
        config = {}
    elif CONFIG in kept and _agrees(tower, model, text, text_model, kept[CONFIG]):
        config = {CONFIG: kept[CONFIG]}
    else:
        config = {CONFIG: dump_json(_written_config(tower, model, text, text_model))}
    processor = {name: data for name, data in kept.items() if name in PREPROCESSORS}
    text_files, _ = restored_files(text_model.meta)
    if not processor and not any(name in files for name in PREPROCESSORS for files in (text_files, text_model.assets)):
        processor = {PREPROCESSORS[0]: dump_json(tower.processor(model, settings))}
    own = {name: data for name, data in processor.items() if name not in text_model.assets}
    return Whole(**_names(tower, model, text), assets={**own, **config})


def _text_families(model_type: Any) -> list[Family]:
    """The families of the text layers of a model type."""
    plugins = registry()
    infos = [entry.info for entry in plugins.families.values()]
    ids = [info.id for info in infos if info.part == TEXT and not info.layouts and model_type in info.model_types]
    return [plugins.implementation("family", each) for each in ids]


def _names(tower: Tower, model: Model, text: Family) -> dict[str, Mapping[str, str]]:
    """Prefixes of both families' names -> those in the whole checkpoint."""
    if PREFIXES not in model.meta:
        return {"text_names": tower.text_names}
    used = [str(each) for each in model.value(PREFIXES)]
    return {
        "text_names": {text.prefixes[each]: each for each in used if each in text.prefixes},
        "own_names": {tower.prefixes[each]: each for each in used if each in tower.prefixes},
    }


def _agrees(tower: Tower, model: Model, text: TextSettings, text_model: Model, config: bytes) -> bool:
    """Return whether a config.json is that of the tower and of the text layers."""
    return _contradiction(tower, model, config) is None and config_agrees(text, text_model, config)


def _contradiction(tower: Tower, model: Model, config: bytes) -> SquishError | None:
    """Return the error for a config.json that states other settings than the keys of a tower."""
    folder = Model(
        name=model.name, layout="hf", meta={}, assets={CONFIG: config}, tensors={}, vectors={}, limits=model.limits
    )
    try:
        stated = gguf_keys(tower.keys, VISION, tower.settings(folder))
    except SquishError as error:
        return error
    for key, value in stated.items():
        if key in model.meta and not same_value(model.meta[key], value):
            return FormatError(
                f"contradicts {CONFIG}",
                file=model.name,
                part=key,
                code=ErrorCode.CONTRADICTION,
                expected=value.value,
                found=model.value(key),
                hint="Leave out {option:assets}, or name the folder of this model.",
            )
    return None


def _written_config(tower: Tower, model: Model, text: TextSettings, text_model: Model) -> dict[str, Any]:
    """Return a config.json for two GGUFs that keep none."""
    if not tower.class_name:
        raise FormatError(
            "keeps no config.json of the whole model, and none can be written for this tower",
            part=CONFIG,
            code=ErrorCode.CONFIG,
            expected="the config.json of the published model",
            hint="Put it into a folder, and name that: {option:assets=FOLDER}.",
        )
    settings = tower.settings(model)
    inner = json.loads(text.carry(text_model, text.settings(text_model), "hf", {}).assets[CONFIG])
    tokens = text_model.value("tokenizer.ggml.tokens", ())
    numbers = {token: number for number, token in enumerate(tokens)} if tower.tokens else {}
    vision = {
        tower.own_names.get(key.hf, key.hf): settings[key.hf]
        for key in tower.keys
        if key.hf in settings and key.hf not in (*tower.outer, "text_hidden_size")
    }
    return {
        "architectures": [tower.class_name],
        "model_type": tower.model_type,
        **tower.outer_settings(model, settings),
        **{name: numbers[token] for name, token in tower.tokens.items() if token in numbers},
        "text_config": {key: value for key, value in inner.items() if key not in (*OUTER, "architectures")},
        "vision_config": {
            "model_type": tower.vision_type,
            "hidden_act": tower.hidden_act(model),
            **tower.written,
            **vision,
        },
        **{name: inner.get(name) for name in OUTER},
    }
