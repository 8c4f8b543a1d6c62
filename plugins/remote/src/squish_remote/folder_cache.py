"""An optional disk cache of byte ranges of remote files, by URL and pin; each range is verified when read."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from squish_core.api import CacheEntry, Pin, surplus

DIGEST = 32
"""Bytes of the SHA-256 at the end of each file."""
_SUFFIX = ".range"


class FolderCache:
    """Ranges of pinned files in a folder of about `size` bytes, which processes may share.

    A range is a file that is renamed into place and ends with its digest. A range that is damaged or cannot be read or
    written is fetched.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self._used: int | None = None
        self._lock = threading.Lock()

    def read(self, pin: Pin, start: int, stop: int) -> memoryview | None:
        """Return a range; None if it is missing or damaged."""
        path = self._path(pin, start, stop)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content = memoryview(data)[:-DIGEST]
        if len(content) != stop - start or sha256(content).digest() != data[-DIGEST:]:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # the oldest ones are removed first
        return content

    def write(self, pin: Pin, start: int, content: memoryview) -> None:
        """Store a range, unless the disk is full or read-only."""
        path = self._path(pin, start, start + len(content))
        temporary = path.with_name(f".{os.getpid()}.{os.urandom(8).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("xb") as file:
                    file.write(content)
                    file.write(sha256(content).digest())
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            with self._lock:
                self._make_room(len(content) + DIGEST)
        except OSError:
            return

    def _path(self, pin: Pin, start: int, stop: int) -> Path:
        key = sha256(json.dumps(pin.to_dict(), sort_keys=True).encode()).hexdigest()
        return self._folder / key[:32] / f"{start}-{stop}{_SUFFIX}"

    def _make_room(self, added: int) -> None:
        """Remove the least recently used ranges; list the folder only when it may be full."""
        if self._used is not None:
            self._used += added
        if self._used is not None and self._used <= self._size:
            return
        entries = list(self._entries())
        removed = surplus(entries, self._size)
        self._used = sum(entry.size for entry in entries) - sum(entry.size for entry in removed)
        for entry in removed:
            entry.path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[CacheEntry]:
        """Yield the ranges in the folder."""
        for path in self._folder.glob(f"*/*{_SUFFIX}"):
            with suppress(OSError):
                info = path.stat()
                yield CacheEntry(info.st_mtime, path.name, path.parent.name, path, info.st_size)
