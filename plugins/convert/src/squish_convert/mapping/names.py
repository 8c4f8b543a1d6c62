"""Tensor names and name templates of a family: which rule covers a name, and which tensors it contains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from ..expressions import Expression, Interleave, Join, Stack, source_names
from ..families import GGUF, HF, MLX, UQFF, Family, Rule

_NUMBER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,8})(?=\.)")
_HOLE = re.compile(r"\{(\w)\}")
_PLACE = re.compile(rf"{_HOLE.pattern}|{_NUMBER.pattern}")
Numbers = Mapping[str, int]
"""Placeholder -> number: `n` the layer, `e` the expert."""
Value = TypeVar("Value")


class Templates(dict[str, tuple[tuple[str, ...], Value]]):
    """Values by name template, looked up in constant time; `others` are the later values of equal templates.

    A value lies beside the places of numbers in its template: the placeholder there, or the template's own number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[str, list[tuple[tuple[str, ...], Value]]] = {}

    @classmethod
    def of(cls, items: Iterable[tuple[str, Value]]) -> Templates[Value]:
        """Build from pairs of template and value; the first of equal templates wins unless `find` refuses it."""
        table: Templates[Value] = cls()
        for template, value in items:
            places = tuple(hole or number for hole, number in _PLACE.findall(template))
            key, entry = _PLACE.sub("#", template), (places, value)
            if table.setdefault(key, entry) != entry:
                table.others.setdefault(key, []).append(entry)
        return table

    def find(
        self, name: str, fits: Callable[[Value, Numbers], bool] | None = None
    ) -> tuple[Value, dict[str, int]] | None:
        """Return the value of the template that matches a name, and the numbers in the name.

        Of the values of equal templates, the first that `fits`, or the first.
        """
        found = self.find_all(name)
        fitting = (each for each in found if fits is not None and fits(*each))
        return next(fitting, found[0]) if len(found) > 1 else next(iter(found), None)

    def find_all(self, name: str) -> list[tuple[Value, dict[str, int]]]:
        """Return the values of all templates that match a name, and the numbers in the name.

        >>> [value for value, _ in Templates.of([("h.{n}.0.w", 1), ("h.{n}.1.w", 2)]).find_all("h.5.1.w")]
        [2]
        """
        key = _NUMBER.sub("#", name)
        if key not in self:
            return []
        found = []
        for places, value in (self[key], *self.others.get(key, ())):
            pairs = [*zip(places, _NUMBER.findall(name))]
            if all(place == number for place, number in pairs if place.isdigit()):
                found.append((value, {place: int(number) for place, number in pairs if not place.isdigit()}))
        return found


def fill(template: str, numbers: Numbers) -> str:
    """Fill numbers into a template.

    >>> fill("blk.{n}.attn_q.weight", {"n": 3})
    'blk.3.attn_q.weight'
    """
    return _HOLE.sub(lambda hole: str(numbers[hole[1]]), template)


def members(expression: Expression, numbers: Numbers, experts: int) -> Iterator[tuple[str, Numbers]]:
    """Full names of all tensors in an expression, in order, each with its numbers."""
    if isinstance(expression, str):
        yield fill(expression, numbers), numbers
    elif isinstance(expression, Stack):
        for expert in range(experts):
            yield from members(expression.of, {**numbers, "e": expert}, experts)
    elif isinstance(expression, Join | Interleave):
        for part, _ in expression.of:
            yield from members(part, numbers, experts)
    else:
        yield from members(expression.of, numbers, experts)


def replaced(name: str, prefixes: Mapping[str, str]) -> str:
    """Replace the longest of the prefixes that a name has.

    >>> replaced("mtp.fc.weight", {"mtp.": "a.", "mtp.fc.": "model.layers.4.eh_proj."})
    'model.layers.4.eh_proj.weight'
    """
    prefix = max((each for each in prefixes if name.startswith(each)), key=len, default="")
    return prefixes[prefix] + name.removeprefix(prefix) if prefix else name


def target_rules(family: Family, layout: str) -> Templates[Rule]:
    """Template of a family tensor -> the rule that writes it in a layout; a tensor without a rule keeps its name."""
    rules = [rule for rule in family.names.get(layout, ()) if not rule.reading]
    pairs = [(leaf, rule) for rule in rules for leaf in source_names(rule.of)]
    if layout == GGUF:
        return Templates.of(pairs)
    return Templates.of([*pairs, *((tensor.name, Rule(tensor.name, tensor.name)) for tensor in family.tensors)])


def source_rules(family: Family, gguf: bool) -> Templates[Rule]:
    """Template of a source name -> the rule that covers it: of GGUF, or of all layouts with Hugging Face names."""
    if gguf:
        return Templates.of((rule.name, rule) for rule in family.names.get(GGUF, ()))
    rules = [rule for layout in (HF, MLX, UQFF) for rule in family.names.get(layout, ())]
    own = [Rule(tensor.name, tensor.name) for tensor in family.tensors]
    return Templates.of((rule.name, rule) for rule in (*own, *rules))


def engine_rules(family: Family, layout: str) -> Templates[Rule]:
    """Template of a name that a layout's engine reads -> the rule that covers it."""
    rules = [(rule.name, rule) for rule in family.names.get(layout, ())]
    if layout == GGUF:
        return Templates.of(rules)
    names = _hf_names(family) if layout == HF else [tensor.name for tensor in family.tensors]
    return Templates.of([*((name, Rule(name, name)) for name in names), *rules])


def has_engine_names(family: Family, names: Iterable[str]) -> bool:
    """Return whether any name occurs in MLX or UQFF but not in Hugging Face's layout."""
    templates = [*_hf_names(family), *(rule.name for rule in family.names.get(HF, ()))]
    own = Templates.of((template, None) for template in templates)
    others = [rule.name for layout in (MLX, UQFF) for rule in family.names.get(layout, ())]
    engines = Templates.of((name, None) for name in (*others, *(tensor.name for tensor in family.tensors)))
    return any(own.find(name) is None and engines.find(name) is not None for name in map(family.own_name, names))


def _hf_names(family: Family) -> list[str]:
    """Return the tensors that Hugging Face stores under the family's names, not merged into others."""
    merged = {leaf for rule in family.names.get(HF, ()) if not rule.reading for leaf in source_names(rule.of)}
    return [tensor.name for tensor in family.tensors if tensor.name not in merged]
