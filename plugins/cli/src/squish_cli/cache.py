"""`squish cache`: folders that Squish keeps because they take long to build."""

from __future__ import annotations

from typing import Annotated

import typer
from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.display import table
from squish_core.errors import UsageError
from squish_core.io import cache
from squish_core.text import counted, format_bytes

from .options import App, Json
from .output import Answer

DOCUMENTS = "squish_cli.documents"
SCHEMA = "squish/cache/1"
"""The schema of `squish cache` itself, which lists as `squish cache list` does."""


def cache_group() -> App:
    """Return the group `squish cache`, to which plugins add commands."""
    app = App(help="List, clear and build caches.", invoke_without_command=True, prefix="cache-")
    app.callback()(group)
    app.command("list", examples=["squish cache list"], document=f"{DOCUMENTS}:CacheList")(list_entries)
    examples = ["squish cache clear", "squish cache clear 3f2a90"]
    app.command("clear", examples=examples, document=f"{DOCUMENTS}:CacheClear")(clear)
    return app


def group(context: typer.Context, json: Json = False) -> Answer | None:
    """List, clear and build caches; without a command, list them."""
    return evolve(list_entries(), schema=SCHEMA) if context.invoked_subcommand is None else None


def list_entries() -> Answer:
    """List cached folders, the least recently used first.

    The first line shows the cache's folder, its size and its limit.
    """
    entries = cache.entries()
    total = sum(entry.size for entry in entries)
    rows = [{"kind": entry.kind, "key": entry.key, "size": entry.size, "folder": str(entry.path)} for entry in entries]
    data = {"folder": str(cache.cache_folder()), "limit": cache.cache_limit(), "size": total, "entries": rows}
    lines = [f"{cache.cache_folder()}: {format_bytes(total)} of {format_bytes(cache.cache_limit())}"]
    if entries:
        lines += ["", *table(("kind", "size", "key"), "<><", [(e.kind, format_bytes(e.size), e.key) for e in entries])]
    return Answer(data, lines)


def clear(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Prefix of a key. Without one, all folders are removed.")
    ] = "",
) -> Answer:
    """Remove cached folders.

    Squish builds them again when it needs them.
    """
    matches = [entry for entry in cache.entries() if entry.key.startswith(key)]
    if key and not matches:
        raise UsageError(
            "no cached folder has this key",
            found=repr(key),
            code=ErrorCode.USAGE,
            hint="`squish cache list` lists the keys.",
        )
    for entry in matches:
        cache.remove(entry)
    size = sum(entry.size for entry in matches)
    return Answer(
        {"removed": [entry.key for entry in matches], "size": size},
        [f"removed {counted(len(matches), 'folder')}, {format_bytes(size)}"],
    )
