"""The rollback file of an append: a small file beside the target that records its size before the append.

While it exists, the append is incomplete: readers stop at the old end, and the next writer cuts the target back to it.
Removing it commits the append.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.io.system import BINARY, READ_NO_LINK, is_locked, read_at, unlink

if TYPE_CHECKING:
    from squish_core.model import Problem

TAIL = 64
"""Number of last bytes that identify the target: inode numbers are reused."""
_FORM = re.compile(rb"squish-append 1 size=(\d{1,19}) inode=(\d{1,39}) tail=((?:[0-9a-f]{2}){0,64})\n")


@frozen
class Rollback:
    """Size, inode and last bytes of a file before an append."""

    size: int
    inode: int
    tail: bytes

    @classmethod
    def of(cls, fd: int) -> Rollback:
        """Return the state of an open file."""
        info = os.fstat(fd)
        return cls(info.st_size, info.st_ino, _tail(fd, info.st_size))

    def describes(self, fd: int) -> bool:
        """Return whether an open file is this one, at its old size or longer."""
        info = os.fstat(fd)
        return info.st_ino == self.inode and info.st_size >= self.size and _tail(fd, self.size) == self.tail


def rollback_path(target: Path | str) -> str:
    """Path of a file's rollback file."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.edit")


def read_rollback(target: Path | str) -> Rollback | None:
    """The rollback file of a file; None if it is missing or incomplete, that is, before the first appended byte."""
    try:
        fd = os.open(rollback_path(target), READ_NO_LINK)
    except OSError:
        return None
    try:
        match = _FORM.fullmatch(os.read(fd, 512))
    except OSError:
        return None
    finally:
        os.close(fd)
    return Rollback(int(match[1]), int(match[2]), bytes.fromhex(match[3].decode())) if match else None


def write_rollback(target: Path, rollback: Rollback, mode: int) -> None:
    """Write and sync the rollback file of a file; raises OSError."""
    path = rollback_path(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY
    with open(path, "wb", opener=lambda name, _: os.open(name, flags, mode)) as file:
        record = f"squish-append 1 size={rollback.size} inode={rollback.inode} tail={rollback.tail.hex()}\n"
        file.write(record.encode())
        file.flush()
        os.fsync(file.fileno())


def remove_rollback(target: Path) -> None:
    """Remove the rollback file of a file, if any; raises OSError."""
    path = rollback_path(target)
    if os.path.lexists(path):  # a file system that is read-only refuses to remove what is not there, too
        with suppress(FileNotFoundError):
            unlink(path)


def remove_stale_rollback(target: Path) -> None:
    """Remove the rollback file of the file that was replaced at `target`."""
    rollback = read_rollback(target)
    with suppress(OSError):
        if rollback and rollback.inode != os.stat(target).st_ino:
            remove_rollback(target)


def committed_size(path: Path, fd: int) -> tuple[int, Problem | None]:
    """Committed size of an open file, and a finding if an append is running or was interrupted."""
    # Read the rollback file before the size: an append that begins in between has not changed the file yet.
    rollback = _rollback_of(path)
    size = os.fstat(fd).st_size
    if rollback is None or size == rollback.size or not rollback.describes(fd):
        return size, None
    running = is_locked(fd)
    if not running and _rollback_of(path) != rollback:
        return committed_size(path, fd)  # the append ended meanwhile
    return rollback.size, _finding(path, rollback.size, size, bool(running))


def _rollback_of(path: Path) -> Rollback | None:
    """Return the rollback file of the file that `path` leads to."""
    return read_rollback(os.path.realpath(path) if os.path.islink(path) else path)


def _tail(fd: int, size: int) -> bytes:
    count = min(TAIL, size)
    return read_at(fd, count, size - count)


def _finding(path: Path, size: int, actual_size: int, running: bool) -> Problem:
    from squish_core.model import Problem

    if running:
        message = f"another process is appending to the file; only the first {size} bytes are read"
        return Problem(code=ErrorCode.EDIT_RUNNING, severity="note", where=path.name, message=message)
    message = (
        f"an interrupted edit left {actual_size - size} bytes after byte {size}; they are ignored. "
        "The next edit or `squish edit FILE --recover` removes them"
    )
    return Problem(code=ErrorCode.TORN_APPEND, severity="warning", where=path.name, message=message)
