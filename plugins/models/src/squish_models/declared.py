"""Families that TOML files declare, as classes: what declarations state beyond the attributes of other families."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from attrs import frozen
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from .config.gguf_defaults import LoadedKeys
from .config.spelling import BEHIND, FULL, SLIDING, all_layers
from .config.values import check_spellings
from .family import TextModel
from .layer_kinds import LayerKinds
from .predicting import joined_layers
from .settings import CONFIG, INEXPRESSIBLE, LEFT_OUT, MOST_BLOCKS
from .tables import PREDICTING

KINDS = "kinds_of_layers"
"""Among the settings: the kind of each layer, if the family states `by_layer`."""
WINDOW_LAYERS = "window_layers"
"""The setting with a switch for each layer, on if it attends to a window, as the list `layer_types` says."""
OTHERS = "others"
"""In `by_kind`, stands for the kinds of layers that are not named, or whose setting is null."""


@frozen
class Layers:
    """The layers of a kind: the `first` ones, as many as a setting says, those `after` them, all `when` a setting is
    true or `unless` it is, or those for which the list in a setting has one of these values."""

    first: str = ""
    after: str = ""
    when: str = ""
    unless: str = ""
    setting: str = ""
    values: tuple[Any, ...] = ()

    def of(self, settings: Mapping[str, Any]) -> Collection[int]:
        """The numbers of the layers."""
        count = all_layers(settings)
        if self.first or self.after:
            border = min(_size(settings, self.first or self.after), count)
            return range(border) if self.first else range(border, count)
        if self.when or self.unless:
            return range(count) if bool(settings.get(self.when or self.unless)) == bool(self.when) else ()
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

    def of(self, settings: Mapping[str, Any]) -> list[Any]:
        """The list for these settings."""
        count = settings["num_hidden_layers"]
        return [self.others if (layer + 1) % self.every else self.last for layer in range(count)]


@frozen
class Leading:
    """A list with a value for each layer: the first ones, as many as a setting says, and `others`."""

    first: str
    are: Any
    others: Any

    def of(self, settings: Mapping[str, Any]) -> list[Any]:
        """The list for these settings."""
        border, count = _size(settings, self.first), settings["num_hidden_layers"]
        return [self.are if layer < border else self.others for layer in range(count)]


@frozen
class Switches:
    """A setting of GGUF that is on or off in each layer, from the list in a setting of config.json."""

    setting: str
    on: Any
    off: Any

    def of(self, values: Any, count: int) -> list[bool]:
        """Whether it is on in each layer; FormatError if the list is not one of both values for each layer."""
        if (
            not isinstance(values, list)
            or len(values) != count
            or any(each not in (self.on, self.off) for each in values)
        ):
            raise FormatError(
                "does not say for each layer which kind it is",
                part=f"{CONFIG} {self.setting}",
                code=ErrorCode.CONFIG,
                expected=f"a list of {count}, each {self.on!r} or {self.off!r}",
                found=str(values)[:60],
            )
        return [each == self.on for each in values]

    def listed(self, switches: Sequence[bool]) -> list[Any]:
        """The list for switches."""
        return [self.on if each else self.off for each in switches]


_PREDICTING = re.compile(r"(mtp\.layers|blk)\.(\d{1,9})\.")


class Declared(TextModel):
    """What declarations state beyond the attributes of `TextSettings`.

    Attributes
    ----------
    products
        Size -> the sizes and numbers whose product it is.
    kinds
        Kind of layers -> which layers they are.
    by_layer
        How files state one kind for each layer, if they do.
    patterns
        Setting -> the list that llama.cpp assumes.
    switches
        Setting that is a key of GGUF, on or off in each layer -> the list in config.json; without one, that of
        `patterns`.
    presence
        Setting -> the GGUF tensor whose presence in a layer it states; its absence after "!".
    predicting
        Setting with the number of layers behind the last one, which predict more tokens; a file may lack them. They
        are left out unless the family has rows of the kind "predicting".
    moves
        Prefix of names outside GGUF -> the family's, in which {m} is the number of a layer that predicts more tokens,
        {layers} the number of layers without these, and {layers+m} the sum.
    rotary_setting
        Setting with the number of rotated values of a head, if the family states it.
    more_left_out
        Patterns of tensors that are left out, too.
    unset
        Settings that no engine but Transformers reads, so that they must be null.
    rope_by_kind
        Whether layers with a window have a rotation of their own, which is never scaled.
    notes
        Layout -> what its engine does otherwise.
    values
        Setting -> value in old files -> the value that engines read.
    equivalents
        Setting -> another value -> the value of `fixed` that llama.cpp computes with instead, almost the same.
    aliases
        Usual name of a setting -> its names in this family's config.json; the first one is written.
    computed
        Setting -> the settings and numbers whose product it is if config.json does not state it.
    nested
        Object in config.json -> its settings.
    by_kind
        Setting with a size for each layer -> kind of layers -> the setting with their size.
    """

    products: ClassVar[Mapping[str, Sequence[str]]] = {}
    kinds: ClassVar[Mapping[str, Layers]] = {}
    by_layer: ClassVar[LayerKinds | None] = None
    patterns: ClassVar[Mapping[str, Pattern | Leading]] = {}
    switches: ClassVar[Mapping[str, Switches]] = {}
    presence: ClassVar[Mapping[str, str]] = {}
    predicting: ClassVar[str] = ""
    moves: ClassVar[Mapping[str, str]] = {}
    rotary_setting: ClassVar[str] = ""
    more_left_out: ClassVar[Sequence[str]] = ()
    unset: ClassVar[Sequence[str]] = ()
    rope_by_kind: ClassVar[bool] = False
    notes: ClassVar[Mapping[str, str]] = {}
    values: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    equivalents: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    aliases: ClassVar[Mapping[str, Sequence[str]]] = {}
    computed: ClassVar[Mapping[str, Sequence[str]]] = {}
    nested: ClassVar[Mapping[str, Sequence[str]]] = {}

    def usual(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        usual = super().usual(settings)
        for name, spellings in self.aliases.items():
            value = next((settings[each] for each in (*spellings, name) if settings.get(each) is not None), None)
            if value is not None:
                usual |= {name: value, spellings[0]: value}
        for name, factors in self.computed.items():
            if usual.get(name) is None and all(each.isdigit() or type(usual.get(each)) is int for each in factors):
                value = prod(int(each) if each.isdigit() else usual[each] for each in factors)
                usual |= dict.fromkeys((name, *self.aliases.get(name, ())[:1]), value)
        return usual

    @property
    def implicit(self) -> Collection[str]:
        """The settings that follow from others, or are equal for all models: config.json does not have them."""
        inner = {name for names in self.nested.values() for name in names}
        return ({*self.unstated, *self.computed} & {*self.derived}) - inner - {*self.aliases}

    by_kind: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        check_spellings(config, self.aliases)
        objects = [(config.get(place), names) for place, names in self.nested.items()]
        inner = {
            name: each[name] for each, names in objects if isinstance(each, dict) for name in names if name in each
        }
        stated = {name: value for name, value in config.items() if name not in self.implicit}
        settings = super().spelled({**self.unstated, **stated, **inner})
        for name, spellings in self.values.items():
            settings[name] = spellings.get(str(settings.get(name)), settings.get(name))
        if self.by_layer is not None:
            kinds = self.by_layer.of_config(settings)
            settings |= {"num_hidden_layers": len(kinds), KINDS: kinds, **self.by_layer.spelled(settings, kinds)}
        for name, value in self.unstated.items():
            if isinstance(value, Mapping) and settings.get(name) in (None, value):
                settings[name] = settings.get(value["setting"])
        if types := self._kinds_of_pattern(settings):
            settings["layer_types"] = types
        settings |= self._switched(settings) | self._multiplied(settings) | self._listed(settings)
        return settings | self._rope_of_kinds(settings)

    def _kinds_of_pattern(self, settings: Mapping[str, Any]) -> list[str] | None:
        """The kinds of layers by `sliding_window_pattern`, where these are not the ones that llama.cpp assumes."""
        every, count = settings.get("sliding_window_pattern"), settings.get("num_hidden_layers")
        assumed = self.patterns.get("layer_types")
        if type(every) is not int or type(count) is not int or count > MOST_BLOCKS:
            return None
        if assumed is None or settings.get("layer_types") is not None:
            return None
        kinds = Pattern(max(every, 1), FULL, SLIDING).of(settings)
        return kinds if kinds != assumed.of(settings) else None

    def _switched(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The lists of config.json, and what they say as switches."""
        count, own = settings.get("num_hidden_layers"), dict[str, Any]()
        if type(count) is not int or count > MOST_BLOCKS:  # which is refused later
            return own
        for name, switches in self.switches.items():
            values, pattern = settings.get(switches.setting), self.patterns.get(switches.setting)
            if values is None and pattern is not None:
                values = own[switches.setting] = pattern.of(settings)
            own[name] = switches.of(values, count)
        return own

    def _multiplied(self, settings: Mapping[str, Any]) -> dict[str, int]:
        """The products that are keys of GGUF, of settings that are there."""
        keyed = {key.hf for key in self.keys}
        return {
            name: prod(int(each) if each.isdigit() else _size(settings, each) for each in factors)
            for name, factors in self.products.items()
            if name in keyed and all(each.isdigit() or settings.get(each) is not None for each in factors)
        }

    def _listed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The windows and the sizes of each layer, as the list of kinds says."""
        listed: dict[str, Any] = {}
        if self._lists_windows:
            listed[WINDOW_LAYERS] = [kind == SLIDING for kind in layer_types(settings)]
        for name, kinds in self.by_kind.items():
            each = {kind: settings.get(own) for kind, own in kinds.items()}
            sizes = [each[OTHERS] if each.get(kind) is None else each[kind] for kind in layer_types(settings)]
            listed[name] = sizes if len({*map(repr, sizes)}) > 1 else each[OTHERS] if not sizes else sizes[0]
        return listed

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

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        return super().layer_kinds(settings) if self.by_layer is None else settings[KINDS]

    def _factor(self, settings: Mapping[str, Any], name: str) -> int | list[int]:
        """A number, or the size in a setting: for each layer, if it differs."""
        if name in self.by_kind and isinstance(settings[name], list):
            return [_size({name: size}, name) for size in settings[name]]
        return int(name) if name.isdigit() else _size(settings, name)

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        if kind == PREDICTING:
            return range(settings["num_hidden_layers"], all_layers(settings))
        return self.kinds[kind].of(settings) if kind in self.kinds else super().layers_of(kind, settings)

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        lists: dict[str, Any] = {name: pattern.of(settings) for name, pattern in self.patterns.items()}
        lists |= dict.fromkeys(self.unset)
        if self.rope_by_kind and settings.get("rope_theta") is not None:  # without a key, one base for all layers
            lists["rope_local_base_freq"] = settings["rope_theta"]
        keyed = {*(key.hf for key in self.keys), *(each.setting for each in self.switches.values())}
        return {name: value for name, value in {**super().implied(settings), **lists}.items() if name not in keyed}

    def ignored(self, settings: Mapping[str, Any], layout: str) -> tuple[str, ...]:
        own = (self.notes[layout],) if layout in self.notes else ()
        return (*super().ignored(settings, layout), *own)

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        own = {name: values.get(str(settings.get(name))) for name, values in self.equivalents.items()}
        super().check_for_gguf({**settings, **{name: value for name, value in own.items() if value is not None}})

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

    def behind(self, settings: Mapping[str, Any]) -> Collection[str]:
        first = settings["num_hidden_layers"]
        return [f"model.layers.{n}.*" for n in range(first, all_layers(settings))] if self._maps_prediction() else []

    def with_behind(self, model: Model, other: Model) -> tuple[Mapping[str, Any], Collection[str]]:
        return joined_layers(self, model, other) if self._maps_prediction() else super().with_behind(model, other)

    def _predicted(self, settings: Mapping[str, Any]) -> int:
        """The number of layers behind the last one that the settings state."""
        return _size({self.predicting: 0, **settings}, self.predicting) if settings.get(self.predicting) else 0

    def _behind(self, model: Model, settings: Mapping[str, Any], count: int) -> int:
        """How many of the layers behind the last one a file has: all that are stated, or none."""
        first = settings["num_hidden_layers"]
        names = [self.own_name(name) for name in model.tensors]
        if settings.get(self.predicting, count) is None:  # config.json does not state it
            found = (each for name in names if (each := _PREDICTING.match(name)))
            count = 1 + max((int(each[2]) - (first if each[1] == "blk" else 0) for each in found), default=-1)
        prefixes = (f"model.layers.{first}.", f"blk.{first}.", "mtp.")
        return count if any(name.startswith(prefixes) for name in names) else 0

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = super()._from_config(model)
        if not self._maps_prediction():
            return settings
        stated = {self.predicting: None, **settings}
        return {**settings, BEHIND: self._behind(model, stated, self._predicted(settings))}

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        patterns = [*super().left_out(settings), *self.more_left_out]
        if self._maps_prediction():
            return patterns
        first, count = settings["num_hidden_layers"], settings.get(LEFT_OUT, self._predicted(settings))
        numbers = range(first, first + count)
        return [*patterns, *(name for n in numbers for name in (f"model.layers.{n}.*", f"blk.{n}.*"))]

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = {"rope_scaling": None, **super()._from_keys(model)}  # mlx-lm requires it of some
        stated = f"{self.architecture}.rope.freq_base_swa" in model.meta
        stated |= all(key.hf != "rope_local_base_freq" for key in self.keys)
        if self.rope_by_kind and not stated and settings.get("rope_local_base_freq") == settings["rope_theta"]:
            settings.pop("rope_local_base_freq")  # which follows from the other one
        settings |= self._of_kinds(settings)
        if self.predicting:
            count = LoadedKeys(self.architecture, model.meta)["nextn_predict_layers"] or 0
            if count >= max(settings["num_hidden_layers"], 1):
                raise FormatError(
                    "leaves no layer before those that predict more tokens",
                    part=f"{self.architecture}.nextn_predict_layers",
                    code=ErrorCode.CONTRADICTION,
                    expected=f"less than the {settings['num_hidden_layers']} of block_count",
                    found=count,
                )
            settings["num_hidden_layers"] -= count
            if self._maps_prediction():
                count = self._behind(model, {**settings, self.predicting: count}, count)
                settings |= {self.predicting: count, BEHIND: count}
            else:
                settings |= {self.predicting: 0, BEHIND: 0, LEFT_OUT: count}
                listed = {name: settings.get(name) for name in ("layer_types", *self._by_layer())}
                settings |= {
                    name: values[: settings["num_hidden_layers"]]
                    for name, values in listed.items()
                    if isinstance(values, list)
                }
        if self.by_layer is not None:
            kinds, sizes = self.by_layer.of_keys(settings, self.architecture)
            settings |= {KINDS: kinds, **sizes}
            settings |= self.by_layer.spelled(settings, kinds)
        for name, switches in self.switches.items():
            settings[switches.setting] = switches.listed(settings[name])
        for name, product in self._multiplied(settings).items():
            if settings.setdefault(name, product) != product:
                raise FormatError(
                    "contradicts other keys",
                    part=next(f"{self.architecture}.{key.gguf}" for key in self.keys if key.hf == name),
                    code=ErrorCode.CONTRADICTION,
                    expected=f"{product}, the product of {' and '.join(self.products[name])}",
                    found=settings[name],
                )
        for setting, tensor in self.presence.items():
            suffix = f".{tensor.removeprefix('!')}"
            is_there = any(name.startswith("blk.") and name.endswith(suffix) for name in model.tensors)
            settings[setting] = is_there != tensor.startswith("!")
        for name, value in self.unstated.items():
            number = settings.get(name)
            if type(value) is int and type(number) is float and number.is_integer():
                settings[name] = int(number)
        for place, names in self.nested.items():
            settings[place] = {name: settings[name] for name in names if settings.get(name) is not None}
        settings = self.usual(settings)
        return settings | self._rope_of_kinds(settings) | self._computed_keys(settings)

    def _by_layer(self) -> Collection[str]:
        """The settings in GGUF's keys with a value for each layer."""
        return {*self.switches, *self.by_kind, WINDOW_LAYERS}

    def _computed_keys(self, settings: Mapping[str, Any]) -> dict[str, FormatError]:
        """An error about a key whose setting config.json does not have, with another value than models have."""
        for key in self.keys:
            others = {name: value for name, value in settings.items() if name != key.hf}
            expected = self.usual({**self.unstated, **others}).get(key.hf)
            if key.hf in self.implicit and settings.get(key.hf, expected) != expected:
                return {INEXPRESSIBLE: self._inexpressible(key.gguf, expected=expected, found=settings[key.hf])}
        return {}

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
                        part=self._place(name, "gguf"),
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
                part=self._place(name, "gguf"),
                code=ErrorCode.CONTRADICTION,
                expected=f"{count} values",
                found=len(values),
            )
        return values


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
