"""A vision tower and its projector as a table: `vision_config` and the image processor as GGUF's `clip` keys.

Source: llama.cpp, `MmprojModel` in conversion/base.py and `Keys.ClipVision` in gguf-py/gguf/constants.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from attrs import evolve
from squish_convert.api import Carried, FamilyTensor, Model, Rule

from squish_core.api import ErrorCode, FormatError, Options, Typed

from ..config.keys import Key, check_settings, gguf_keys, shortest
from ..config_file import STORAGE
from ..settings import CONFIG
from ..tables import Row
from .whole import NORMALIZATION, PREPROCESSORS, VISION, Joinable

ARCHITECTURE = "clip"
VISION_CONFIG = f"{CONFIG} vision_config"
SIZES = (
    Key("image_size", "image_size"),
    Key("patch_size", "patch_size"),
    Key("hidden_size", "embedding_length"),
    Key("intermediate_size", "feed_forward_length"),
    Key("num_hidden_layers", "block_count"),
    Key("num_attention_heads", "attention.head_count"),
    Key("layer_norm_eps", "attention.layer_norm_epsilon", "f32"),
    Key("text_hidden_size", "projection_dim"),
)
"""Settings of every tower."""


class Tower(Joinable):
    """A vision tower; subclasses state what differs.

    Attributes
    ----------
    projector, projector_key
        GGUF's name of the projector, and the key that states it.
    rows
        The weights.
    more
        Layout -> rules for other layouts than GGUF.
    keys
        Settings with keys of GGUF.
    own_names
        Usual name of a setting -> its name in this tower's `vision_config`.
    outer
        Settings that config.json states outside of `vision_config`.
    unstated
        Settings that a config.json need not state.
    activations
        Value of `hidden_act` -> GGUF's key that is true for it, or none; the first is that of a tower that states none.
    fixed
        Settings that llama.cpp takes for granted, with the value for which it computes the tower.
    notes
        What llama.cpp computes otherwise, for reports.
    """

    projector: ClassVar[str]
    projector_key: ClassVar[str] = "clip.projector_type"
    rows: ClassVar[Sequence[Row]]
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    keys: ClassVar[Sequence[Key]] = SIZES
    own_names: ClassVar[Mapping[str, str]] = {}
    outer: ClassVar[Sequence[str]] = ()
    unstated: ClassVar[Mapping[str, Any]] = {}
    activations: ClassVar[Mapping[str, str]] = {"gelu_pytorch_tanh": "clip.use_gelu"}
    fixed: ClassVar[Mapping[str, Any]] = {}
    notes: ClassVar[Sequence[str]] = ()
    remainder = "not part of the vision tower"

    @cached_property
    def tensors(self) -> Sequence[FamilyTensor]:  # type: ignore[override]
        return tuple(tensor for row in self.rows for tensor in row.tensors())

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        return {"gguf": tuple(rule for row in self.rows for rule in row.rules()), **self.more}

    def settings(self, model: Model) -> dict[str, Any]:
        if model.layout == "gguf":
            return self._from_keys(model)
        config = self.spelled(model.config())
        stated, text = config.get("vision_config"), config.get("text_config", config)
        if not isinstance(stated, dict) or not isinstance(text, dict):
            raise FormatError(
                "has no vision_config, and the vision tower cannot be run without it",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected="an object with the sizes of the tower",
                found=type(stated).__name__,
            )
        outer = {name: config[name] for name in (*self.outer, *self.fixed) if name in config}
        settings = {**self.unstated, **stated, **outer, "text_hidden_size": text.get("hidden_size")}
        own = [evolve(key, hf=self.own_names[key.hf]) for key in self.keys if key.hf in self.own_names]
        check_settings(own, settings, VISION_CONFIG)
        settings |= {name: settings[own] for name, own in self.own_names.items() if own in settings}
        settings |= self.derived(settings, config)
        check_settings(self.keys, settings, VISION_CONFIG)
        return settings

    def derived(self, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings that follow from others of a config.json.

        Parameters
        ----------
        settings
            Those that `vision_config` states.
        config
            The content of config.json.

        Returns
        -------
        Mapping
            None by default.
        """
        return {}

    def spelled(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return config.json with the names of settings that other towers have.

        Parameters
        ----------
        config
            The content of config.json.

        Returns
        -------
        Mapping
            The same by default.
        """
        return config

    def _from_keys(self, model: Model) -> dict[str, Any]:
        values = {key.hf: model.value(f"{VISION}.{key.gguf}") for key in self.keys}
        settings = {name: value for name, value in values.items() if value is not None}
        check_settings(self.keys, settings, VISION)
        decimals = {key.hf for key in self.keys if key.type == "f32"}
        return {name: shortest(value) if name in decimals else value for name, value in settings.items()}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = {key.hf: settings[key.hf] for key in self.keys if key.type == "u32" and key.hf in settings}
        return {"channels": 3, **sizes, "layers": settings["num_hidden_layers"], "experts": 0}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        if layout == model.layout:
            return Carried(meta=model.meta)
        if layout != "gguf":
            raise FormatError(
                "is a vision tower without text layers, which a folder needs, too",
                file=model.name,
                code=ErrorCode.USAGE,
                hint="Convert the GGUF of the text layers, and name this file: {option:part=vision=FILE}.",
            )
        kept = self.kept(model) if options.get("keep") != "no" else {}
        meta = {**self._gguf_keys(model, settings), **kept}
        return Carried(meta=meta, storage=(*STORAGE, *kept), notes=tuple(self.notes))

    def _gguf_keys(self, model: Model, settings: Mapping[str, Any]) -> dict[str, Typed]:
        images = image_settings(model)
        arrays = {key: _normalization(images, name) for name, key in NORMALIZATION.items()}
        return {
            "general.architecture": Typed("str", ARCHITECTURE),
            "general.type": Typed("str", "mmproj"),
            "clip.has_vision_encoder": Typed("bool", True),
            self.projector_key: Typed("str", self.projector),
            **{key: Typed("bool", True) for key in [self._activation(settings)] if key},
            **gguf_keys(self.keys, VISION, settings),
            **arrays,
            **self.other_keys(settings, images),
            **{key: Typed("u32", value) for key, value in STORAGE.items()},
        }

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        """Return GGUF's keys that follow from several settings.

        Parameters
        ----------
        settings
            The result of `settings`.
        images
            The settings of the image processor.

        Returns
        -------
        Mapping
            None by default.
        """
        return {}

    def hidden_act(self, model: Model) -> str:
        """Return the activation that the keys of a GGUF state."""
        stated = (name for name, key in self.activations.items() if key and model.value(key))
        return next(stated, next(iter(self.activations)))

    def _activation(self, settings: Mapping[str, Any]) -> str:
        """Return the key of the activation; FormatError for settings with which llama.cpp computes something else."""
        stated = settings.get("hidden_act", next(iter(self.activations)))
        if not isinstance(stated, str) or stated not in self.activations:
            raise _not_computed(self.projector, "hidden_act", " or ".join(self.activations), stated)
        self.check_fixed(settings, self.fixed)
        return self.activations[stated]

    def check_fixed(self, settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        """Raise FormatError if a setting has another value than the one for which llama.cpp computes the tower.

        Parameters
        ----------
        settings
            The result of `settings`.
        fixed
            Values of settings; those that are not stated are right.
        """
        for name, value in fixed.items():
            if settings.get(name, value) != value:
                raise _not_computed(self.projector, name, value, settings[name])


def _not_computed(projector: str, name: str, expected: Any, found: Any) -> FormatError:
    return FormatError(
        f"has a value that llama.cpp does not compute for the projector {projector}",
        part=f"{VISION_CONFIG} {name}",
        code=ErrorCode.CONFIG,
        expected=str(expected),
        found=repr(found)[:60],
    )


def image_settings(model: Model) -> dict[str, Any]:
    """Return the settings of the image processor; FormatError if no file states them.

    Parameters
    ----------
    model
        A folder with a vision model.

    Returns
    -------
    dict
        Of both files that may state them.
    """
    settings: dict[str, Any] = {}
    for name in PREPROCESSORS:
        stated = model.config(name)
        nested = stated.get("image_processor", stated.get("media_proc_cfg"))
        settings |= stated | (nested if isinstance(nested, dict) else {})
    if not settings:
        raise FormatError(
            f"has no {PREPROCESSORS[0]}, which states how images are prepared",
            file=model.name,
            code=ErrorCode.CONFIG,
            expected=" or ".join(PREPROCESSORS),
            hint="Put the file of the published model into the folder, or name a folder that has it: "
            "{option:assets=FOLDER}.",
        )
    return settings


def image_number(images: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number in the settings of an image processor; FormatError if it is none.

    Parameters
    ----------
    images
        The result of `image_settings`, or a part of it.
    name, default
        The setting, and its value if it is absent.

    Returns
    -------
    int
    """
    value = images.get(name, default)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise FormatError(
            "is not a size",
            part=f"{PREPROCESSORS[0]} {name}",
            code=ErrorCode.CONFIG,
            expected="a positive integer",
            found=repr(value)[:60],
        )
    return value


def _normalization(images: Mapping[str, Any], name: str) -> Typed:
    values = images.get(name)
    if not isinstance(values, list) or len(values) != 3 or not all(type(each) in (int, float) for each in values):
        raise FormatError(
            "is missing" if values is None else "is not a value for each color",
            part=f"{PREPROCESSORS[0]} {name}",
            code=ErrorCode.CONFIG,
            expected="3 numbers",
            found=str(values)[:60],
        )
    return Typed("array:f32", np.array(values, np.float32))
