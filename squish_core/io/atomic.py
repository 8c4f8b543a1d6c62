"""Atomic writes: a temporary that is synced and renamed, or an append that a journal can undo."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from squish_core.codes import ErrorCode
from squish_core.errors import FileAccessError, FormatError, MissingFileError, WriteError
from squish_core.guard import guarded
from squish_core.io.fsync import Syncer
from squish_core.io.journal import Journal, read_journal, remove_journal, remove_stale_journal, write_journal
from squish_core.io.locks import WAIT, is_same_file, wait_lock
from squish_core.io.paths import home_hint, missing
from squish_core.io.sink import PackedSink, Sink
from squish_core.io.temporaries import new_temporary, remove_dead

NO_LOCKS = "the file was not locked: its file system has no locks. Do not change it with another program meanwhile"
_BUFFER = 1 << 20
_BINARY = getattr(os, "O_BINARY", 0)


class Packing(Protocol):
    """A byte codec that compresses a whole file."""

    def packing(self, write: Callable[[bytes], object]) -> AbstractContextManager[Callable[[Any], object]]: ...


@contextmanager
def atomic_file(
    target: Path,
    progress: Callable[[int], None] | None = None,
    packing: Packing | None = None,
    mode: int | None = None,
) -> Iterator[Sink]:
    """Write a file that replaces the target only if the block succeeds; `packing` compresses it.

    The file keeps the permissions of the target it replaces; a new file gets `mode`, masked by the umask.
    """
    check_regular(target)
    check_parent(target)
    notes = remove_dead(target)
    with new_temporary(target, lambda path: _create_file(path, target, mode)) as (path, fd):
        with open(path if fd is None else os.dup(fd), "r+b", buffering=_BUFFER) as file, closing(Syncer()) as syncer:
            if packing is None:
                sink = Sink(file, None, progress, syncer=syncer)
                yield sink
            else:
                with packing.packing(file.write) as write:
                    sink = PackedSink(write, progress)
                    yield sink
            syncer.finish(file)
            syncer.wait()
        os.replace(path, target)
        if fd is not None:
            remove_stale_journal(target, fd)
    sink.notes += [*notes, *sync_rename(target)]


@contextmanager
def atomic_folder(
    target: Path, progress: Callable[[int], None] | None = None, mode: int | None = None
) -> Iterator[Sink]:
    """Write a new folder that appears only if the block succeeds. Its files get `mode`, masked by the umask.

    Raises WriteError if the folder exists.
    """
    if target.exists() or target.is_symlink():
        raise WriteError(
            "already exists", file=str(target), code=ErrorCode.EXISTS, hint="Choose a new name, or remove it."
        )
    check_parent(target)
    notes = remove_dead(target)
    with new_temporary(target, lambda path: create_folder(path, target, mode)) as (path, _):
        with closing(Syncer()) as syncer:
            sink = Sink(None, path, progress, syncer=syncer, mode=mode)
            yield sink
            syncer.wait()
        for folder in (*(entry for entry in path.rglob("*") if entry.is_dir()), path):
            sync_folder(folder)
        os.rename(path, target)
    sink.notes += [*notes, *sync_rename(target)]


class LockedFile:
    """A file locked against other writers: its descriptor, and its size when the lock was acquired.

    `recovered`: bytes of an interrupted append that were cut off. `notes`: other remarks for the user.
    """

    def __init__(self, path: Path, fd: int, writable: bool) -> None:
        self.path, self.fd, self.writable = path, fd, writable
        self.recovered, self.size = 0, os.fstat(fd).st_size
        self.notes: list[str] = []

    def check(self) -> None:
        """Raise FormatError if the path now leads to another file or the size has changed."""
        same = is_same_file(self.path, self.fd)
        if not same or os.fstat(self.fd).st_size != self.size:
            raise FormatError(
                "was changed by another program during the edit", file=str(self.path), code=ErrorCode.CHANGED,
                expected=f"{self.size} bytes", found=f"{os.fstat(self.fd).st_size} bytes" if same else "another file",
                hint="Try again when that program is done.",
            )  # fmt: skip


@contextmanager
def locked_file(target: Path, recover: bool = False, seconds: float = WAIT) -> Iterator[LockedFile]:
    """Lock a file for an edit, and cut off the remains of an interrupted append.

    Waits up to `seconds` for another edit, then raises WriteError with code `locked`. On a file system without
    locks, only `recover=True` cuts the file: the writer of the append may still be running.
    """
    lock = _lock(target, seconds, recover)
    try:
        with guarded(FormatError, "cutting off an interrupted append", file=str(target)):
            _cut_back(lock)
        with guarded(FormatError, "editing", file=str(target)):
            yield lock
    finally:
        os.close(lock.fd)


@contextmanager
def appended_file(lock: LockedFile) -> Iterator[Sink]:
    """Append to a locked file: synced if the block succeeds, else cut back to the old size.

    A journal beside the file lets the next reader and writer undo an interrupted append.
    """
    target, size = lock.path, lock.size
    lock.check()
    if not lock.writable:
        raise _unwritable(target, "no write permission")
    try:
        with creation(target):
            write_journal(target, Journal.of(lock.fd), stat.S_IMODE(os.fstat(lock.fd).st_mode) & 0o666)
            sync_folder(target.parent)
        with open(os.dup(lock.fd), "r+b", buffering=_BUFFER) as file, closing(Syncer()) as syncer:
            file.seek(size)
            sink = Sink(file, None, None, size, syncer)
            yield sink
            lock.size = sink.tell()
            syncer.finish(file)
            syncer.wait()
        lock.check()
        remove_journal(target)
    except BaseException:
        # The file is closed, so no buffered byte can follow the cut.
        if os.fstat(lock.fd).st_size > size:
            os.ftruncate(lock.fd, size)
            os.fsync(lock.fd)
        lock.size = size
        remove_journal(target)
        raise
    lock.notes += sync_rename(target)


def _lock(target: Path, seconds: float, recover: bool) -> LockedFile:
    """Open and lock `target`, again if another edit replaced it meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        check_regular(target)
        fd, writable = _open(target)
        try:
            locked = wait_lock(fd, max(deadline - time.monotonic(), 0))
            if locked is False:
                raise _lock_error(target, "is being edited by another process", "Try again when it is done.")
            if locked is None and not recover and read_journal(target):
                hint = "If no edit is running, `squish edit FILE --recover` cuts off the unfinished one."
                raise _lock_error(target, "may be in use by another edit: this file system has no locks", hint)
            if is_same_file(target, fd):
                lock = LockedFile(target, fd, writable)
                lock.notes += [NO_LOCKS] if locked is None else []
                return lock
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock_error(target: Path, why: str, hint: str) -> WriteError:
    return WriteError(why, file=str(target), code="locked", hint=hint)


