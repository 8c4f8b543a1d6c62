"""Claims of distributions on ids. If several claim an id, it is in conflict until the settings choose one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    """Entries by kind and id. `winners`: the entry of each id; of ids in conflict, the first one."""

    def __init__(self, kinds: Iterable[str], prefer: Mapping[str, str]) -> None:
        self.winners: dict[str, dict[str, Entry]] = {kind: {} for kind in kinds}
        self.conflicts: dict[tuple[str, str], Conflict] = {}
        self._entries: dict[tuple[str, str], list[Entry]] = {}
        self._prefer = prefer

    def add(self, entries: Sequence[tuple[str, Entry]], *, exclusive: bool) -> None:
        """Add all declarations of a plugin, or none. `exclusive`: raise conflicts instead of recording them."""
        claims = dict(self._entries)
        for kind, entry in entries:
            key = kind, entry.info.id
            others = claims.get(key, [])
            if any(other.dist == entry.dist for other in others):
                raise SquishError(f"the {kind} {key[1]!r} is declared twice", found=entry.dist, code=ErrorCode.CONFLICT)
            claims[key] = [*others, entry]
            conflict = self._conflict(key, claims[key])
            if exclusive and conflict is not None:
                raise conflict.error()
        self._entries = claims
        for kind, entry in entries:
            self._settle((kind, entry.info.id))

    def of(self, kind: str) -> list[Entry]:
        """All entries of a kind by id, including every entry of ids in conflict."""
        return [
            entry
            for name in sorted(self.winners[kind])
            for entry in (self._entries[kind, name] if (kind, name) in self.conflicts else [self.winners[kind][name]])
        ]

    def _settle(self, key: tuple[str, str]) -> None:
        kind, name = key
        entries = self._entries[key]
        preferred = (entry for entry in entries if entry.dist == self._prefer.get(name))
        self.winners[kind][name] = next(preferred, entries[0])
        conflict = self._conflict(key, entries)
        if conflict is None:
            self.conflicts.pop(key, None)
        else:
            self.conflicts[key] = conflict

    def _conflict(self, key: tuple[str, str], entries: Sequence[Entry]) -> Conflict | None:
        dists = tuple(entry.dist for entry in entries)
        if len(dists) < 2 or self._prefer.get(key[1]) in dists:
            return None
        return Conflict(kind=key[0], id=key[1], dists=dists)
