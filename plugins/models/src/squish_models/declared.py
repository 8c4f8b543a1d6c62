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

WINDOW_LAYERS = "window_layers"
"""The setting with a switch for each layer, on if it attends to a window, as the list `layer_types` says."""
OTHERS = "others"
"""In `by_kind`, stands for the kinds of layers that are not named, or whose setting is null."""
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
    by_kind
        Setting with a size for each layer -> kind of layers -> the setting with their size.
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
    by_kind: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled({**self.unstated, **config})
        for name, spellings in self.values.items():
            settings[name] = spellings.get(str(settings.get(name)), settings.get(name))
        if self._lists_windows:
            settings[WINDOW_LAYERS] = [kind == SLIDING for kind in layer_types(settings)]
        for name, kinds in self.by_kind.items():
            each = {kind: settings.get(own) for kind, own in kinds.items()}
            sizes = [each[OTHERS] if each.get(kind) is None else each[kind] for kind in layer_types(settings)]
            settings[name] = sizes if len({*map(repr, sizes)}) > 1 else each[OTHERS] if not sizes else sizes[0]
        return settings | self._rope_of_kinds(settings)

    @property
    def _lists_windows(self) -> bool:
        return any(key.hf == WINDOW_LAYERS for key in self.keys)

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

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        sizes = super().sizes(settings)
        names = {name for row in self.rows for name in row.sizes()} - sizes.keys() - {"*"}
        for name in sorted(names | self.products.keys()):
            size: int | list[int] = 1
            for factor in self.products.get(name, (name,)):
                is_size = factor in sizes and factor != name
                size = _times(size, sizes[factor] if is_size else self._factor(settings, factor))
            sizes[name] = size
        return sizes

    def _factor(self, settings: Mapping[str, Any], name: str) -> int | list[int]:
        """A number, or the size in a setting: for each layer, if it differs."""
        if name in self.by_kind and isinstance(settings[name], list):
            return [_size({name: size}, name) for size in settings[name]]
        return int(name) if name.isdigit() else _size(settings, name)

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
        stated = f"{self.architecture}.rope.freq_base_swa" in model.meta
        if self.rope_by_kind and not stated and settings.get("rope_local_base_freq") == settings["rope_theta"]:
            settings.pop("rope_local_base_freq")  # which follows from the other one
        settings |= self._of_kinds(settings)
        if self.predicting:
            count = LoadedKeys(self.architecture, model.meta)["nextn_predict_layers"] or 0
            settings["num_hidden_layers"] -= count
            settings |= {self.predicting: 0, BEHIND: count}
        for setting, tensor in self.presence.items():
            settings[setting] = any(name.startswith("blk.") and name.endswith(f".{tensor}") for name in model.tensors)
        return settings | self._rope_of_kinds(settings)

    def _of_kinds(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The kinds of layers, and the sizes of each kind, in the keys of a GGUF."""
        if not self._lists_windows:
            return {}
        count = settings["num_hidden_layers"]
        kinds = [SLIDING if window else FULL for window in self._of_layers(settings, WINDOW_LAYERS)]
        found: dict[str, Any] = {"layer_types": kinds}
        for name, own in self.by_kind.items():
            sizes = self._of_layers(settings, name)
            for kind in dict.fromkeys(kinds):
                of_kind = {size for size, each in zip(sizes, kinds) if each == kind}
                if len(of_kind) > 1:
                    raise FormatError(
                        "differs between layers of one kind, which no config.json expresses",
                        part=self._place(name),
                        code=ErrorCode.CONFIG,
                        expected=f"one number for all layers with {kind}",
                        found=str(sorted(of_kind))[:60],
                    )
                found[own.get(kind, own[OTHERS])] = of_kind.pop()
            found.setdefault(own[OTHERS], sizes[0] if count else 0)
        return found

    def _of_layers(self, settings: Mapping[str, Any], name: str) -> list[Any]:
        """The value of each layer in a setting; FormatError for a list of another length."""
        value, count = settings[name], settings["num_hidden_layers"]
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise FormatError(
                "does not give a value for each layer",
                part=self._place(name),
                code=ErrorCode.CONTRADICTION,
                expected=f"{count} values",
                found=len(values),
            )
        return values

    def _place(self, name: str) -> str:
        """The GGUF key of a setting."""
        return f"{self.architecture}.{next(key.gguf for key in self.keys if key.hf == name)}"


def layer_types(settings: Mapping[str, Any], legal: Collection[str] = (FULL, SLIDING)) -> list[str]:
    """The kind of each layer in config.json; FormatError for another list."""
    kinds, count = settings.get("layer_types"), settings.get("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in legal for kind in kinds):
        raise FormatError(
            "does not give a kind for each layer",
            part=f"{CONFIG} layer_types",
            code=ErrorCode.CONFIG,
            expected=f"{count} of {' and '.join(legal)}",
            found=str(kinds)[:60],
        )
    return kinds


def _times(one: int | list[int], other: int | list[int]) -> int | list[int]:
    """The product of two sizes, for each layer if one of them is."""
    if isinstance(one, list):
        return [size * factor for size, factor in zip(one, other if isinstance(other, list) else [other] * len(one))]
    return [one * size for size in other] if isinstance(other, list) else one * other


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
