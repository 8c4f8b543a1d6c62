"""Append to an existing file, locked against other edits; an interrupted append is rolled back."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, WriteError
from squish_core.guard import guarded
from squish_core.io.atomic import BUFFER, check_regular, creation, sync_folder, sync_rename, unwritable
from squish_core.io.paths import missing
from squish_core.io.rollback import Rollback, read_rollback, remove_rollback, write_rollback
from squish_core.io.sink import Sink, Syncer
from squish_core.io.system import BINARY, IS_POSIX, WAIT, is_same_file, wait_lock

NO_LOCKS = "the file was not locked: its file system has no locks. Do not change it with another program meanwhile"


class LockedFile:
    """A file locked against other writers: its descriptor, and its size when the lock was acquired.

    `fault`: why it cannot be written, or "". `recovered`: bytes of an interrupted append that were cut off. `notes`:
    other remarks for the user.
    """

    def __init__(self, path: Path, fd: int, fault: str = "") -> None:
        self.path, self.fd, self.fault = path, fd, fault
        self.recovered, self.size = 0, os.fstat(fd).st_size
        self.notes: list[str] = []
        self._is_open = True

    @property
    def writable(self) -> bool:
        """Whether bytes can be appended."""
        return not self.fault

    def check(self) -> None:
        """Raise FormatError if the path now leads to another file or the size has changed."""
        same = is_same_file(self.path, self.fd)
        if not same or os.fstat(self.fd).st_size != self.size:
            raise FormatError(
                "was changed by another program during the edit",
                file=str(self.path),
                code=ErrorCode.CHANGED,
                expected=f"{self.size} bytes",
                found=f"{os.fstat(self.fd).st_size} bytes" if same else "another file",
                hint="Try again when that program is done.",
            )

    def prepare_rename(self) -> None:
        """Close the file where the system renames nothing onto an open one (Windows), just before it is replaced.

        An edit that begins meanwhile keeps the file open, so that the rename fails and nothing is lost.
        """
        if not IS_POSIX:
            self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)


@contextmanager
def locked_file(target: Path, recover: bool = False, seconds: float = WAIT) -> Iterator[LockedFile]:
    """Lock a file for an edit, and roll back an interrupted append.

    Parameters
    ----------
    target
        An existing file.
    recover
        Roll back even on a file system without locks, where the writer of the append may still be running.
    seconds
        How long to wait for another edit.

    Yields
    ------
    LockedFile
        The file, its size in bytes and whether it can be written.

    Raises
    ------
    WriteError
        Another process edits the file (code `locked`).

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("parts.bin").write_bytes(b"one")
    >>> with locked_file(Path("parts.bin")) as lock:
    ...     lock.size
    3
    """
    lock = _lock(target, seconds, recover)
    try:
        with guarded(FormatError, "cutting off an interrupted append", file=str(target)):
            _cut_back(lock)
        with guarded(FormatError, "editing", file=str(target)):
            yield lock
    finally:
        lock.close()


@contextmanager
def appended_file(lock: LockedFile) -> Iterator[Sink]:
    """Append to a locked file: synced if the block succeeds, else truncated to the old size.

    A rollback file beside it lets the next reader and writer undo an interrupted append.

    Parameters
    ----------
    lock
        The file, from `locked_file`; its `size` is where the new bytes begin.

    Yields
    ------
    Sink
        Writes after the last byte.

    Raises
    ------
    WriteError
        The file or its folder cannot be written, or another process changed the file.

    Examples
    --------
    >>> from pathlib import Path
    >>> target = Path("parts.bin")
    >>> _ = target.write_bytes(b"one")
    >>> with locked_file(target) as lock, appended_file(lock) as sink:
    ...     sink.write(b"two")
    >>> target.read_bytes()
    b'onetwo'
    """
    target, size = lock.path, lock.size
    lock.check()
    if not lock.writable:
        raise unwritable(target, lock.fault)
    try:
        with creation(target):
            write_rollback(target, Rollback.of(lock.fd), stat.S_IMODE(os.fstat(lock.fd).st_mode) & 0o666)
            sync_folder(target.parent)
        with open(os.dup(lock.fd), "r+b", buffering=BUFFER) as file, closing(Syncer()) as syncer:
            file.seek(size)
            sink = Sink(file, None, None, size, syncer)
            yield sink
            lock.size = sink.tell()
            syncer.finish(file)
            syncer.wait()
        lock.check()
        remove_rollback(target)
    except BaseException:
        # The file is closed, so no buffered byte can follow the cut.
        if os.fstat(lock.fd).st_size > size:
            os.ftruncate(lock.fd, size)
            os.fsync(lock.fd)
        lock.size = size
        remove_rollback(target)
        raise
    lock.notes += sync_rename(target)


def _lock(target: Path, seconds: float, recover: bool) -> LockedFile:
    """Open and lock `target`, again if another edit replaced it meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        check_regular(target)
        fd, fault = _open(target)
        try:
            locked = wait_lock(fd, max(deadline - time.monotonic(), 0))
            if locked is False:
                raise _lock_error(target, "is being edited by another process", "Try again when it is done.")
            if locked is None and not recover and read_rollback(target):
                hint = "If no edit is running, `squish edit FILE --recover` cuts off the unfinished one."
                raise _lock_error(target, "may be in use by another edit: this file system has no locks", hint)
            if is_same_file(target, fd):
                lock = LockedFile(target, fd, fault)
                lock.notes += [NO_LOCKS] if locked is None else []
                return lock
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock_error(target: Path, why: str, hint: str) -> WriteError:
    return WriteError(why, file=str(target), code="locked", hint=hint)


def _open(target: Path) -> tuple[int, str]:
    """Descriptor of a file, and why it cannot be written, or "".

    Network locks need write access, a rewrite does not.
    """
    try:
        try:
            return os.open(target, os.O_RDWR | BINARY), ""
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            fault = "a read-only file system" if error.errno == errno.EROFS else "no write permission"
            return os.open(target, os.O_RDONLY | BINARY), fault
    except OSError as error:
        raise missing(target, error) from None


def _cut_back(lock: LockedFile) -> None:
    rollback = read_rollback(lock.path)
    if rollback and lock.size > rollback.size and rollback.describes(lock.fd):
        lock.recovered, lock.size = lock.size - rollback.size, rollback.size
        os.ftruncate(lock.fd, rollback.size)
        os.fsync(lock.fd)
    remove_rollback(lock.path)
