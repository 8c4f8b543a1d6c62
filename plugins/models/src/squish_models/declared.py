"""Families that TOML files declare, as classes: what declarations state beyond the attributes of other families."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from .config.gguf_defaults import LoadedKeys
from .config.spelling import FULL, SLIDING
from .family import TextModel
from .settings import CONFIG, MOST_BLOCKS

BEHIND = "layers_behind"
"""Among the settings of a GGUF: how many layers behind the last one it has, which are left out."""


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
        count = settings["num_hidden_layers"]
        if self.first or self.after:
            border = min(_size(settings, self.first or self.after), count)
            return range(border) if self.first else range(border, count)
        if self.when:
            return range(count) if settings.get(self.when) else ()
        stated = settings.get(self.setting)
        if not isinstance(stated, list) or len(stated) != count:
            raise FormatError(
                "does not give a value for each layer",
                part=f"{CONFIG} {self.setting}",
                code=ErrorCode.CONFIG,
                expected=f"a list of {count}",
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
        Setting with the number of layers behind the last one, which predict more tokens and are left out.
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
    rotary_setting: ClassVar[str] = ""
    unset: ClassVar[Sequence[str]] = ()
    rope_by_kind: ClassVar[bool] = False
    values: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        for name, spellings in self.values.items():
            settings[name] = spellings.get(str(settings.get(name)), settings.get(name))
        if kinds := self._kinds_of_pattern(settings):
            settings["layer_types"] = kinds
        return settings | self._rope_of_kinds(settings)

    def _kinds_of_pattern(self, settings: Mapping[str, Any]) -> list[str] | None:
        """The kinds of layers by `sliding_window_pattern`, where these are not the ones that llama.cpp assumes."""
        every, count = settings.get("sliding_window_pattern"), settings.get("num_hidden_layers")
        assumed = self.patterns.get("layer_types")
        if (
            assumed is None
            or settings.get("layer_types") is not None
            or type(every) is not int
            or type(count) is not int
        ):
            return None
        kinds = Pattern(max(every, 1), FULL, SLIDING).of(min(count, MOST_BLOCKS))
        return kinds if kinds != assumed.of(len(kinds)) else None

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
        return self.kinds[kind].of(settings) if kind in self.kinds else super().layers_of(kind, settings)

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        count = settings["num_hidden_layers"]
        lists: dict[str, Any] = {name: pattern.of(count) for name, pattern in self.patterns.items()}
        lists |= dict.fromkeys(self.unset)
        keyed = {key.hf for key in self.keys}
        return {name: value for name, value in {**super().implied(settings), **lists}.items() if name not in keyed}

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        first = settings["num_hidden_layers"]
        count = _size({self.predicting: 0, **settings}, self.predicting) if self.predicting else 0
        count = settings.get(BEHIND, count)
        more = [name for n in range(first, first + count) for name in (f"model.layers.{n}.*", f"blk.{n}.*")]
        return [*super().left_out(settings), *more]

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = {"rope_scaling": None, **super()._from_keys(model)}  # mlx-lm requires it of some
        if self.rope_by_kind and f"{self.architecture}.rope.freq_base_swa" not in model.meta:
            settings.pop("rope_local_base_freq", None)  # which follows from the other one
        if self.predicting:
            count = LoadedKeys(self.architecture, model.meta)["nextn_predict_layers"] or 0
            settings["num_hidden_layers"] -= count
            settings |= {self.predicting: 0, BEHIND: count}
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
