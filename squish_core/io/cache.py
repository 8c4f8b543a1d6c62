"""A cache of folders that can be rebuilt from their sources: by key, evicting the least recently used first."""

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
"""Environment variables: location of the cache, and its maximum size in bytes."""
DEFAULT_SIZE = 16 << 30


@frozen
class Entry:
    """A folder of the cache: kind, key, size in bytes and time of last use (seconds since 1970)."""

    kind: str
    key: str
    path: Path
    size: int
    last_used: float


def cache_folder() -> Path:
    """Location of the cache: SQUISH_CACHE, or the user's cache folder."""
    if path := os.environ.get(FOLDER):
        return Path(path)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "squish"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "squish" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "squish"


def cache_limit() -> int:
    """Maximum size of the cache in bytes: SQUISH_CACHE_SIZE, or 16 GiB. UsageError if that is not a number."""
    value = os.environ.get(SIZE)
    if not value:
        return DEFAULT_SIZE
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise UsageError(f"{SIZE} is not a size in bytes", expected="a number", found=repr(value), code=ErrorCode.USAGE)
    return int(value)


def cached_folder(kind: str, key: str, fill: Callable[[Path], object]) -> Path:
    """Folder of a key in the cache, filled on first use.

    Parameters
    ----------
    kind
        Group of keys, such as the id of a plugin.
    key
        Name of the folder; the same key must stand for the same content.
    fill
        Called with a path that does not exist, if the key is new. It writes the folder atomically (`atomic_folder`).

    Returns
    -------
    pathlib.Path
        The folder. The least recently used ones are removed to make room, but never this one, however large.

    Raises
    ------
    WriteError
        The cache cannot be written.
    UsageError
        SQUISH_CACHE_SIZE is not a size.

    Examples
    --------
    >>> from pathlib import Path
    >>> import os
    >>> os.environ["SQUISH_CACHE"] = "cache"
    >>> folder = cached_folder("demo", "one", lambda path: path.mkdir())
    >>> folder.name
    'one'
    """
    folder = cache_folder() / kind / key
    if not folder.is_dir():
        cache_limit()  # report a bad setting before writing anything
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(
                "the cache cannot be written", file=str(folder.parent), found=error.strerror, code="write",
                hint=f"Set {FOLDER} to a writable folder.",
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
    """All folders of the cache, least recently used first."""
    candidates = [_entry(path) for path in _folders()]
    return sorted((entry for entry in candidates if entry is not None), key=lambda entry: (entry.last_used, entry.key))


def make_room(keep: Path | None = None) -> list[Entry]:
    """Evict the least recently used folders until the rest fits the limit; returns the evicted ones."""
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
    """Remove a folder, renamed first so that nobody opens half of it."""
    trash = entry.path.with_name(f".{entry.key}.{os.getpid()}.removed")
    try:
        entry.path.rename(trash)
    except FileNotFoundError:
        return  # another process was faster
    rmtree(trash, ignore_errors=True)


def _folders() -> Iterator[Path]:
    try:
        kinds = [path for path in cache_folder().iterdir() if path.is_dir()]
    except OSError:
        return
    for kind in kinds:
        yield from (path for path in kind.iterdir() if path.is_dir() and not path.name.startswith("."))


def _entry(path: Path) -> Entry | None:
    try:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return Entry(kind=path.parent.name, key=path.name, path=path, size=size, last_used=path.stat().st_mtime)
    except OSError:  # removed meanwhile
        return None
