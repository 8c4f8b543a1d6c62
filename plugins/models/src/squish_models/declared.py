"""Families that TOML files declare, as classes: what declarations state beyond the attributes of other families."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from attrs import frozen
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from .config.gguf_defaults import LoadedKeys
from .config.spelling import BEHIND, FULL, SLIDING, all_layers
from .family import TextModel
from .settings import CONFIG, MOST_BLOCKS
from .tables import PREDICTING


@frozen
class Layers:
    """The layers of a kind: the `first` ones, as many as a setting says, those `after` them, all `when` a setting is
    true, or those for which the list in a setting has one of these values."""

    first: str = ""
    after: str = ""
    when: str = ""
    setting: str = ""
    values: tuple[Any, ...] = ()

    def of(self, settings: Mapping[str, Any]) -> Collection[int]:
        """The numbers of the layers."""
        count = all_layers(settings)
        if self.first or self.after:
            border = min(_size(settings, self.first or self.after), count)
            return range(border) if self.first else range(border, count)
        if self.when:
            return range(count) if settings.get(self.when) else ()
        stated = settings.get(self.setting)
        if not isinstance(stated, list) or len(stated) != settings["num_hidden_layers"]:
            raise FormatError(
                "does not give a value for each layer",
                part=f"{CONFIG} {self.setting}",
                code=ErrorCode.CONFIG,
                expected=f"a list of {settings['num_hidden_layers']}",
                found=str(stated)[:60],
            )
        return [layer for layer, value in enumerate(stated) if value in self.values]


@frozen
class Pattern:
    """A list with a value for each layer: `others`, and after each `every` layers `last`."""

    every: int
    last: Any
    others: Any

    def of(self, count: int) -> list[Any]:
        """The list for as many layers."""
        return [self.others if (layer + 1) % self.every else self.last for layer in range(count)]


_PREDICTING = re.compile(r"mtp\.layers\.(\d{1,9})\.")


class Declared(TextModel):
    """What declarations state beyond the attributes of `TextSettings`.

    Attributes
    ----------
    products
        Size -> the sizes and numbers whose product it is.
    kinds
        Kind of layers -> which layers they are.
    patterns
        Setting -> the list that llama.cpp assumes.
    presence
        Setting -> the GGUF tensor whose presence in a layer it states.
    predicting
        Setting with the number of layers behind the last one, which predict more tokens; a file may lack them. They
        are left out unless the family has rows of the kind "predicting".
    moves
        Prefix of names outside GGUF -> the family's, in which {m} is the number of a layer that predicts more tokens,
        {layers} the number of layers without these, and {layers+m} the sum.
    rotary_setting
        Setting with the number of rotated values of a head, if the family states it.
    unset
        Settings that no engine but Transformers reads, so that they must be null.
    rope_by_kind
        Whether layers with a window have a rotation of their own, which is never scaled.
    values
        Setting -> value in old files -> the value that engines read.
    """

    products: ClassVar[Mapping[str, Sequence[str]]] = {}
    kinds: ClassVar[Mapping[str, Layers]] = {}
    patterns: ClassVar[Mapping[str, Pattern]] = {}
    presence: ClassVar[Mapping[str, str]] = {}
    predicting: ClassVar[str] = ""
    moves: ClassVar[Mapping[str, str]] = {}
    rotary_setting: ClassVar[str] = ""
    unset: ClassVar[Sequence[str]] = ()
    rope_by_kind: ClassVar[bool] = False
    values: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled({**self.unstated, **config})
        for name, spellings in self.values.items():
            settings[name] = spellings.get(str(settings.get(name)), settings.get(name))
        return settings | self._rope_of_kinds(settings)

    def _rope_of_kinds(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The rotation of each kind of layers, without which Transformers takes its default in those with a window."""
        if not self.rope_by_kind:
            return {}
        theta, scaling = settings.get("rope_theta"), settings.get("rope_scaling")
        whole = {"rope_type": "default", **(scaling if isinstance(scaling, dict) else {}), "rope_theta": theta}
        local = {"rope_type": "default", "rope_theta": settings.get("rope_local_base_freq", theta)}
        return {"rope_parameters": {FULL: whole, SLIDING: local}} if theta is not None else {}

    def _rotary(self, settings: Mapping[str, Any]) -> int:
        return _size(settings, self.rotary_setting) if self.rotary_setting in settings else super()._rotary(settings)

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = super().sizes(settings)
        names = {name for row in self.rows for name in row.sizes()} - sizes.keys() - {"*"}
        for name in sorted(names):
            size = 1
            for factor in self.products.get(name, (name,)):
                size *= (
                    int(factor) if factor.isdigit() else sizes[factor] if factor in sizes else _size(settings, factor)
                )
            sizes[name] = size
        return sizes

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        if kind == PREDICTING:
            return range(settings["num_hidden_layers"], all_layers(settings))
        return self.kinds[kind].of(settings) if kind in self.kinds else super().layers_of(kind, settings)

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        count = settings["num_hidden_layers"]
        lists: dict[str, Any] = {name: pattern.of(count) for name, pattern in self.patterns.items()}
        lists |= dict.fromkeys(self.unset)
        keyed = {key.hf for key in self.keys}
        return {name: value for name, value in {**super().implied(settings), **lists}.items() if name not in keyed}

    def _maps_prediction(self) -> bool:
        return any(row.kind == PREDICTING for row in self.rows)

    @cached_property
    def extras(self) -> Collection[str]:  # type: ignore[override]
        return {tensor.name for row in self.rows if row.kind == PREDICTING for tensor in row.tensors()}

    def moved(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        first, count = settings["num_hidden_layers"], settings.get(BEHIND) or 0
        return {
            place.replace("{m}", str(m)): own.replace("{layers+m}", str(first + m)).replace("{layers}", str(first))
            for place, own in self.moves.items()
            for m in range(count if "{m}" in place else min(count, 1))
        }

    def _predicted(self, settings: Mapping[str, Any]) -> int:
        """The number of layers behind the last one that the settings state."""
        return _size({self.predicting: 0, **settings}, self.predicting) if settings.get(self.predicting) else 0

    def _behind(self, model: Model, settings: Mapping[str, Any], count: int) -> int:
        """How many of the layers behind the last one a file has: all that are stated, or none."""
        first = settings["num_hidden_layers"]
        names = [self.own_name(name) for name in model.tensors]
        if settings.get(self.predicting, count) is None:  # config.json does not state it
            count = 1 + max((int(each[1]) for name in names if (each := _PREDICTING.match(name))), default=-1)
        prefixes = (f"model.layers.{first}.", f"blk.{first}.", "mtp.")
        return count if any(name.startswith(prefixes) for name in names) else 0

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = super()._from_config(model)
        if not self._maps_prediction():
            return settings
        stated = {self.predicting: None, **settings}
        return {**settings, BEHIND: self._behind(model, stated, self._predicted(settings))}

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        if self._maps_prediction():
            return super().left_out(settings)
        first, count = settings["num_hidden_layers"], settings.get(BEHIND, self._predicted(settings))
        more = [name for n in range(first, first + count) for name in (f"model.layers.{n}.*", f"blk.{n}.*")]
        return [*super().left_out(settings), *more]

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = {"rope_scaling": None, **super()._from_keys(model)}  # mlx-lm requires it of some
        if self.rope_by_kind and f"{self.architecture}.rope.freq_base_swa" not in model.meta:
            settings.pop("rope_local_base_freq", None)  # which follows from the other one
        if self.predicting:
            count = LoadedKeys(self.architecture, model.meta)["nextn_predict_layers"] or 0
            settings["num_hidden_layers"] -= count
            if self._maps_prediction():
                count = self._behind(model, {**settings, self.predicting: count}, count)
            settings |= {self.predicting: count if self._maps_prediction() else 0, BEHIND: count}
        for setting, tensor in self.presence.items():
            settings[setting] = any(name.startswith("blk.") and name.endswith(f".{tensor}") for name in model.tensors)
        return settings | self._rope_of_kinds(settings)


def _size(settings: Mapping[str, Any], name: str) -> int:
    """The number in a setting; FormatError if it is none."""
    value = settings.get(name)
    if type(value) is not int or not 0 <= value < 1 << 32 or (name.startswith("num_") and value > MOST_BLOCKS):
        raise FormatError(
            f"has no {name}, and the model cannot be run without it" if value is None else "is not a size",
            part=CONFIG if value is None else f"{CONFIG} {name}",
            code=ErrorCode.CONFIG,
            expected="an integer from 0 to 4294967295",
            found=repr(value)[:60],
        )
    return value
