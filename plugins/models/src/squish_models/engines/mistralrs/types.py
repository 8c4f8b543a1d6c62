"""Typed JSON, as serde reads it: a member has one type, and is required, optional, or has a default."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import field, frozen

from squish_core.api import LimitError

MOST = (1 << 64) - 1
MOST_BYTES, MOST_VALUES = 64 << 20, 4 << 20
"""Limits of the bytes and values of a file, the same as squish_core has for a model's files."""
Wrong = tuple[str, str]
"""The path of a member, and what is wrong with it."""


class Members(dict[str, Any]):
    """The members of an object, and the names that occur twice."""

    twice: frozenset[str] = frozenset()


class Kind(Protocol):
    """A type of a JSON value."""

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        """Yield what keeps the value from being read."""


def read_json(path: Path) -> Any:
    """Return a JSON document with `Members` for objects; raise ValueError for what serde does not read.

    Raise LimitError for a file that would need too much memory, which leaves its content unknown.
    """
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    values = sum(map(data.count, (b",", b"[", b"{"))) if len(data) <= MOST_BYTES else 0
    for code, count, most, unit in (("size", len(data), MOST_BYTES, "bytes"), ("count", values, MOST_VALUES, "values")):
        if count > most:
            raise LimitError(f"has too many {unit}", part=path.name, expected=f"at most {most}", code=code)
    document = json.loads(data.decode(), object_pairs_hook=_members, parse_constant=_refuse, parse_float=_finite)
    json.dumps(document, ensure_ascii=False).encode()  # refuses lone surrogates, as serde does
    return document


def _members(pairs: Sequence[tuple[str, Any]]) -> Members:
    members = Members(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        members.twice = frozenset(name for name, count in counts.items() if count > 1)
    return members


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text} is out of range")
    return value


@frozen
class Scalar:
    """A value without members."""

    expected: str
    check: Callable[[Any], bool]

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        if not self.check(value):
            yield where, f"is {json.dumps(value)[:40]}, not {self.expected}"


@frozen
class Maybe:
    """A value or null; a member of this type may be missing."""

    kind: Kind

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        if value is not None:
            yield from self.kind.problems(value, where)


@frozen
class ListOf:
    """A list of values of one type."""

    kind: Kind

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        if not isinstance(value, list):
            yield where, f"is {json.dumps(value)[:40]}, not a list"
            return
        for item in value:
            for _, message in self.kind.problems(item, where):
                yield where, f"has an item that {message}"
                return


@frozen
class MapOf:
    """An object whose members all have one type."""

    kind: Kind

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        if not isinstance(value, Mapping):
            yield where, f"is {json.dumps(value)[:40]}, not an object"
            return
        for name, item in value.items():
            yield from self.kind.problems(item, f"{where}.{name}")


@frozen
class Either:
    """A value of one of several types."""

    kinds: tuple[Kind, ...]
    expected: str

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        if all(any(kind.problems(value, where)) for kind in self.kinds):
            yield where, f"is {json.dumps(value)[:60]}, not {self.expected}"


@frozen
class Struct:
    """An object: the types of the members that are read, and the defaults of those that may be missing."""

    fields: Mapping[str, Kind]
    defaults: Mapping[str, Any] = field(factory=dict)
    aliases: Mapping[str, str] = field(factory=dict)

    def problems(self, value: Any, where: str) -> Iterator[Wrong]:
        if not isinstance(value, Mapping):
            yield where, f"is {json.dumps(value)[:40]}, not an object"
            return
        start = f"{where}." if where else ""
        twice = value.twice if isinstance(value, Members) else frozenset()
        for name, kind in self.fields.items():
            names = [each for each in (name, *self._others(name)) if each in value]
            if len(names) > 1 or twice.intersection(names):
                yield start + name, "is there twice"
            elif names:
                yield from kind.problems(value[names[0]], start + names[0])
            elif name not in self.defaults and not isinstance(kind, Maybe):
                yield start + name, "is missing"

    def _others(self, name: str) -> list[str]:
        return [alias for alias, target in self.aliases.items() if target == name]

    def read(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members that are read, with defaults for missing ones."""
        members = {self.aliases.get(name, name): each for name, each in value.items()}
        return {name: members.get(name, self.defaults.get(name)) for name in self.fields}


def choice(*names: str) -> Scalar:
    """Return the type of a string that is one of several names."""
    return Scalar(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


SIZE = Scalar("a whole number from 0", lambda value: _is_whole(value, MOST))
U32 = Scalar("a whole number of 32 bits", lambda value: _is_whole(value, (1 << 32) - 1))
NUMBER = Scalar("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
SWITCH = Scalar("true or false", lambda value: isinstance(value, bool))
TEXT = Scalar("a text", lambda value: isinstance(value, str))
