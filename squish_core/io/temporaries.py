"""Temporaries: hidden `.NAME.<random>.part` files or folders beside a target, locked while their writer runs."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from squish_core.io.locks import is_locked, is_same_file, try_lock, wait_lock
from squish_core.io.rollback import rollback_target, torn_bytes
from squish_core.io.system import BINARY, IS_POSIX, lockable, release, replace, unlink

_PART = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part", re.DOTALL)
_FRESH = 10.0
"""Seconds for which an unlocked temporary may belong to a writer on Windows, which closes it before it renames it."""
_UNTRUSTED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_STATES = {True: "live", False: "dead", None: "unknown"}


@frozen
class Temporary:
    """A temporary: target, size in bytes, seconds since the last write, and the state of its writer.

    `state` is `dead`, `live`, or `unknown` if the file system has no locks or the file cannot be opened.
    """

    path: Path
    target: Path
    size: int
    age: float
    state: str


class NewTemporary:
    """A temporary that is being written: its path, and its descriptor, which has the lock."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self._is_open = True

    def move_to(self, target: Path) -> None:
        """Rename the complete temporary to the target."""
        if not IS_POSIX:
            self.release()
        replace(self.path, target)

    def release(self) -> None:
        """Give up the lock."""
        if self._is_open:
            self._is_open = False
            release(self.path, self.fd)


@contextmanager
def new_temporary(target: Path, create: Callable[[Path], int]) -> Iterator[NewTemporary]:
    """A new temporary, locked until the block ends and removed if it fails.

    `create` creates the temporary at a path, with the folders above it, and returns its descriptor.
    """
    path, temporary = _beside(target), None
    absent = [folder for folder in target.parents if not os.path.lexists(folder)]
    try:
        temporary = NewTemporary(path, create(path))
        while wait_lock(temporary.fd) is False or not is_same_file(lockable(path), temporary.fd):
            # Another writer took it for an abandoned one before it was locked, and removed it.
            temporary.release()
            path = _beside(target)
            temporary = NewTemporary(path, create(path))
        yield temporary
    except BaseException:
        with suppress(OSError):
            if temporary is not None and not IS_POSIX:
                temporary.release()
        with suppress(OSError):
            _delete(path)
        with suppress(OSError):
            for folder in absent:  # those that `create` made, as far as they are empty
                folder.rmdir()
        raise
    finally:
        if temporary is not None:
            temporary.release()


def temporaries(folder: Path) -> Iterator[Temporary]:
    """All temporaries below a folder; links are not followed. Raises OSError if the folder cannot be listed."""
    for path in _entries(folder):
        if temporary := _temporary(path):
            yield temporary


def torn_appends(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files below a folder whose last append was interrupted, with the number of bytes it left."""
    for path in _entries(folder):
        target = rollback_target(path)
        if target is not None and (count := torn_bytes(target)):
            yield target, count


def remove_dead(target: Path) -> list[str]:
    """Remove temporaries of this target whose writers are gone; returns a note for each."""
    notes = []
    prefix = f".{target.name}."
    with suppress(OSError):
        for name in os.listdir(target.parent):
            match = _PART.fullmatch(name) if name.startswith(prefix) else None
            if not match or match[1] != target.name:
                continue
            leftover = _temporary(target.with_name(name))
            with suppress(OSError):
                if leftover and remove(leftover):
                    notes.append(f"removed {name} ({leftover.size:,} bytes), left over from an interrupted write")
    return notes


def remove(leftover: Temporary) -> bool:
    """Remove a temporary unless its writer is running; raises OSError if that fails."""
    fd = None if not IS_POSIX and leftover.age < _FRESH else _open(leftover.path)
    if fd is None:
        return False
    found = NewTemporary(leftover.path, fd)
    try:
        if try_lock(fd) is not True or not is_same_file(lockable(leftover.path), fd):
            return False
        if not IS_POSIX:
            found.release()
        _delete(leftover.path)
        return True
    finally:
        found.release()


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}.part")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        from shutil import rmtree  # loads compressors

        rmtree(path)
    else:
        unlink(path)


def _entries(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    for parent, folders, files in os.walk(folder, onerror=fail):
        yield from (Path(parent, name) for name in sorted([*folders, *files]) if name.startswith("."))
        folders[:] = sorted(name for name in folders if not _PART.fullmatch(name))


def _temporary(path: Path) -> Temporary | None:
    match = _PART.fullmatch(path.name)
    if not match:
        return None
    try:
        infos = [path.lstat()]
    except OSError:
        return None
    if not (stat.S_ISREG(infos[0].st_mode) or stat.S_ISDIR(infos[0].st_mode)):
        return None
    for parent, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                infos.append(os.lstat(os.path.join(parent, name)))
    fd = _open(path)
    state = _STATES[is_locked(fd) if fd is not None else None]
    if fd is not None:
        os.close(fd)
    size = sum(info.st_size for info in infos if not stat.S_ISDIR(info.st_mode))
    age = max(time.time() - max(info.st_mtime for info in infos), 0.0)
    return Temporary(path, path.with_name(match[1]), size, age, state)


def _open(path: Path) -> int | None:
    try:
        return os.open(lockable(path), os.O_RDONLY | BINARY | _UNTRUSTED)
    except OSError:
        return None
