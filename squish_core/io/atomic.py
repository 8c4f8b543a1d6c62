"""Atomic writes: a temporary that is synced and renamed, or an append that a rollback file can undo.

Temporaries are hidden `.NAME.<random>.part` files or folders beside a target, locked while their writer runs.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FileAccessError, MissingFileError, WriteError
from squish_core.io import system
from squish_core.io.paths import home_hint, make_folders, nearest_folder
from squish_core.io.rollback import remove_stale_rollback
from squish_core.io.sink import PackedSink, Sink, Syncer

_PART = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part", re.DOTALL)
_FRESH = 10.0
"""Seconds for which an unlocked temporary may belong to a writer on Windows, which closes it before it renames it."""
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
        if not system.IS_POSIX:
            self.release()
        system.replace(self.path, target)

    def release(self) -> None:
        """Give up the lock."""
        if self._is_open:
            self._is_open = False
            system.release(self.path, self.fd)


@contextmanager
def new_temporary(target: Path, create: Callable[[Path], int]) -> Iterator[NewTemporary]:
    """A new temporary, locked until the block ends and removed if it fails.

    `create` creates the temporary at a path, with the folders above it, and returns its descriptor.
    """
    path, temporary = _beside(target), None
    absent = [folder for folder in target.parents if not os.path.lexists(folder)]
    try:
        temporary = NewTemporary(path, create(path))
        while system.wait_lock(temporary.fd) is False or not system.is_same_file(system.lockable(path), temporary.fd):
            # Another writer took it for an abandoned one before it was locked, and removed it.
            temporary.release()
            path = _beside(target)
            temporary = NewTemporary(path, create(path))
        yield temporary
    except BaseException:
        with suppress(OSError):
            if temporary is not None and not system.IS_POSIX:
                temporary.release()
        with suppress(OSError):
            _delete(path)
        with suppress(OSError):
            for folder in absent:  # those that `create` made, if they are empty
                folder.rmdir()
        raise
    finally:
        if temporary is not None:
            temporary.release()


def temporaries(folder: Path) -> Iterator[Temporary]:
    """Yield all temporaries below a folder; links are not followed. Raises OSError if the folder cannot be listed."""
    for path in _entries(folder):
        if temporary := _temporary(path):
            yield temporary


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
    fd = None if not system.IS_POSIX and leftover.age < _FRESH else _open(leftover.path)
    if fd is None:
        return False
    temporary = NewTemporary(leftover.path, fd)
    try:
        if system.try_lock(fd) is not True or not system.is_same_file(system.lockable(leftover.path), fd):
            return False
        if not system.IS_POSIX:
            temporary.release()
        _delete(leftover.path)
        return True
    finally:
        temporary.release()


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}.part")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        from shutil import rmtree  # loads compressors

        rmtree(path)
    else:
        system.unlink(path)


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
    state = _STATES[system.is_locked(fd) if fd is not None else None]
    if fd is not None:
        os.close(fd)
    size = sum(info.st_size for info in infos if not stat.S_ISDIR(info.st_mode))
    age = max(time.time() - max(info.st_mtime for info in infos), 0.0)
    return Temporary(path, path.with_name(match[1]), size, age, state)


def _open(path: Path) -> int | None:
    try:
        return os.open(system.lockable(path), system.READ_NO_LINK)
    except OSError:
        return None


BUFFER = 1 << 20


class Packing(Protocol):
    """A byte codec that compresses a whole file."""

    def packing(self, write: Callable[[bytes], object]) -> AbstractContextManager[Callable[[Any], object]]: ...


@contextmanager
def atomic_file(
    target: Path, progress: Callable[[int], None] | None = None, packing: Packing | None = None, mode: int | None = None
) -> Iterator[Sink]:
    """Write a file that replaces the target only if the block succeeds.

    Parameters
    ----------
    target
        Folders above it are made. The file keeps the permissions of the one that it replaces.
    progress
        Called with the number of bytes of each write.
    packing
        Compresses the file on its way.
    mode
        Permissions of a new file, masked by the umask.

    Yields
    ------
    Sink
        Writes the new file.

    Raises
    ------
    WriteError
        The target is a link, a folder or not writable.

    Examples
    --------
    >>> from pathlib import Path
    >>> with atomic_file(Path("parts.bin")) as sink:
    ...     sink.write(b"one")
    >>> Path("parts.bin").read_bytes()
    b'one'
    """
    check_regular(target)
    check_parent(target)
    notes = remove_dead(target)
    with new_temporary(target, lambda path: _create_file(path, target, mode)) as temporary:
        with open(os.dup(temporary.fd), "r+b", buffering=BUFFER) as file, closing(Syncer()) as syncer:
            if packing is None:
                sink = Sink(file, None, progress, syncer=syncer)
                yield sink
            else:
                with packing.packing(file.write) as write:
                    sink = PackedSink(write, progress)
                    yield sink
            syncer.finish(file)
            syncer.wait()
        temporary.move_to(target)
        remove_stale_rollback(target)
    sink.notes += [*notes, *sync_rename(target)]


@contextmanager
def atomic_folder(
    target: Path, progress: Callable[[int], None] | None = None, mode: int | None = None
) -> Iterator[Sink]:
    """Write a new folder that appears only if the block succeeds.

    Parameters
    ----------
    target
        A path that does not exist; folders above it are made.
    progress
        Called with the number of bytes of each write.
    mode
        Permissions of the files, masked by the umask.

    Yields
    ------
    Sink
        `sink.member(name)` opens the files of the folder one by one.

    Raises
    ------
    WriteError
        The target exists (code `exists`) or cannot be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> with atomic_folder(Path("model")) as sink, sink.member("config.json") as file:
    ...     file.write(b"{}")
    >>> sorted(path.name for path in Path("model").iterdir())
    ['config.json']
    """
    check_target(target, is_folder=True)
    notes = remove_dead(target)
    with new_temporary(target, lambda path: create_folder(path, target, mode)) as temporary:
        path = temporary.path
        with closing(Syncer()) as syncer:
            sink = Sink(None, path, progress, syncer=syncer, mode=mode)
            yield sink
            syncer.wait()
        for folder in (*(entry for entry in path.rglob("*") if entry.is_dir()), path):
            sync_folder(folder)
        temporary.move_to(target)
    sink.notes += [*notes, *sync_rename(target)]


def _create_file(path: Path, target: Path, mode: int | None) -> int:
    """Create a temporary that has the permissions of an existing target from its first byte on."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | system.BINARY
    with creation(target):
        make_folders(target)
        old = stat.S_IMODE(target.stat().st_mode) & 0o777 if target.exists() else None
        fd = os.open(path, flags, old if old is not None else 0o666 if mode is None else mode)
    if old is not None:
        system.set_mode(fd, old)
    return fd


