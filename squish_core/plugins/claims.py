"""Claims of distributions on ids. If several claim an id, it is in conflict until the settings choose one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import ConflictError, SquishError
from squish_core.plugins.entries import VARIABLE, Entry


@frozen(kw_only=True)
class Conflict:
    """An id that several distributions provide; it cannot be used."""

    kind: str
    id: str
    dists: tuple[str, ...]

    def error(self) -> ConflictError:
        """Error for using the id."""
        return ConflictError(
            f"several distributions provide the {self.kind} {self.id!r}", found=", ".join(self.dists),
            code=ErrorCode.CONFLICT,
            hint=f"Uninstall all but one, or set {VARIABLE}={self.id}={self.dists[0]} to choose.",
        )  # fmt: skip


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
        """All entries of a kind by id, including every entry of ids in conflict."""
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
