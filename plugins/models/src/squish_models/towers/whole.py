"""The checkpoint of a whole model, from the GGUFs of its text layers and of its tower: its names and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_convert.api import TEXT, Family, Model, Whole

from squish_core.api import ErrorCode, FormatError, SquishError, Typed, registry

from ..config.keys import Key, gguf_keys, shortest
from ..config_file import config_agrees, dump_json
from ..keep import kept_files, restored_files, same_value
from ..settings import CONFIG, TextSettings

VISION = "clip.vision"
NORMALIZATION = {"image_mean": f"{VISION}.image_mean", "image_std": f"{VISION}.image_std"}
PREFIXES = "squish.prefixes"
"""GGUF's key with the prefixes that the names of the whole checkpoint have, text layers included."""
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files that state how images are prepared; the second one counts where both state a setting."""
TEXT_PREFIXES = {
    "language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head.",
}  # fmt: skip
"""Prefixes of text layers in a whole checkpoint -> those of their families, which need not list them."""
OUTER = ("tie_word_embeddings", "torch_dtype")
"""Settings that the whole model states, and not its text part."""


class Joinable(Family):
    """A tower that is joined with text layers; subclasses state what the checkpoint of the whole model has.

    Attributes
    ----------
    keys, own_names, outer
        As in `Tower`.
    class_name, model_type, vision_type
        The names of the whole model and of its tower in a config.json that is written for GGUFs that keep none;
        without a class, only kept ones are written.
    written
        Settings in its `vision_config` that are always the same.
    tokens
        Setting in that config.json -> the token whose id it is.
    text_names
        Prefixes of the names of the text layers -> those in published checkpoints of the whole model.
    processor_type
        The class of the image processor in a file that is written for GGUFs that keep none.
    """

    keys: ClassVar[Sequence[Key]]
    own_names: ClassVar[Mapping[str, str]] = {}
    outer: ClassVar[Sequence[str]] = ()
    class_name: ClassVar[str] = ""
    model_type: ClassVar[str] = ""
    vision_type: ClassVar[str] = ""
    written: ClassVar[Mapping[str, Any]] = {}
    tokens: ClassVar[Mapping[str, str]] = {}
    text_names: ClassVar[Mapping[str, str]] = {"model.": "model.language_model."}
    processor_type: ClassVar[str] = ""

    def outer_settings(self, model: Model, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the config.json of the whole model states outside of `vision_config` for the tower of a GGUF.

        Parameters
        ----------
        model, settings
            The GGUF, and the result of `settings`.

        Returns
        -------
        Mapping
            The settings in `outer` by default.
        """
        return {name: settings[name] for name in self.outer if name in settings}

    def types(self, text: Family) -> tuple[str, str, str]:
        """Return the names of a whole model's class, of its type and of the tower's type.

        Parameters
        ----------
        text
            The family of the text layers.

        Returns
        -------
        tuple of str
            `class_name`, `model_type` and `vision_type` by default.
        """
        return self.class_name, self.model_type, self.vision_type

    def vision_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a `vision_config` that is written for a GGUF.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        dict
            Those with keys, but not those in `outer`, by default.
        """
        keys = [key for key in self.keys if key.hf in settings and key.hf not in (*self.outer, "text_hidden_size")]
        return {self.own_names.get(key.hf, key.hf): settings[key.hf] for key in keys}

    def text_changes(self, text: Family, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `text_config` states and the config.json of the text layers alone does not.

        Parameters
        ----------
        text, settings
            The family of the text layers, and the result of its `settings`.
        config
            The config.json of the text layers alone.

        Returns
        -------
        Mapping
            None by default.
        """
        return {}

    def processor(self, model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the image processor for the keys of a GGUF.

        Parameters
        ----------
        model, settings
            The GGUF, and the result of `settings`.

        Returns
        -------
        dict
            The content of preprocessor_config.json.
        """
        stated = {name: _colors(model, key) for name, key in NORMALIZATION.items()}
        size = {"height": settings["image_size"], "width": settings["image_size"]}
        return {"image_processor_type": self.processor_type, "size": size, **stated}

    def hidden_act(self, model: Model) -> str:
        """Return the activation that the keys of a GGUF state.

        Parameters
        ----------
        model
            The GGUF.

        Returns
        -------
        str
            The value of `hidden_act`.
        """
        raise NotImplementedError

    def kept(self, model: Model) -> dict[str, Typed]:
        """Return GGUF's keys with what a folder has of the whole model: its config.json, its processor, its prefixes.

        Parameters
        ----------
        model
            The folder.

        Returns
        -------
        dict
            Keys that only Squish reads.
        """
        files = {name: model.assets[name] for name in (CONFIG, *PREPROCESSORS) if name in model.assets}
        texts = [text.prefixes for text in _text_families(model.config().get("model_type"))]
        prefixes = dict.fromkeys(prefix for each in (self.prefixes, *texts, TEXT_PREFIXES) for prefix in each)
        used = [prefix for prefix in prefixes if any(name.startswith(prefix) for name in model.tensors)]
        return {**kept_files(files, list(files)), PREFIXES: Typed("array:str", used)}

    def beside(self, model: Model, text: Family, text_model: Model) -> Whole:
        assert isinstance(text, TextSettings)
        settings, size = self.settings(model), text.settings(text_model)["hidden_size"]
        if settings["text_hidden_size"] != size:
            raise FormatError(
                f"is the tower of another model than {text_model.name}",
                part=f"{VISION}.projection_dim",
                code=ErrorCode.CONTRADICTION,
                expected=f"{size}, the size of the text layers",
                found=settings["text_hidden_size"],
                hint="Name the two files of one model.",
            )
        kept, _ = restored_files(model.meta)
        config = {CONFIG: kept[CONFIG]} if CONFIG in kept else {}
        if "vision_config" in text_model.config():
            if contradiction := _contradiction(self, model, text_model.assets[CONFIG]):
                raise contradiction
            config = {}
        elif not config or not _agrees(self, model, text, text_model, config[CONFIG]):
            config = {CONFIG: dump_json(_written_config(self, model, text, text_model))}
        processor = {name: data for name, data in kept.items() if name in PREPROCESSORS}
        of_text, _ = restored_files(text_model.meta)
        if processor.keys().isdisjoint(PREPROCESSORS) and {*of_text, *text_model.assets}.isdisjoint(PREPROCESSORS):
            processor = {PREPROCESSORS[0]: dump_json(self.processor(model, settings))}
        own = {name: data for name, data in processor.items() if name not in text_model.assets}
        text_names, own_names = _names(self, model, text)
        return Whole(text_names=text_names, own_names=own_names, assets={**own, **config})


def _colors(model: Model, key: str) -> list[float]:
    """The numbers for each color in a key of a GGUF; FormatError if it has none."""
    stated = model.meta.get(key)
    if not isinstance(stated, Typed) or stated.type != "array:f32" or len(stated.value) != 3:
        raise FormatError(
            "is missing" if stated is None else "is not a value for each color",
            part=key,
            code=ErrorCode.CONFIG,
            expected="3 numbers",
            found=str(model.value(key))[:60],
        )
    return [shortest(each) for each in stated.value]


def _text_families(model_type: Any) -> list[Family]:
    """The families of the text layers of a model type."""
    plugins = registry()
    infos = [entry.info for entry in plugins.families.values()]
    ids = [info.id for info in infos if info.part == TEXT and not info.layouts and model_type in info.model_types]
    return [plugins.implementation("family", each) for each in ids]


def _names(tower: Joinable, model: Model, text: Family) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Prefixes of the text layers' names, and of the tower's -> those in the whole checkpoint."""
    stated = model.meta.get(PREFIXES)
    if not isinstance(stated, Typed) or stated.type != "array:str":
        return tower.text_names, {}
    used, of_text = [str(each) for each in stated.value], {**TEXT_PREFIXES, **text.prefixes}
    return (
        {of_text[each]: each for each in used if each in of_text},
        {tower.prefixes[each]: each for each in used if each in tower.prefixes},
    )


def _agrees(tower: Joinable, model: Model, text: TextSettings, text_model: Model, config: bytes) -> bool:
    """Return whether a config.json is that of the tower and of the text layers."""
    return _contradiction(tower, model, config) is None and config_agrees(text, text_model, config)


def _contradiction(tower: Joinable, model: Model, config: bytes) -> SquishError | None:
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


def _written_config(tower: Joinable, model: Model, text: TextSettings, text_model: Model) -> dict[str, Any]:
    """Return a config.json for two GGUFs that keep none."""
    class_name, model_type, vision_type = tower.types(text)
    if not class_name:
        is_kept = CONFIG in restored_files(model.meta)[0]
        raise FormatError(
            f"keeps a config.json that is not that of {text_model.name}"
            if is_kept
            else "keeps no config.json of the whole model, and none can be written for this tower",
            part=CONFIG,
            code=ErrorCode.CONTRADICTION if is_kept else ErrorCode.CONFIG,
            expected="the config.json of both, as it was published",
            hint="Name the two files of one model, and if need be a folder with that file: {option:assets=FOLDER}.",
        )
    settings = tower.settings(model)
    text_settings = text.settings(text_model)
    inner = json.loads(text.carry(text_model, text_settings, "hf", {}).assets[CONFIG])
    inner |= tower.text_changes(text, text_settings, inner)
    tokens = text_model.value("tokenizer.ggml.tokens", ())
    numbers = {token: number for number, token in enumerate(tokens)} if tower.tokens else {}
    return {
        "architectures": [class_name],
        "model_type": model_type,
        **tower.outer_settings(model, settings),
        **{name: numbers[token] for name, token in tower.tokens.items() if token in numbers},
        "text_config": {key: value for key, value in inner.items() if key not in (*OUTER, "architectures")},
        "vision_config": {
            "model_type": vision_type,
            "hidden_act": tower.hidden_act(model),
            **tower.written,
            **tower.vision_settings(settings),
        },
        **{name: inner.get(name) for name in OUTER},
    }
