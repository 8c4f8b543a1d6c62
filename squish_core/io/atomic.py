"""Atomic writes: a temporary that is synced and renamed, or an append that a rollback file can undo."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from squish_core.codes import ErrorCode
from squish_core.errors import FileAccessError, MissingFileError, WriteError
from squish_core.io import system
from squish_core.io.fsync import Syncer
from squish_core.io.paths import home_hint, make_folders, nearest_folder
from squish_core.io.rollback import remove_stale_rollback
from squish_core.io.sink import PackedSink, Sink
from squish_core.io.system import BINARY, open_folder, set_mode
from squish_core.io.temporaries import new_temporary, remove_dead

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
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY
    with creation(target):
        make_folders(target)
        old = stat.S_IMODE(target.stat().st_mode) & 0o777 if target.exists() else None
        fd = os.open(path, flags, old if old is not None else 0o666 if mode is None else mode)
    if old is not None:
        set_mode(fd, old)
    return fd


def create_folder(path: Path, target: Path, mode: int | None) -> int:
    """Create a temporary folder; whoever may read its files may list it."""
    with creation(target):
        make_folders(target)
        path.mkdir(0o777 if mode is None else mode | (mode & 0o444) >> 2 | 0o700)
    return open_folder(path)


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
    if not target.parent.exists() and (hint := home_hint(target.parent)):  # made, it would be called `~`
        raise MissingFileError("the folder does not exist", file=str(target.parent), code=ErrorCode.MISSING, hint=hint)


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
        raise unwritable(target, error.strerror or str(error)) from None


def unwritable(target: Path, reason: str) -> WriteError:
    """Error for a target that cannot be written."""
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
    try:
        system.sync_folder(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that only syncs files
            raise
