"""The source of docs/writing-a-plugin.md: files in a table of this process, as `acme://shelf/name`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import BytesSource, MissingFileError, Source, SourceInfo, SourceOpener, hookimpl

SHELVES: dict[str, dict[str, bytes]] = {}


@hookimpl
def squish_sources() -> list[SourceInfo]:
    return [
        SourceInfo(
            id="acme",
            title="Acme's shelves",
            factory="acme_source:Shelves",
            schemes=("acme",),
            options={"copy": "yes: read from a copy, so that the shelf may change."},
        )
    ]


class Shelves(SourceOpener):
    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        shelf, _, name = url.removeprefix("acme://").partition("/")
        return ShelfSource(shelf, name, copy=options.get("copy") == "yes")


class ShelfSource(BytesSource):
    lists_members = False

    def __init__(self, shelf: str, name: str, *, copy: bool) -> None:
        if name not in SHELVES.get(shelf, {}):
            raise MissingFileError("no such file", file=f"acme://{shelf}/{name}", code="missing")
        data = SHELVES[shelf][name]
        super().__init__(bytes(data) if copy else data, f"acme://{shelf}/{name}")
        self._shelf, self._copy = shelf, copy

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        return () if folder else tuple(name for name in names if name in SHELVES[self._shelf])

    def _open_member(self, name: str) -> Source:
        return ShelfSource(self._shelf, name, copy=self._copy)
