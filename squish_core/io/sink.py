"""Sinks: where containers write bytes, and the streams of tensors that they take; `atomic` makes them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.io.fsync import STEP, Syncer
from squish_core.io.source import Source, check_plain_name
from squish_core.renamed import Renamed

_PAGE, _PIECE = 4096, 2 << 20
_ZEROS = bytes(_PAGE)


class Sink(Renamed):
    """Where a container writes: sequential bytes into one file, or several files of a folder.

    `notes`: what a user should read about the write, complete once it is over. `mode`: permissions of the files of a
    folder, masked by the umask.
    """

    renamed = {"reread": "read_back", "take_back": "truncate"}  # noqa: RUF012

    def __init__(
        self,
        file: BinaryIO | None,
        folder: Path | None,
        progress: Callable[[int], None] | None,
        position: int = 0,
        syncer: Syncer | None = None,
        mode: int | None = None,
    ) -> None:
        self._file, self._folder, self._progress, self._syncer = file, folder, progress, syncer
        self._position, self._begun = position, position
        self._mode = mode
        self.kernel_copy = True
        self.notes: list[str] = []

    def tell(self) -> int:
        """Bytes of the file so far."""
        return self._position

    def write(self, data: Any) -> None:
        """Append bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return
        assert self._file is not None
        self._file.write(view.cast("B"))
        self._advance(view.nbytes)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes written before (header fields that are known only at the end)."""
        assert self._file is not None
        assert offset + len(data) <= self._position
        self._file.seek(offset)
        self._file.write(data)
        self._file.seek(self._position)

    def read_back(self, offset: int, length: int) -> bytes:
        """Bytes written before."""
        assert self._file is not None
        self._file.seek(offset)
        data = self._file.read(length)
        self._file.seek(self._position)
        return data

    def truncate(self, offset: int) -> None:
        """Drop what was written from `offset` on."""
        assert self._file is not None
        self._file.truncate(offset)
        self._file.seek(offset)
        self._advance(offset - self._position)

    def pad(self, alignment: int) -> None:
        """Append zeros up to the next multiple of `alignment`."""
        rest = -self._position % alignment
        while rest:
            self.write(_ZEROS[:rest])
            rest -= min(rest, len(_ZEROS))

    def copy(self, source: Any, offset: int | None = None, length: int = 0) -> None:
        """Append a byte range of a source; the kernel copies it where the file system can.

        Deprecated: a stored array as the only argument.
        """
        if offset is None:
            what = "Sink.copy(array) is now Sink.copy(*run) for each of array.runs()"
            warnings.warn(what, DeprecationWarning, stacklevel=2)
            for run in source.runs():
                self.copy(*run)
            return
        descriptor = source.descriptor()
        if descriptor is None or length <= _PIECE:
            for start in range(0, length, _PIECE):
                self.write(source.view(offset + start, min(_PIECE, length - start)))
        elif self.kernel_copy and (offset - self._position) % _PAGE == 0:
            self._copy_range(descriptor, offset, length, source)
        else:
            # Between pages that do not fall together the kernel takes half as long again.
            self._read_through(source, offset, length)

    def member(self, name: str, folder: str = "") -> Any:
        """Context manager: a Sink for another file of the folder being written, or of a folder in it."""
        for piece in (*folder.split("/"), name) if folder else (name,):
            check_plain_name(piece, str(self._folder))
        return self._member(f"{folder}/{name}")

    def sentinel(self, name: str, folder: str = "") -> None:
        """An empty hidden file, by which others see that what was written before it is complete."""
        with self._member(f"{folder}/{name}"):
            pass

    @contextmanager
    def _member(self, path: str) -> Iterator[Sink]:
        if self._folder is None:
            raise FormatError("this format writes one file, not a folder", code=ErrorCode.FOLDER)
        place = self._folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        assert self._syncer is not None
        mode = 0o666 if self._mode is None else self._mode
        with open(place, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield Sink(file, None, self._progress, syncer=self._syncer)
            self._syncer.finish(file)

    def _copy_range(self, fd: int, offset: int, length: int, source: Any) -> None:
        assert self._file is not None
        self._file.flush()
        target, done = self._file.fileno(), 0
        while done < length and self.kernel_copy:
            try:
                got = os.copy_file_range(fd, target, min(length - done, 1 << 26), offset + done)
            except (OSError, AttributeError):
                self.kernel_copy = False
                break
            if not got:
                break
            done += got
            self._advance(got)
        self._file.seek(self._position)  # the kernel moved it behind the buffer's back
        if done < length:
            self.write(source.view(offset + done, length - done))

    def _read_through(self, source: Source, offset: int, length: int) -> None:
        buffer = memoryview(bytearray(_PIECE))  # stays in the processor's cache
        for start in range(0, length, _PIECE):
            piece = buffer[: min(_PIECE, length - start)]
            source.read_into(offset + start, piece)
            self.write(piece)

    def _advance(self, count: int) -> None:
        self._position += count
        if self._syncer is not None and self._file is not None and self._position - self._begun >= STEP:
            self._syncer.begin(self._file)
            self._begun = self._position
        if self._progress:
            self._progress(count)


class PackedSink(Sink):
    """A Sink into a file that is compressed whole: what was written cannot be looked at or changed again."""

    def __init__(self, write: Callable[[Any], object], progress: Callable[[int], None] | None) -> None:
        super().__init__(None, None, progress)
        self._write, self.kernel_copy = write, False

    def write(self, data: Any) -> None:
        view = memoryview(data)
        if view.nbytes:
            self._write(view.cast("B"))
            self._advance(view.nbytes)

    def patch(self, offset: int, data: bytes) -> None:
        raise self._written()

    def read_back(self, offset: int, length: int) -> bytes:
        raise self._written()

    def truncate(self, offset: int) -> None:
        raise self._written()

    def _written(self) -> FormatError:
        return FormatError(
            "this format looks back at what it wrote, and cannot be written compressed whole", code="compressed",
            hint="Leave the suffix of the compression off the name.",
        )  # fmt: skip
