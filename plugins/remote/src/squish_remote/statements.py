"""Statements about unread bytes; each is compared with the file before these bytes are used."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from squish_core.api import Statement

from .pieces import Range


class Statements:
    """The statements about a model's files, by path, and which of them are verified."""

    def __init__(self) -> None:
        self._by_path: dict[str, list[Statement]] = {}
        self._checked: set[int] = set()

    def add(self, statements: Iterable[Statement], path: str) -> None:
        """Add statements; `path` is the default file."""
        added: dict[str, list[Statement]] = {}
        for statement in statements:
            added.setdefault(statement.path or path, []).append(statement)
        for name, listed in added.items():
            self._by_path[name] = sorted([*self._by_path.get(name, ()), *listed], key=lambda each: each.start)

    def due(self, path: str, ranges: Iterable[Range]) -> list[Statement]:
        """Return the unverified statements that overlap these ranges; statements about one file do not overlap."""
        listed, due = self._by_path.get(path, []), dict[int, Statement]()
        for offset, length in ranges if listed else ():
            place = bisect_left(listed, offset + length, key=lambda statement: statement.start)
            while place and listed[place - 1].stop > offset:
                place -= 1
                due[id(listed[place])] = listed[place]
        return [statement for key, statement in due.items() if key not in self._checked]

    def check(self, due: Sequence[Statement], stored: Mapping[int, memoryview], file: str) -> None:
        """Compare statements with the stored bytes, by offset; raise FormatError for the first contradiction."""
        for statement in due:
            statement.check(stored, file)
            self._checked.add(id(statement))

    def with_content(self, path: str, ranges: Iterable[Range]) -> tuple[Range, ...]:
        """Return the ranges, each preceded by the bytes outside of it that must be compared first."""
        announced: list[Range] = []
        for offset, length in ranges:
            content = {
                (at, len(data)) for statement in self.due(path, [(offset, length)]) for at, data in statement.content
            }
            outside = sorted(piece for piece in content if piece[0] < offset or sum(piece) > offset + length)
            announced += [piece for piece in outside if piece not in announced[-8:]]
            announced.append((offset, length))
        return tuple(announced)