def create_folder(path: Path, target: Path, mode: int | None) -> int:
    """Create a temporary folder; users who may read its files may list it."""
    with creation(target):
        make_folders(target)
        path.mkdir(0o777 if mode is None else mode | (mode & 0o444) >> 2 | 0o700)
    return system.open_folder(path)


def check_target(target: Path, *, is_folder: bool) -> None:
    """Raise an error if a target cannot be written: a file is replaced, a folder is not."""
    if not is_folder:
        check_regular(target)
    elif target.exists() or target.is_symlink():
        raise WriteError(
            "already exists", file=str(target), code=ErrorCode.EXISTS, hint="Choose a new name, or remove it."
        )
    check_parent(target)


def check_parent(target: Path) -> None:
    """Raise an error unless the folder of a target exists or can be made: WriteError if a file is in its place."""
    folder = nearest_folder(target)
    if not folder.is_dir():
        raise WriteError("is not a folder", file=str(folder), code=ErrorCode.FILE_KIND, hint="Name a file in a folder.")
    if not target.parent.exists() and (hint := home_hint(target.parent)):  # it would be created with the name `~`
        raise MissingFileError("the folder does not exist", file=str(target.parent), code=ErrorCode.MISSING, hint=hint)


def check_regular(target: Path) -> None:
    """Raise WriteError if a target exists and is not a regular file."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        kind = "a link" if target.is_symlink() else "a folder" if target.is_dir() else "not a regular file"
        hint = "Name a file in it." if kind == "a folder" else "Name a regular file."
        raise WriteError(f"is {kind}, and cannot be overwritten", file=str(target), code=ErrorCode.FILE_KIND, hint=hint)


@contextmanager
def creation(target: Path) -> Iterator[None]:
    """Turn an OSError during creation into a WriteError about the target."""
    try:
        yield
    except FileAccessError:
        raise
    except OSError as error:
        raise unwritable(target, error.strerror or str(error)) from None


def unwritable(target: Path, reason: str) -> WriteError:
    """Error for a target that cannot be written."""
    hint = f"Check that you may create files in {str(target.parent)!r} and that the name is not too long."
    return WriteError("cannot be written", file=str(target), found=reason, code="unwritable", hint=hint)


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
    try:
        system.sync_folder(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that only syncs files
            raise
