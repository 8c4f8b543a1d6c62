"""Records of the registry: declarations with their distributions, broken plugins, and settings.

If several distributions claim an id, it is in conflict until the settings choose one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import Attribute, asdict, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import ConflictError, SquishError, UsageError
from squish_core.plugins.hookspecs import Info, Signature

VARIABLE = "SQUISH_PLUGINS"
"""The environment variable with the settings."""
InfoT = TypeVar("InfoT", bound=Info, covariant=True)

_BYTES = ("signature", "signatures", "skippable")
"""Fields of declarations that JSON cannot represent."""


@frozen(kw_only=True, repr=False)
class Entry(Generic[InfoT]):
    """A declaration and its distribution."""

    info: InfoT
    dist: str
    version: str = ""

    @property
    def id(self) -> str:
        """Id in the declaration."""
        return self.info.id

    def __repr__(self) -> str:
        return f"<{type(self.info).__name__.removesuffix('Info')} {self.id!r} of {self.dist} {self.version}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data = {key: value for key, value in asdict(self.info).items() if key not in _BYTES}
        return {**data, "package": self.dist, "version": self.version}


@frozen(kw_only=True)
class Broken:
    """A plugin that cannot be used, with the reason."""

    dist: str
    name: str
    reason: str


@frozen(kw_only=True)
class Loaded:
    """A loaded plugin: distribution, name and version."""

    dist: str
    name: str
    version: str


@frozen
class Settings:
    """Parsed `SQUISH_PLUGINS`: "-name" blocks, "+name" allows only the listed plugins, "id=dist" prefers.

    A name is a distribution or an entry point; after "+" also an id that a plugin provides. Blocked plugins are never
    imported.
    """

    allow: frozenset[str] = frozenset()
    block: frozenset[str] = frozenset()
    prefer: Mapping[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Parse "+a,-b,id=dist"."""
        items = [item.strip() for item in text.split(",") if item.strip()]
        bad = [item for item in items if item[0] not in "+-" and "=" not in item]
        if bad:
            hint = f"{VARIABLE} takes +name (only these), -name (not this) and id=distribution, with commas."
            raise ConflictError("invalid plugin settings", found=repr(bad[0]), code="settings", hint=hint)
        return cls(
            frozenset(item[1:] for item in items if item[0] == "+"),
            frozenset(item[1:] for item in items if item[0] == "-"),
            dict(item.split("=", 1) for item in items if item[0] not in "+-"),
        )

    def allows(self, *names: str) -> bool:
        """Return whether a plugin with any of these names may be used."""
        return not self.blocks(*names) and (not self.allow or bool(self.allow.intersection(names)))

    def blocks(self, *names: str) -> bool:
        """Return whether a plugin with any of these names must not be used."""
        return bool(self.block.intersection(names))

    def check(self, dists: set[str], names: set[str]) -> None:
        """Warn of unknown names: a typo would allow or block the wrong plugin."""
        if unknown := sorted({*self.allow, *self.block, *self.prefer.values()} - dists - names):
            installed = ", ".join(sorted(dists))
            warnings.warn(f"{VARIABLE}: no plugin is called {', '.join(unknown)}; installed: {installed}", stacklevel=3)


@frozen(kw_only=True)
class Conflict:
    """An id that several distributions provide; it cannot be used."""

    kind: str
    id: str
    dists: tuple[str, ...]

    def error(self) -> ConflictError:
        """Error for using the id."""
        return ConflictError(
            f"several distributions provide the {self.kind} {self.id!r}",
            found=", ".join(self.dists),
            code=ErrorCode.CONFLICT,
            hint=f"Uninstall all but one, or set {VARIABLE}={self.id}={self.dists[0]} to choose.",
        )


class Claims:
    """Entries by kind and id. `winners`: the entry of each id; of ids in conflict, the first one.

    A table is replaced, never changed, so threads may iterate over it while plugins register.
    """

    def __init__(self, kinds: Iterable[str], prefer: Mapping[str, str]) -> None:
        self.winners: dict[str, dict[str, Entry[Any]]] = {kind: {} for kind in kinds}
        self.conflicts: dict[tuple[str, str], Conflict] = {}
        self._entries: dict[tuple[str, str], list[Entry[Any]]] = {}
        self._prefer = prefer

    def add(self, entries: Sequence[tuple[str, Entry[Any]]], *, exclusive: bool) -> None:
        """Add all declarations of a plugin, or none. `exclusive`: raise conflicts instead of recording them."""
        claims, conflicts = dict(self._entries), dict(self.conflicts)
        winners: dict[str, dict[str, Entry[Any]]] = {}
        for kind, entry in entries:
            name = entry.info.id
            key, others = (kind, name), claims.get((kind, name), [])
            if any(other.dist == entry.dist for other in others):
                raise SquishError(f"the {kind} {name!r} is declared twice", found=entry.dist, code=ErrorCode.CONFLICT)
            claims[key] = [*others, entry]
            conflict = self._conflict(key, claims[key])
            if conflict is None:
                conflicts.pop(key, None)
            elif exclusive:
                raise conflict.error()
            else:
                conflicts[key] = conflict
            preferred = (claim for claim in claims[key] if claim.dist == self._prefer.get(name))
            winners.setdefault(kind, dict(self.winners[kind]))[name] = next(preferred, claims[key][0])
        self._entries, self.conflicts = claims, conflicts
        self.winners.update(winners)

    def of(self, kind: str) -> list[Entry[Any]]:
        """Return all entries of a kind by id, including every entry of ids in conflict."""
        winners, conflicts = self.winners[kind], self.conflicts
        return [
            entry
            for name in sorted(winners)
            for entry in (self._entries[kind, name] if (kind, name) in conflicts else [winners[name]])
        ]

    def _conflict(self, key: tuple[str, str], entries: Sequence[Entry[Any]]) -> Conflict | None:
        dists = tuple(entry.dist for entry in entries)
        if len(dists) < 2 or self._prefer.get(key[1]) in dists:
            return None
        return Conflict(kind=key[0], id=key[1], dists=dists)


_FACT_TYPES = {"str": str, "bool": bool, "int": int, "bytes": bytes, "Signature": Signature}


def check_fact(kind: str, name: str, value: Any, declared: Attribute[Any] | None) -> None:
    """Raise UsageError for a value of a type that the field of a declaration never has."""
    if declared is None:  # of a third party's declaration
        return
    outer, bracket, inner = str(declared.type).partition("[")
    item = "str" if outer == "Mapping" else re.split(r"[,\] |]", inner if bracket else outer)[0]
    several = isinstance(value, (tuple, list, set, frozenset, Mapping)) and bool(bracket)
    optional = value is None and "None" in str(declared.type)
    if item not in _FACT_TYPES or optional:
        return
    if wrong := [one for one in (value if several else (value,)) if type(one) is not _FACT_TYPES[item]]:
        expected = f"type {item}"
        raise UsageError(
            f"{name} of {kind} declarations has no such value", found=repr(wrong[0]), expected=expected, code="fact"
        )


def has_fact(value: Any, expected: Any) -> bool:
    """Return whether a field has a value, or contains it, or all of several."""
    if value == expected:
        return True
    if isinstance(value, Mapping) and isinstance(expected, Mapping):
        return all(key in value and has_fact(value[key], item) for key, item in expected.items())
    if isinstance(value, (tuple, Mapping)):
        several = isinstance(expected, (tuple, list, set, frozenset))
        return all(item in value for item in (expected if several else (expected,)))
    return False