def _open(target: Path) -> tuple[int, bool]:
    """Descriptor of a file and whether it is writable: network locks need write access, a rewrite does not."""
    try:
        try:
            return os.open(target, os.O_RDWR | _BINARY), True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return os.open(target, os.O_RDONLY | _BINARY), False
    except OSError as error:
        raise missing(target, error) from None


def _cut_back(lock: LockedFile) -> None:
    journal = read_journal(lock.path)
    if journal and lock.size > journal.size and journal.describes(lock.fd):
        lock.recovered, lock.size = lock.size - journal.size, journal.size
        os.ftruncate(lock.fd, journal.size)
        os.fsync(lock.fd)
    remove_journal(lock.path)


def _create_file(path: Path, target: Path, mode: int | None) -> int | None:
    """Create a temporary that has the permissions of an existing target from its first byte on."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY
    with creation(target):
        old = stat.S_IMODE(target.stat().st_mode) & 0o777 if target.exists() else None
        fd = os.open(path, flags, old if old is not None else 0o666 if mode is None else mode)
    if os.name != "posix":  # Windows neither locks nor renames open files
        os.close(fd)
        return None
    if old is not None:
        with suppress(OSError):  # a file system without permissions
            os.fchmod(fd, old)
    return fd


def create_folder(path: Path, target: Path, mode: int | None) -> int | None:
    """Create a temporary folder; whoever may read its files may list it."""
    with creation(target):
        path.mkdir(0o777 if mode is None else mode | (mode & 0o444) >> 2 | 0o700)
    return os.open(path, os.O_RDONLY) if os.name == "posix" else None


def check_parent(target: Path) -> None:
    """Raise MissingFileError unless the folder of a target exists."""
    folder = target.parent
    if not folder.is_dir():
        hint = home_hint(folder) or "Create it first."
        raise MissingFileError("the folder does not exist", file=str(folder), code=ErrorCode.MISSING, hint=hint)


def check_regular(target: Path) -> None:
    """Raise WriteError if a target exists and is not a regular file."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        kind = "a link" if target.is_symlink() else "a folder" if target.is_dir() else "not a regular file"
        raise WriteError(
            f"is {kind}, and cannot be overwritten", file=str(target), code=ErrorCode.FILE_KIND,
            hint="Name a file in it." if kind == "a folder" else "Name a regular file.",
        )  # fmt: skip


@contextmanager
def creation(target: Path) -> Iterator[None]:
    """Turn an OSError during creation into a WriteError about the target."""
    try:
        yield
    except FileAccessError:
        raise
    except OSError as error:
        raise _unwritable(target, error.strerror or str(error)) from None


def _unwritable(target: Path, reason: str) -> WriteError:
    return WriteError(
        "cannot be written", file=str(target), found=reason, code="unwritable",
        hint=f"Check that you may create files in {str(target.parent)!r} and that the name is not too long.",
    )  # fmt: skip


def sync_rename(target: Path) -> list[str]:
    """Sync the folder after a rename or removal. Neither can be undone, so a failure is only a note."""
    try:
        sync_folder(target.parent)
    except OSError as error:
        failure = f"its folder could not be synced ({error.strerror or error})"
        return [f"{target} is complete and in place, but {failure}: a power failure may bring the old state back"]
    return []


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that only syncs files
                raise
        finally:
            os.close(fd)
