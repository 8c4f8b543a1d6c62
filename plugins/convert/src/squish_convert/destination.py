"""The destination of a conversion: a file with others beside it, or files at a URL; and the free space on the disk."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from filecmp import cmp
from pathlib import Path
from typing import Any, BinaryIO

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, WriteError
from squish_core.io.atomic import (
    Packing,
    check_parent,
    check_regular,
    create_folder,
    new_temporary,
    remove_dead,
    sync_folder,
    sync_rename,
)
from squish_core.io.paths import nearest_folder
from squish_core.io.sink import PackedSink, Sink, Syncer
from squish_core.io.system import LOCK_FILE, replace
from squish_core.io.urls import RemoteTarget

_LAST = ".json"
"""Suffix of files that appear last: an index or manifest names files that must exist."""
_PIECE = 8 << 20


@contextmanager
def remote_sink(
    target: RemoteTarget,
    progress: Callable[[int], None] | None = None,
    *,
    is_folder: bool = False,
    packing: Packing | None = None,
    revises: bool = False,
    size: int | None = None,
    overwrite: bool = False,
) -> Iterator[Sink]:
    """Write a target at a URL.

    Parameters
    ----------
    target
        The target at the URL.
    progress
        Called with the number of bytes of each write.
    is_folder
        Write a folder. Its JSON files appear last; if the block fails, files that were not there before are removed.
    packing
        Byte codec that compresses the file.
    revises
        The format changes or rereads bytes that it wrote, so files are written to temporaries first.
    size
        Bytes of all files, at most.
    overwrite
        Replace existing files.

    Raises
    ------
    WriteError
        A file exists, and `overwrite` is not set (code `exists`).
    """
    target.check(overwrite=overwrite)
    files = _Files(target, progress, packing, revises, size, overwrite)
    if not is_folder:
        with files.sink("") as sink:
            yield sink
        return
    before = set(target.existing())
    try:
        folder = RemoteFolderSink(files)
        yield folder
        folder.finish()
        if others := before - target.written.keys():
            folder.notes.append(f"{len(others)} other files stay in {target.name}, such as {min(others)}")
    except BaseException:
        for path in target.written.keys() - before:
            with suppress(SquishError):
                target.remove(path)
        raise


class _Files:
    """Opens sinks for the files of a target."""

    def __init__(
        self,
        target: RemoteTarget,
        progress: Callable[[int], None] | None,
        packing: Packing | None,
        revises: bool,
        size: int | None,
        overwrite: bool,
    ) -> None:
        self.target, self.progress = target, progress
        self._packing, self._revises, self._size, self._overwrite = packing, revises, size, overwrite

    @contextmanager
    def sink(self, path: str) -> Iterator[Sink]:
        """A sink for one file."""
        with self.target.opened(path, size=self._size, overwrite=self._overwrite) as write:
            if self._packing is not None:
                with self._packing.packing(write) as pack:
                    yield PackedSink(pack, self.progress)
            elif self._revises:
                with tempfile.TemporaryFile() as file:
                    yield Sink(file, None, self.progress)
                    _copy(file, write)
            else:
                yield ForwardSink(write, self.progress, self.target.name)


class ForwardSink(PackedSink):
    """A Sink into a file that is uploaded; written bytes cannot be read or changed."""

    def __init__(self, write: Callable[[Any], object], progress: Callable[[int], None] | None, name: str) -> None:
        super().__init__(write, progress)
        self._name = name

    def _not_seekable(self) -> FormatError:
        return FormatError(
            "this format revises earlier bytes of its file",
            file=self._name,
            code="forward",
            hint="Write a local file, then upload it.",
        )


class RemoteFolderSink(Sink):
    """A Sink for the files of a folder at a URL."""

    def __init__(self, files: _Files) -> None:
        super().__init__(None, None, files.progress)
        self._files = files
        self._last: list[tuple[str, bytearray]] = []

    @contextmanager
    def _member(self, path: str) -> Iterator[Sink]:
        path = path.lstrip("/")
        if path.endswith(_LAST):
            content = bytearray()
            yield ForwardSink(content.extend, None, path)  # counted when it is sent
            self._last.append((path, content))
            return
        with self._files.sink(path) as sink:
            yield sink

    def finish(self) -> None:
        """Write the files that come last."""
        for path, content in self._last:
            with self._files.sink(path) as sink:
                sink.write(content)


def _copy(file: BinaryIO, write: Callable[[Any], object]) -> None:
    file.seek(0)
    while data := file.read(_PIECE):
        write(data)


_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.[^.]+)", re.DOTALL)


def set_name(name: str) -> str:
    """Return the name of the set that a file with the name of a shard belongs to; other names stay.

    >>> set_name("m-00001-of-00004.gguf"), set_name("m.gguf")
    ('m.gguf', 'm.gguf')
    """
    shard = _SHARD.fullmatch(name)
    return shard[1] + shard[2] if shard else name


@contextmanager
def atomic_siblings(
    target: Path, progress: Callable[[int], None] | None = None, mode: int | None = None
) -> Iterator[Sink]:
    """Write a file and others beside it; they appear, the file last, only if the block succeeds.

    Without bytes of its own, the file is only the name of a set of shards, and the first shard appears last. The file,
    shards, and files whose names begin with its own replace existing ones. WriteError if another file exists and
    differs. This is checked when that file is written, so usually before the weights.
    """

    def check(name: str) -> None:
        if target.name not in (name, set_name(name)) and not name.startswith(f"{target.name}."):
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
        is_set = bool(names) and not (path / target.name).stat().st_size
        if is_set:
            (path / target.name).unlink()
        for name in names[::-1] if is_set else (*names, target.name):
            replace(path / name, target.parent / name)
        path.rmdir()
    sink.siblings = tuple(target.parent / name for name in names)
    sink.notes += [*notes, *sync_rename(target)]


def _check_sibling(written: Path, sibling: Path) -> None:
    """Raise WriteError if a different file exists where one was written."""
    if not (sibling.exists() or sibling.is_symlink()):
        return
    if sibling.is_symlink() or not sibling.is_file() or not cmp(written, sibling, shallow=False):
        raise WriteError(
            "exists and differs from what belongs beside the target",
            file=str(sibling),
            code=ErrorCode.EXISTS,
            hint="Write into an empty folder, or remove the file.",
        )


def free_bytes(target: Path) -> int | None:
    """Free bytes for this user on the disk of `target`; None if the system does not report them (as for `/proc`)."""
    import shutil  # slow to import, and opening a file imports this module

    try:
        disk = shutil.disk_usage(nearest_folder(target))
    except OSError:
        return None
    return disk.free if disk.total else None


def space_notes(target: Path, size: int | None, estimate: int) -> tuple[str, ...]:
    """Return a note if a file does not fit on the disk of `target`, or may not.

    Parameters
    ----------
    target
        The file or folder to write.
    size
        Its size in bytes; None if it is unknown until written, as with compression.
    estimate
        Size of the tensors before compression and without headers, used if `size` is None.
    """
    try:
        check_space(target, size)
    except WriteError as error:
        return (f"{error.message} ({error.expected} needed, {error.found})",)
    free = free_bytes(target)
    if size is None and free is not None and free < estimate:
        about = f"about {estimate:,} bytes before any compression"
        return (f"the disk may be too small: the tensors take {about}, and {free:,} bytes are free",)
    return ()


def check_space(target: Path, size: int | None) -> None:
    """Raise WriteError if a file of `size` bytes does not fit on the disk of `target`; None is not checked.

    The bytes of a file to be replaced do not count as free: it stays until the new one is complete.
    """
    free = free_bytes(target)
    if size is not None and free is not None and free < size:
        raise WriteError(
            "not enough disk space",
            file=str(target),
            code="space",
            expected=f"{size:,} bytes",
            found=f"{free:,} bytes free",
            hint="Free some space, or write to another disk.",
        )
