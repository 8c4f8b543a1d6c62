"""Shards: files `<stem>-<shard>.zt` next to `<stem>.zt` with parts of a v2 file's objects (Draft 4; wires 6.8)."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from squish_core.api import ErrorCode, FileRef, FormatError, Source, SquishError

from . import footer

_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")


def open_shards(source: Source, table: Any, objects: dict[str, Any], offset: int) -> dict[str, FileRef]:
    """Open the shards that parts refer to and check size and footer; the FormatError names the shard."""
    if table is None:
        table = {}
    if type(table) is not dict:
        raise FormatError("'shards' must be a map", offset=offset, found=type(table).__name__, code="schema")
    for name, entry in table.items():
        if type(name) is not str or not _NAME.fullmatch(name):
            raise FormatError(
                "invalid shard name",
                offset=offset,
                expected="letters, digits, . _ -, without a leading dot",
                found=repr(name)[:80],
                code=ErrorCode.SHARD,
            )
        size, digest = (entry.get("size"), entry.get("digest")) if type(entry) is dict else (None, None)
        if type(size) is not int or size < 0 or type(digest) is not str:
            raise FormatError(f"the shard {name!r} has no size or no digest", offset=offset, code=ErrorCode.SHARD)
    return {
        name: _open(source, str(name), table[name]) if name in table else _unknown(name, offset)
        for name in _used(objects)
    }


def _used(objects: dict[str, Any]) -> dict[Any, None]:
    names: dict[Any, None] = {}
    for record in objects.values():
        parts = record.get("parts") if type(record) is dict else None
        for part in parts.values() if type(parts) is dict else ():
            if type(part) is dict and "shard" in part:
                names[part["shard"] if type(part["shard"]) is str else repr(part["shard"])] = None
    return names


def _open(source: Source, name: str, entry: dict[str, Any]) -> FileRef:
    path = PurePath(source.filename)
    file_name = f"{path.stem}-{name}{path.suffix or '.zt'}"
    try:
        shard = source.member(file_name)
        footer.read(shard)
    except SquishError as error:
        raise FormatError(
            f"cannot open the shard {name!r}: {error.message}",
            found=file_name,
            code=ErrorCode.SHARD,
            hint="Download all files of the model into one folder.",
        ) from None
    if shard.size != entry["size"]:
        raise FormatError(
            f"the size of the shard {name!r} does not match",
            expected=entry["size"],
            found=f"{shard.size} bytes in {file_name}",
            code=ErrorCode.SHARD,
            hint="Download the shard again.",
        )
    if shard.read(0, len(footer.MAGIC)) != footer.MAGIC:
        raise FormatError(f"the shard {name!r} is not a zTensor v2 file", found=file_name, code=ErrorCode.SHARD)
    return FileRef(file_name, shard.size, entry["digest"])


def _unknown(name: str, offset: int) -> FileRef:
    raise FormatError(f"the shard {name!r} is not in the table of shards", offset=offset, code=ErrorCode.SHARD)
