"""The entries of a declaration's other tables, such as [sizes], [layers], [patterns], [pretokenizers] and [engines]."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from .declaration_file import Place
from .declared import OTHERS, Layers, Leading, Pattern, Switches
from .engines.needs import EngineNeeds
from .engines.requirements import ENGINES
from .layer_kinds import LayerKinds
from .tokenizer.pretokenizers import BY_NAME, Pretokenizer, pretokenizer_of

PRETOKENIZER = {
    "like": str, "steps": list, "ignore_merges": bool, "add_bos": bool, "add_sep": bool, "normalizer": str,
}  # fmt: skip
ENGINE = {"supported": bool, "required": list, "defaults": dict, "scalings": list, "pretokenizers": list}
"""Fields of an entry of these two tables, with their types."""


def read_products(place: Place, stated: Mapping[str, Any], table: str) -> dict[str, tuple[str, ...]]:
    """Settings and sizes that are products."""
    for name, factors in stated.items():
        if not isinstance(factors, list) or not all(type(each) in (int, str) for each in factors):
            raise place.error("is not a product", name, table, expected="a list of settings and numbers", found=factors)
    return {name: tuple(map(str, factors)) for name, factors in stated.items()}


def read_each(
    place: Place, stated: Mapping[str, Any], table: str, read: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Each entry of a table of tables, as an object."""
    entries = {}
    for name, value in stated.get(table, {}).items():
        try:
            entries[name] = read(value)
        except (TypeError, KeyError, ValueError, AttributeError):
            found = repr(value)[:80]
            raise place.error("is not valid", name, table, expected=read.__doc__, found=found) from None
    return entries


def read_layers(value: Mapping[str, Any]) -> Layers:
    """{ first = SETTING }, or after, when, unless; or { setting = SETTING, values = [...] }"""
    layers = Layers(**{**value, "values": tuple(value.get("values", ()))})
    if len({*value} - {"values"}) != 1 or bool(layers.setting) != bool(layers.values):
        raise ValueError
    return layers


def read_sizes_by_kind(value: Mapping[str, str]) -> Mapping[str, str]:
    """{ KIND = SETTING, others = SETTING }"""
    if OTHERS not in value or not all(isinstance(each, str) for each in value.values()):
        raise ValueError
    return value


def read_pattern(value: Mapping[str, Any]) -> Pattern | Leading:
    """{ every = NUMBER, last = VALUE, others = VALUE } or { first = SETTING, are = VALUE, others = VALUE }"""
    if isinstance(value.get("first"), str):
        return Leading(**value)
    pattern = Pattern(**value)
    if type(pattern.every) is not int or pattern.every < 1:
        raise ValueError
    return pattern


def read_layer_kinds(place: Place, stated: Mapping[str, Any]) -> LayerKinds:
    """How files state the kind of each layer."""
    types = {"names": dict, "setting": str, "lists": list, "numbers": dict, "periods": dict, "counts": dict}
    for field, value in stated.items():
        place.check_name(field, types, "field", field, "kinds")
        place.check_type(value, types[field], field, "kinds")
    names = stated.get("names", {})
    for kind, words in names.items():
        place.check_type(words, list, "names", "kinds")
        place.name(kind, "names", "kinds")
    for field in ("periods", "counts"):
        for pair in stated.get(field, {}).values():
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
                raise place.error("is not valid", field, "kinds", expected="lists of two texts", found=repr(pair)[:60])
    counted = [kind for _, kind in stated.get("counts", {}).values()]
    for field, kinds in {"numbers": stated.get("numbers", {}).values(), "periods": stated.get("periods", {}),
                         "counts": counted}.items():  # fmt: skip
        for kind in kinds:
            place.check_name(str(kind), names, "kind in names", field, "kinds")
    if not names or not any(stated.get(field) for field in ("setting", "lists", "numbers", "periods")):
        raise place.error("does not state the kinds", "names", "kinds", expected="names, and setting, lists or periods")
    return LayerKinds(**stated)


def read_switches(value: Mapping[str, Any]) -> Switches:
    """{ setting = SETTING, on = VALUE, off = VALUE }"""
    switches = Switches(**value)
    if not isinstance(switches.setting, str):
        raise ValueError
    return switches


def _fields(place: Place, value: Any, fields: Mapping[str, Any], key: str, table: str) -> dict[str, Any]:
    """The fields of an entry, each of its type."""
    stated = dict(place.check_type(value, dict, key, table))
    for field, item in stated.items():
        place.check_name(field, fields, "field of an entry", key, table)
        if field != "steps":
            place.check_type(item, fields[field], key, table)
    return stated


def read_pretokenizers(place: Place, stated: Mapping[str, Any]) -> tuple[Pretokenizer, ...]:
    """Pre-tokenizers by name: like another one, or with steps as in tokenizer.json."""
    own = []
    for name, value in stated.items():
        fields = _fields(place, value, PRETOKENIZER, place.name(name, name, "pretokenizers"), "pretokenizers")
        like, steps = fields.pop("like", None), fields.pop("steps", None)
        if like is not None:
            place.check_name(like, BY_NAME, "pre-tokenizer", name, "pretokenizers")
        if (like is None) == (steps is None) or (steps is not None and not _are_steps(steps)):
            expected = "like, or steps: a list of regexes and of objects with a type"
            raise place.error("is not valid", name, "pretokenizers", expected=expected, found=repr(steps or like)[:80])
        start = pretokenizer_of(name, steps) if like is None else evolve(BY_NAME[like], names=(name,))
        own.append(evolve(start, **fields))
    return tuple(own)


def _are_steps(steps: Any) -> bool:
    """Whether these are steps that tokenizer.json can state."""
    try:
        json.dumps(steps)
    except TypeError:  # a date
        return False
    objects = [step for step in steps if not isinstance(step, str)] if isinstance(steps, list) else [None]
    return all(isinstance(step, dict) and isinstance(step.get("type"), str) for step in objects)


def read_engines(place: Place, stated: Mapping[str, Any]) -> dict[str, EngineNeeds]:
    """What engines need of the family's models."""
    own = {}
    for engine, value in stated.items():
        place.check_name(engine, ENGINES, "name of an engine", engine, "engines")
        fields = _fields(place, value, ENGINE, engine, "engines")
        values: dict[str, Any] = {name: tuple(each) if type(each) is list else each for name, each in fields.items()}
        own[engine] = EngineNeeds(**values)
    return own
