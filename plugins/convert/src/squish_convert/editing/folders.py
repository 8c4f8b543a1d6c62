"""Change several files of a folder in one step, and copy folders.

Apart from `edit`, because it is about the file system alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from squish_core.codes import ErrorCode
from squish_core.errors import WriteError
from squish_core.io.atomic import (
    check_target,
    create_folder,
    new_temporary,
    remove_dead,
    sync_folder,
    temporaries,
)
from squish_core.io.system import LOCK_FILE, exchange

MOST_ENTRIES = 10_000
"""Most files of a folder in which several files are changed in one step: each gets a link."""
COPY_HINT = "Write a copy: {option:output=OUT}."

Entries = Mapping[str, tuple[int, int]]
"""Path in a folder -> device and inode, of everything in it but folders."""


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A copy of a folder whose files take the place of the folder's in one step, when the block succeeds.

    The files of the copy are links to the same bytes: one that changes must be replaced, never overwritten, as
    `atomic_file` does. The copy takes the name of the folder, the folder gets the new files and then its name back. So
    every process that works in the folder stays in it, and what another process writes there meanwhile is kept.
    """
    target = folder.resolve()
    with new_temporary(target, lambda path: create_folder(path, target, target.stat().st_mode & 0o777)) as temporary:
        before = _linked(target, temporary.path)
        yield temporary.path
        changed = entries(temporary.path)
        sync_folder(temporary.path)
        if not exchange(temporary.path, target):
            _refuse(folder, "this system cannot exchange folders in one step")
        with suppress(OSError):  # the new files are in place, whatever fails now
            sync_folder(target.parent)
            _update(temporary.path, target, before, changed)
            sync_folder(temporary.path)
            exchange(temporary.path, target)
            sync_folder(target.parent)
        _keep_others(temporary.path, target, {*before.items(), *changed.items()})
        shutil.rmtree(temporary.path, ignore_errors=True)


@contextmanager
def copied_folder(folder: Path, target: Path, without: Collection[str]) -> Iterator[tuple[Path, list[str]]]:
    """A new folder that appears when the block succeeds, with the other files of a folder; and notes for the user.

    Files that the block writes are not copied, nor are those in `without`. Links are copied as what they lead to.
    """
    check_target(target, is_folder=True)
    notes, unfinished = remove_dead(target), {each.path for each in temporaries(folder)}
    mode = folder.stat().st_mode & 0o777
    with new_temporary(target, lambda path: create_folder(path, target, mode)) as temporary:
        unfinished.add(temporary.path)
        yield temporary.path, notes
        for name in entries(folder):
            path = temporary.path / name
            if name in without or name == LOCK_FILE or os.path.lexists(path):
                continue
            if unfinished.intersection([folder / name, *(folder / name).parents]):
                continue
            if not (folder / name).is_file():
                notes.append(f"{name} is not a file, and was not copied")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, path)
            sync_file(path)
        for each in (*(path for path in temporary.path.rglob("*") if path.is_dir()), temporary.path):
            sync_folder(each)
        temporary.move_to(target)
    sync_folder(target.parent)


def entries(folder: Path, most: int | None = None) -> dict[str, tuple[int, int]]:
    """Return everything below a folder but folders; links are not followed."""

    def fail(error: OSError) -> NoReturn:
        raise error

    found = {}
    for parent, folders, files in os.walk(folder, onerror=fail):
        linked = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*files, *linked):
            path = os.path.join(parent, name)
            with suppress(FileNotFoundError):  # another process removed it
                status = os.lstat(path)
                found[os.path.relpath(path, folder)] = status.st_dev, status.st_ino
        if most is not None and len(found) > most:
            _refuse(folder, f"it has more than {most:,} files", "Move the model to a folder of its own.")
    return found


def sync_file(path: Path) -> None:
    """Make a file durable."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def move_files(source: Path, target: Path) -> None:
    """Move all files of a folder into another one, where they replace those of the same names."""
    for name in entries(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / name, target / name)
    shutil.rmtree(source)


def _linked(folder: Path, copy: Path) -> Entries:
    """Fill a copy of a folder with links to its files; returns these."""
    if folder == folder.parent:
        _refuse(folder, "it is the root of the file system", "Move the model to a folder of its own.")
    before = entries(folder, MOST_ENTRIES)
    for name in before:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, copy / name, follow_symlinks=False)
        except FileNotFoundError:  # another process removed it
            continue
        except OSError as error:
            _refuse(folder, f"{name} cannot be linked: {error.strerror}")
    return before


def _update(folder: Path, new: Path, before: Entries, changed: Entries) -> None:
    """Make the files of a folder those of the new one; files that were not there before stay."""
    for name in changed:
        if before.get(name) != changed[name]:
            link = folder / f".{os.urandom(8).hex()}.part"
            try:
                os.link(new / name, link, follow_symlinks=False)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(link, folder / name)
            finally:
                link.unlink(missing_ok=True)
    for name in before.keys() - changed.keys():
        (folder / name).unlink(missing_ok=True)


def _keep_others(leftover: Path, folder: Path, known: Collection[tuple[str, tuple[int, int]]]) -> None:
    """Move files that another process wrote meanwhile out of the folder that is removed."""
    for name, file in entries(leftover).items():
        if (name, file) not in known:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(leftover / name, folder / name)


def _refuse(folder: Path, why: str, hint: str = "") -> NoReturn:
    raise WriteError(
        f"several files of this folder change, and {why}",
        file=str(folder),
        code=ErrorCode.FILE_KIND,
        hint=f"{hint} {COPY_HINT}".lstrip(),
    )
