"""Eviction of what was used longest ago, and the cache of folders that can be rebuilt from their sources."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from shutil import rmtree

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError, WriteError
from squish_core.io.system import IS_POSIX

FOLDER, SIZE = "SQUISH_CACHE", "SQUISH_CACHE_SIZE"
"""Environment variables: location of the cache, and its maximum size in bytes."""
DEFAULT_SIZE = 16 << 30


@frozen(order=True)
class CacheEntry:
    """A folder or file of a cache, in the order of its last use (seconds since 1970); the size is in bytes."""

    last_used: float
    key: str
    kind: str
    path: Path
    size: int


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
            hint = f"Set {FOLDER} to a writable folder."
            raise WriteError(
                "the cache cannot be written", file=str(folder.parent), found=error.strerror, code="write", hint=hint
            ) from None
        try:
            fill(folder)
        except WriteError:
            if not folder.is_dir():  # else another process was faster
                raise
    os.utime(folder)
    present = entries()
    size = sum(entry.size for entry in present if entry.path == folder)
    for entry in surplus((entry for entry in present if entry.path != folder), cache_limit() - size):
        remove(entry)
    return folder


def entries() -> list[CacheEntry]:
    """Return all folders of the cache, least recently used first."""
    found = list[CacheEntry]()
    for path in cache_folder().glob("*/[!.]*"):
        with suppress(OSError):  # removed meanwhile
            used = path.stat()
            if stat.S_ISDIR(used.st_mode):
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                found.append(CacheEntry(used.st_mtime, path.name, path.parent.name, path, size))
    return sorted(found)


def surplus(entries: Iterable[CacheEntry], limit: int) -> list[CacheEntry]:
    """Return the entries to remove so that the others fit a limit, least recently used first.

    Parameters
    ----------
    entries
        The entries of a cache.
    limit
        Maximum sum of the sizes of what stays, in bytes.

    Returns
    -------
    list of CacheEntry
        As few as possible in this order.

    Examples
    --------
    >>> from pathlib import Path
    >>> old, new = (CacheEntry(time, str(time), "demo", Path(), size=10) for time in (1.0, 2.0))
    >>> [entry.key for entry in surplus([new, old], 15)]
    ['1.0']
    """
    newest_first = sorted(entries, reverse=True)
    fitting = sum(total <= limit for total in accumulate(entry.size for entry in newest_first))
    return newest_first[fitting:][::-1]


def remove(entry: CacheEntry) -> None:
    """Remove a folder, renamed first so that nobody opens half of it."""
    trash = entry.path.with_name(f".{entry.key}.{os.getpid()}.removed")
    try:
        entry.path.rename(trash)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not IS_POSIX:
            return  # another process was faster, or has it open, where the system then renames nothing
        raise
    rmtree(trash, ignore_errors=True)
