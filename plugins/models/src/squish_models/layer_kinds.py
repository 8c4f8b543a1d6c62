"""How the files of a family state the kind of each layer: a list, a text with a letter for each, numbers, or a period.

GGUF states it by lists of sizes, which are 0 in layers of other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from squish_core.api import ErrorCode, FormatError

from .settings import CONFIG, MOST_BLOCKS


@frozen
class LayerKinds:
    """How files state the kind of each layer.

    Attributes
    ----------
    names
        Kind -> its names in files. The first name is written. One kind has no list in `counts`.
    setting
        The setting with a list of names that is written, if any; where all names are letters, with a text.
    lists
        Other settings with such a list or text.
    numbers
        Setting with the numbers of the layers of a kind -> the kind; the other layers are of the first kind.
    periods
        Kind -> the settings with a period, and with the number of its first layer.
    counts
        Setting for GGUF with a list -> the setting with the size that it repeats in layers of a kind, and the kind.
    """

    names: Mapping[str, Sequence[str]]
    setting: str = ""
    lists: Sequence[str] = ()
    numbers: Mapping[str, str] = field(factory=dict)
    periods: Mapping[str, tuple[str, str]] = field(factory=dict)
    counts: Mapping[str, tuple[str, str]] = field(factory=dict)

    @property
    def first(self) -> str:
        """The kind of layers that nothing else states."""
        return next(iter(self.names))

    def of_config(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the kind of each layer that a config.json states; FormatError if it does not."""
        stated = [name for name in (self.setting, *self.lists) if name and settings.get(name) is not None]
        found = [self._of_list(name, settings[name], settings.get("num_hidden_layers")) for name in stated]
        if not found and type(count := settings.get("num_hidden_layers")) is int and 0 < count <= MOST_BLOCKS:
            found = self._of_numbers(settings, count)
        if not found:
            raise FormatError(
                "does not give a kind for each layer",
                part=f"{CONFIG} {self._place}",
                code=ErrorCode.CONFIG,
                expected=self._expected,
            )
        if other := next((name for name, kinds in zip(stated, found) if kinds != found[0]), None):
            raise FormatError(
                f"contradicts {stated[0]}",
                part=f"{CONFIG} {other}",
                code=ErrorCode.CONTRADICTION,
                expected=str(settings[stated[0]])[:60],
                found=str(settings[other])[:60],
            )
        return found[0]

    def spelled(self, settings: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
        """Return the settings that state these kinds: the list that is written, and GGUF's lists of sizes."""
        lists: dict[str, Any] = {
            name: [settings.get(size) if kind == own else 0 for kind in kinds]
            for name, (size, own) in self.counts.items()
        }
        if self.setting:
            words = [self.names[kind][0] for kind in kinds]
            lists[self.setting] = "".join(words) if all(len(name[0]) == 1 for name in self.names.values()) else words
        return lists

    def of_keys(self, settings: Mapping[str, Any], architecture: str) -> tuple[list[str], dict[str, Any]]:
        """Return the kind of each layer that GGUF's lists state, and the sizes that they repeat."""
        count = settings["num_hidden_layers"]
        kinds: list[str] = [self.first] * count
        sizes: dict[str, Any] = {}
        for name, (size, kind) in self.counts.items():
            stated = settings[name] * count if len(settings[name]) == 1 else settings[name]
            found = {each for each in stated if each}
            if len(stated) < count or len(found) > 1:
                raise FormatError(
                    f"has lists from which {size} does not follow",
                    part=architecture,
                    code=ErrorCode.CONFIG,
                    expected=f"0 or one other number for each of {count} layers",
                    found=f"{name} {stated}"[:60],
                )
            kinds = [kind if each else own for each, own in zip(stated, kinds)]
            sizes |= {size: found.pop()} if found else {}
        return kinds, sizes | self.periods_of(kinds)

    def _of_list(self, name: str, stated: Any, count: Any) -> list[str]:
        """Return the kinds for a list of names, or for a text of letters."""
        kinds = {each: kind for kind, names in self.names.items() for each in (*names, kind)}
        is_list = isinstance(stated, (list, str)) and (count is None or len(stated) == count)
        if not is_list or not stated or not all(isinstance(each, str) and each in kinds for each in stated):
            raise FormatError(
                "does not give a kind for each layer",
                part=f"{CONFIG} {name}",
                code=ErrorCode.CONFIG,
                expected=self._expected if count is None else f"{count} of {self._expected}",
                found=str(stated)[:60],
            )
        return [kinds[each] for each in stated]

    def _of_numbers(self, settings: Mapping[str, Any], count: int) -> list[list[str]]:
        """Return the kinds for lists of numbers, and for periods; nothing if there are none."""
        for name, kind in self.numbers.items():
            stated = settings.get(name)
            if isinstance(stated, list) and all(type(each) is int and 0 <= each < count for each in stated):
                return [[kind if layer in stated else self.first for layer in range(count)]]
        kinds, found = [self.first] * count, False
        for kind, names in self.periods.items():
            if all(settings.get(name) is None for name in names):
                continue
            period, start = (_number(settings, name) for name in names)
            if start >= period:
                raise _wrong(names[1], f"less than {names[0]}, {period}", start)
            found = True
            kinds = [kind if layer % period == start else own for layer, own in enumerate(kinds)]
        return [kinds] if found else []

    def periods_of(self, kinds: Sequence[str]) -> dict[str, int]:
        """Return the periods of kinds; those of a kind in one layer are as long as the model."""
        settings: dict[str, int] = {}
        for kind, (period, start) in self.periods.items():
            layers = [layer for layer, own in enumerate(kinds) if own == kind] or [len(kinds)]
            every = layers[1] - layers[0] if len(layers) > 1 else max(len(kinds), layers[0] + 1)
            settings |= {period: every, start: layers[0]}
            if layers[0] >= every or (layers != [*range(layers[0], len(kinds), every)] and layers[0] < len(kinds)):
                raise FormatError(
                    f"has layers in which no {period} expresses where the kind {kind} is",
                    part=f"{CONFIG} {period}",
                    code=ErrorCode.CONFIG,
                    expected="the same distance between all of them",
                    found=str(layers)[:60],
                )
        return settings

    @property
    def _place(self) -> str:
        return next(iter((self.setting, *self.lists, *self.numbers, *(p for p, _ in self.periods.values()))))

    @property
    def _expected(self) -> str:
        return " and ".join(names[0] for names in self.names.values())


def _number(settings: Mapping[str, Any], name: str) -> int:
    number = settings.get(name)
    if type(number) is not int or number < 0:
        raise _wrong(name, "an integer, at least 0", number)
    return number


def _wrong(name: str, expected: str, found: Any) -> FormatError:
    return FormatError(
        "does not give a kind for each layer",
        part=f"{CONFIG} {name}",
        code=ErrorCode.CONFIG,
        expected=expected,
        found=f"{type(found).__name__} {str(found)[:40]}",
    )
