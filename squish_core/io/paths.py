"""Paths: files of a folder, the snapshot in Hugging Face's cache, permissions, and errors for unusable paths."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FileAccessError, FormatError, MissingFileError

NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for paths that lead nowhere, such as a link to itself."""


def regular_files(folder: Path) -> tuple[str, ...]:
    """Return names of the regular files (or links to them) in a folder; empty if the folder does not exist."""
    return _entries(folder, _may_be_file)


def subfolders(folder: Path) -> tuple[str, ...]:
    """Return names of the folders in a folder, without links to folders; empty if the folder does not exist."""
    return _entries(folder, lambda entry: entry.is_dir(follow_symlinks=False))


def broken_links(folder: Path) -> tuple[str, ...]:
    """Return names of the links in a folder to files that do not exist; empty if the folder does not exist."""
    return tuple(sorted(_entries(folder, lambda entry: entry.is_symlink() and not os.path.exists(entry.path))))


def _entries(folder: Path, matches: Callable[[os.DirEntry[str]], bool]) -> tuple[str, ...]:
    """Return names of the entries of a folder that match; empty if the folder does not exist."""
    try:
        with os.scandir(folder) as entries:
            return tuple(entry.name for entry in entries if matches(entry))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise missing(folder, error) from None


def _may_be_file(entry: os.DirEntry[str]) -> bool:
    """Return whether to list an entry: dangling links are left out, unreadable entries stay and fail when opened."""
    try:
        return entry.is_file()
    except OSError as error:
        return error.errno not in NOWHERE


def missing(path: Path, error: Exception) -> FileAccessError:
    """Error for a path that cannot be opened."""
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return MissingFileError(
            "is a link to a file that does not exist",
            file=str(path),
            found=os.readlink(path),
            code=ErrorCode.MISSING,
            hint="Restore the file, or name another one.",
        )
    if isinstance(error, FileNotFoundError):
        nearest = next((parent for parent in path.parents if parent.exists()), Path())
        hint = f"{str(nearest)!r} exists; check the rest of the path." if nearest != path.parent else "Check the name."
        hint = home_hint(path) or _url_hint(path) or hint
        return MissingFileError("no such file or folder", file=str(path), code=ErrorCode.MISSING, hint=hint)
    why = getattr(error, "strerror", None) or error
    number = getattr(error, "errno", None)
    next_step = {
        errno.EACCES: "You need read permission.",
        errno.EMFILE: "Raise the limit of open files: ulimit -n.",
    }.get(number or 0)
    return FileAccessError(f"cannot be opened: {why}", file=str(path), code=ErrorCode.UNREADABLE, hint=next_step)


def nearest_folder(target: Path) -> Path:
    """Return the nearest existing path above a target: a folder, unless a file is in its place."""
    return next((parent for parent in target.parents if os.path.lexists(parent)), Path())


def make_folders(target: Path) -> None:
    """Make the folders above a target."""
    target.parent.mkdir(parents=True, exist_ok=True)


def home_hint(path: Path) -> str | None:
    """Hint for a path that begins with `~`, which Python does not expand."""
    if not str(path).startswith("~"):
        return None
    return "A shell expands `~` unless it is quoted; in Python, use pathlib.Path(...).expanduser()."


def _url_hint(path: Path) -> str | None:
    """Hint for a URL with one slash, as after `os.path.normpath`."""
    match = re.match(r"(https?|s3|gs|az|hf):/(?!/)", str(path))
    return f"A URL has two slashes: {match[1]}://..." if match else None


def file_type(mode: int) -> str:
    """Type of a file-system entry, in words."""
    for test, word in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return word
    return "something else"


PREFIX, SNAPSHOTS = "models--", "snapshots"
"""Start of the name of a model's folder in the cache, `models--ORG--NAME`, and its folder of revisions."""


def snapshot_of(folder: Path) -> Path:
    """The files of a model's folder in the cache: the snapshot that `refs/main` names; without one, the only one.

    Any other folder is returned unchanged. FormatError if the main snapshot is missing, or unknown among several.
    """
    snapshots = folder / SNAPSHOTS
    if not folder.name.startswith(PREFIX) or not snapshots.is_dir():
        return folder
    try:
        names = sorted(each.name for each in snapshots.iterdir() if each.is_dir())
        main = folder / "refs" / "main"
        revision = main.read_text("utf-8")[:100].strip() if main.is_file() else ""
    except (OSError, ValueError):
        return folder
    if revision in names:
        return snapshots / revision
    if len(names) != 1 or revision:
        fault = "has several snapshots, and no refs/main names one" if names else "has no snapshot"
        raise FormatError(
            "has no snapshot of the revision in refs/main" if revision else fault,
            file=str(folder),
            code=ErrorCode.FOLDER,
            expected=revision or None,
            found=", ".join(names[:3]) or None,
            hint="Name the folder of one: snapshots/REVISION." if names else "Download the model again.",
        )
    return snapshots / names[0]
