"""Names of tensors against the templates of a family: which rule covers a name, and which tensors it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from squish_core.families.base import Expression, Family, Join, Rule, Stack

_NUMBER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,8})(?=\.)")
_HOLE = re.compile(r"\{(\w)\}")
Numbers = Mapping[str, int]
"""Placeholder -> number: `n` the layer, `e` the expert."""
Value = TypeVar("Value")


class Templates(dict[str, tuple[tuple[str, ...], Value]]):
    """Values by the template of a name, found without a search."""

    @classmethod
    def of(cls, items: Iterable[tuple[str, Value]]) -> Templates[Value]:
        """From pairs of template and value; the first of equal templates stands."""
        table: Templates[Value] = cls()
        for template, value in items:
            table.setdefault(_HOLE.sub("#", template), (tuple(_HOLE.findall(template)), value))
        return table

    def find(self, name: str) -> tuple[Value, dict[str, int]] | None:
        """The value of the template that a name has, and its numbers."""
        match = self.get(_NUMBER.sub("#", name))
        if match is None:
            return None
        holes, value = match
        return value, dict(zip(holes, map(int, _NUMBER.findall(name))))


def fill(template: str, numbers: Numbers) -> str:
    """A template with its numbers.

    >>> fill("blk.{n}.attn_q.weight", {"n": 3})
    'blk.3.attn_q.weight'
    """
    return _HOLE.sub(lambda hole: str(numbers[hole[1]]), template)


def leaves(expression: Expression) -> Iterator[str]:
    """Templates of the tensors that an expression is made of."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, Join):
        for part, _ in expression.of:
            yield from leaves(part)
    else:
        yield from leaves(expression.of)


def members(expression: Expression, numbers: Numbers, experts: int) -> Iterator[tuple[str, Numbers]]:
    """Full names of all tensors that an expression is made of, in its order, each with its numbers."""
    if isinstance(expression, str):
        yield fill(expression, numbers), numbers
    elif isinstance(expression, Stack):
        for expert in range(experts):
            yield from members(expression.of, {**numbers, "e": expert}, experts)
    elif isinstance(expression, Join):
        for part, _ in expression.of:
            yield from members(part, numbers, experts)
    else:
        yield from members(expression.of, numbers, experts)


def written_rules(family: Family, layout: str) -> Templates[Rule]:
    """Template of a family's tensor -> the rule by which a layout writes it; without one the name stays."""
    rules = [rule for rule in family.names.get(layout, ()) if not rule.reading]
    pairs = [(leaf, rule) for rule in rules for leaf in leaves(rule.of)]
    if layout == "gguf":
        return Templates.of(pairs)
    return Templates.of([*pairs, *((tensor.name, Rule(tensor.name, tensor.name)) for tensor in family.tensors)])


def read_rules(family: Family, gguf: bool) -> Templates[Rule]:
    """Template of a name -> the rule that covers it: of GGUF, or of all layouts with Hugging Face's names."""
    if gguf:
        return Templates.of((rule.name, rule) for rule in family.names.get("gguf", ()))
    rules = [rule for layout in ("hf", "mlx", "uqff") for rule in family.names.get(layout, ())]
    own = [Rule(tensor.name, tensor.name) for tensor in family.tensors]
    return Templates.of((rule.name, rule) for rule in (*own, *rules))


def engine_rules(family: Family, layout: str) -> Templates[Rule]:
    """Template of a name -> the rule that covers it, of the names that the engine of one layout reads."""
    rules = [(rule.name, rule) for rule in family.names.get(layout, ())]
    own = [] if layout == "gguf" else [(tensor.name, Rule(tensor.name, tensor.name)) for tensor in family.tensors]
    return Templates.of([*own, *rules])


def has_engine_names(family: Family, names: Iterable[str]) -> bool:
    """Whether a tensor has a name that MLX or UQFF gives it and that Hugging Face does not have."""
    templates = [tensor.name for tensor in family.tensors] + [rule.name for rule in family.names.get("hf", ())]
    own = Templates.of((template, None) for template in templates)
    engines = Templates.of((rule.name, None) for layout in ("mlx", "uqff") for rule in family.names.get(layout, ()))
    return any(own.find(name) is None and engines.find(name) is not None for name in names)
