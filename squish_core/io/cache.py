"""Folders that can be made again from the files they come from: kept by key, the least recently used removed first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError, WriteError

FOLDER, SIZE = "SQUISH_CACHE", "SQUISH_CACHE_SIZE"
"""Variables: where the cache lies, and the bytes that it may take."""
LARGEST = 16 << 30


@frozen
class Entry:
    """A folder of the cache: its kind and key, its bytes, and when it was used last (seconds since 1970)."""

    kind: str
    key: str
    path: Path
    size: int
    used: float


def cache_folder() -> Path:
    """Where the cache lies: SQUISH_CACHE, or the folder of caches that the system has for a user."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "squish"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "squish" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "squish"


def cache_limit() -> int:
    """The bytes that the cache may take: SQUISH_CACHE_SIZE, or 16 GiB. UsageError for a value that is no number."""
    value = os.environ.get(SIZE)
    if not value:
        return LARGEST
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise UsageError(f"{SIZE} is no number of bytes", expected="0 or more", found=repr(value), code=ErrorCode.USAGE)
    return int(value)


def cached_folder(kind: str, key: str, fill: Callable[[Path], object]) -> Path:
    """The folder of a key, which `fill` makes where it is not there yet.

    `fill` gets the path of a folder that does not exist, and makes it whole or not at all (`atomic_folder`). Other
    folders of the cache make room, the least recently used first; the one returned stays, however large.
    """
    folder = cache_folder() / kind / key
    if not folder.is_dir():
        cache_limit()  # a wrong setting is an error before anything is written
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(
                "the cache cannot be written", file=str(folder.parent), found=error.strerror, code="write",
                hint=f"Set {FOLDER} to a folder that can be.",
            ) from None  # fmt: skip
        try:
            fill(folder)
        except WriteError:
            if not folder.is_dir():  # else another process was faster
                raise
    os.utime(folder)
    make_room(keep=folder)
    return folder


def entries() -> list[Entry]:
    """All folders of the cache, the least recently used first."""
    candidates = [_entry(path) for path in _folders()]
    return sorted((entry for entry in candidates if entry is not None), key=lambda entry: (entry.used, entry.key))


def make_room(keep: Path | None = None) -> list[Entry]:
    """Remove the least recently used folders until the rest fits the limit; those that were removed."""
    limit, present = cache_limit(), entries()
    total, removed = sum(entry.size for entry in present), []
    for entry in present:
        if total <= limit:
            break
        if entry.path != keep:
            remove(entry)
            removed.append(entry)
            total -= entry.size
    return removed


def remove(entry: Entry) -> None:
    """Remove a folder. It is renamed first, so that nothing finds half of it."""
    dying = entry.path.with_name(f".{entry.key}.{os.getpid()}.removed")
    try:
        entry.path.rename(dying)
    except FileNotFoundError:
        return  # another process was faster
    rmtree(dying, ignore_errors=True)


def _folders() -> Iterator[Path]:
    try:
        kinds = [path for path in cache_folder().iterdir() if path.is_dir()]
    except OSError:
        return
    for kind in kinds:
        yield from (path for path in kind.iterdir() if path.is_dir() and not path.name.startswith("."))


def _entry(path: Path) -> Entry | None:
    try:
        size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        return Entry(kind=path.parent.name, key=path.name, path=path, size=size, used=path.stat().st_mtime)
    except OSError:  # it was removed meanwhile
        return None
