"""Replace a folder by a changed one in one step.

Apart from `edit`, because it is about the file system alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import WriteError
from squish_core.io.atomic import create_folder, new_temporary, remove_dead, sync_folder

_AT_FDCWD, _EXCHANGE, _SWAP = -100, 2, 2


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A copy of a folder that takes its place when the block succeeds; its files are links to the same bytes.

    A file in it must be replaced, never overwritten: `atomic_file` does.
    """
    target = folder.resolve()
    remove_dead(target)
    with new_temporary(target, lambda path: create_folder(path, target, target.stat().st_mode & 0o777)) as temporary:
        shutil.copytree(target, temporary.path, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        yield temporary.path
        sync_folder(temporary.path)
        exchange(temporary.path, target)
        sync_folder(target.parent)
        shutil.rmtree(temporary.path)  # now the old one


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def exchange(first: Path, second: Path) -> None:
    """Let two paths swap what they lead to, as one step; WriteError where the system cannot."""
    names = os.fsencode(first), os.fsencode(second)
    library = ctypes.CDLL(None, use_errno=True)
    try:
        if sys.platform == "darwin":
            result = library.renamex_np(*names, _SWAP)
        else:
            result = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)
    except AttributeError:
        result = -1
        ctypes.set_errno(errno.ENOSYS)
    if result:
        raise WriteError(
            "several files of this folder change, and this system cannot exchange folders in one step",
            file=str(second),
            found=os.strerror(ctypes.get_errno()),
            code=ErrorCode.FILE_KIND,
            hint="Write a copy: {option:output=OUT}.",
        )
