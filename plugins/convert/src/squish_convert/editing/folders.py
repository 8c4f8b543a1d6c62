"""Replace a folder by a changed one in one step.

Apart from `edit`, because it is about the file system alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import WriteError
from squish_core.io.atomic import create_folder, new_temporary, remove_dead, sync_folder
from squish_core.io.system import exchange


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
        if not exchange(temporary.path, target):
            raise WriteError(
                "several files of this folder change, and this system cannot exchange folders in one step",
                file=str(folder),
                code=ErrorCode.FILE_KIND,
                hint="Write a copy: {option:output=OUT}.",
            )
        sync_folder(target.parent)
        shutil.rmtree(temporary.path)  # now the old one


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)
