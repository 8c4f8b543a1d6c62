"""Sinks for targets at a URL: every file appears whole or not at all, those that name others last."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from squish_core.errors import FormatError, SquishError
from squish_core.io.atomic import Packing
from squish_core.io.remote_target import RemoteTarget
from squish_core.io.sink import PackedSink, Sink

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
        Where to write.
    progress
        Called with the number of bytes of each write.
    is_folder
        Write a folder. Its JSON files appear last; if the block fails, files that were not there before are removed.
    packing
        Byte codec that compresses the file.
    revises
        The format changes or reads bytes that it wrote: files are written to temporaries first.
    size
        Bytes of all files, at most.
    overwrite
        Replace files that are there.

    Raises
    ------
    WriteError
        Code `exists`: a file is there, and `overwrite` is not set.
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
        self, target: RemoteTarget, progress: Callable[[int], None] | None, packing: Packing | None, revises: bool,
        size: int | None, overwrite: bool,
    ) -> None:  # fmt: skip
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
            "this format revises earlier bytes of its file", file=self._name, code="forward",
            hint="Write a local file, then upload it.",
        )  # fmt: skip


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
