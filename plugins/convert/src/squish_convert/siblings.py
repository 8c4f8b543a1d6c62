"""Atomic writes of a file with others beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from filecmp import cmp
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import WriteError
from squish_core.io.atomic import check_parent, check_regular, create_folder, sync_folder, sync_rename
from squish_core.io.fsync import Syncer
from squish_core.io.sink import Sink
from squish_core.io.system import LOCK_FILE, replace
from squish_core.io.temporaries import new_temporary, remove_dead


@contextmanager
def atomic_siblings(
    target: Path, progress: Callable[[int], None] | None = None, mode: int | None = None
) -> Iterator[Sink]:
    """Write a file and others beside it; they appear, the file last, only if the block succeeds.

    The file and those whose names begin with its own replace existing ones. WriteError if another file exists and
    differs: when that one is written, so that a writer finds out before the weights if these come last.
    """

    def check(name: str) -> None:
        if name != target.name and not name.startswith(f"{target.name}."):
            _check_sibling(path / name, target.parent / name)

    check_regular(target)
    check_parent(target)
    notes = remove_dead(target)
    with new_temporary(target, lambda path: create_folder(path, target, mode)) as temporary:
        path = temporary.path
        with closing(Syncer()) as syncer:
            with Sink(None, path, progress, syncer=syncer, mode=mode).member(target.name) as sink:
                sink._folder, sink._mode, sink.check_member = path, mode, check
                yield sink
            syncer.wait()
        sync_folder(path)
        names = sorted(entry.name for entry in path.iterdir() if entry.name not in (target.name, LOCK_FILE))
        for name in names:
            check(name)  # it may have appeared while the others were written
        temporary.release()  # on Windows, the lock is a file in the folder
        for name in (*names, target.name):
            replace(path / name, target.parent / name)
        path.rmdir()
    sink.siblings = tuple(target.parent / name for name in names)
    sink.notes += [*notes, *sync_rename(target)]


def _check_sibling(written: Path, sibling: Path) -> None:
    """WriteError if another file is in the place of one that was written."""
    if not (sibling.exists() or sibling.is_symlink()):
        return
    if sibling.is_symlink() or not sibling.is_file() or not cmp(written, sibling, shallow=False):
        raise WriteError(
            "exists and differs from what belongs beside the target", file=str(sibling), code=ErrorCode.EXISTS,
            hint="Write into an empty folder, or remove the file.",
        )  # fmt: skip
