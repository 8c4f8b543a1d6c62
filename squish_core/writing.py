"""Writing: a temporary beside the target, flushed and synced, then renamed; nothing is lost when it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from squish_core.errors import FormatError
from squish_core.files import home_hint
from squish_core.model import Part, TensorSpec
from squish_core.source import Source, check_plain_name
from squish_core.stored import StoredArray
from squish_core.syncing import STEP, Syncer

if TYPE_CHECKING:
    from squish_core.codecs.base import ByteCodec

_PAGE, _PIECE = 4096, 2 << 20
_ZEROS = bytes(_PAGE)
_Made = TypeVar("_Made")


class Sink:
    """Where a container writes: sequential bytes into one file, or several files of a folder."""

    def __init__(
        self,
        file: BinaryIO | None,
        folder: Path | None,
        progress: Callable[[int], None] | None,
        position: int = 0,
        syncer: Syncer | None = None,
    ) -> None:
        self._file, self._folder, self._progress, self._syncer = file, folder, progress, syncer
        self._position, self._begun = position, position
        self.kernel_copy = True

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

    def reread(self, offset: int, length: int) -> bytes:
        """Bytes written before."""
        assert self._file is not None
        self._file.seek(offset)
        data = self._file.read(length)
        self._file.seek(self._position)
        return data

    def take_back(self, offset: int) -> None:
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

    def copy(self, array: StoredArray) -> None:
        """Append a part's stored bytes; the kernel copies them where the file system can."""
        for segment in array.part.segments:
            source = array._files(segment.file)
            handle = getattr(source, "_handle", None)
            if handle is None or segment.length <= _PIECE:
                for start in range(0, segment.length, _PIECE):
                    self.write(source.view(segment.offset + start, min(_PIECE, segment.length - start)))
            elif self.kernel_copy and (segment.offset - self._position) % _PAGE == 0:
                self._copy_range(handle.fd, segment.offset, segment.length, source)
            else:
                # Between pages that do not fall together the kernel takes half as long again.
                self._read_through(source, segment.offset, segment.length)
        if array.part.data is not None:
            self.write(array.part.data)

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
            raise FormatError("this format writes one file, not a folder", code="folder")
        place = self._folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        assert self._syncer is not None
        with place.open("xb") as file:
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

    def reread(self, offset: int, length: int) -> bytes:
        raise self._written()

    def take_back(self, offset: int) -> None:
        raise self._written()

    def _written(self) -> FormatError:
        return FormatError(
            "this format looks back at what it wrote, and cannot be written compressed whole", code="compressed",
            hint="Leave the suffix of the compression off the name.",
        )  # fmt: skip


class Outgoing:
    """A tensor on its way into a file: its spec as the target will hold it, and streams of its parts."""

    def __init__(self, spec: TensorSpec, parts: Mapping[str, Stream]) -> None:
        self.spec, self.parts = spec, parts


class Stream:
    """The bytes of one part, in order, before the target's filters."""

    def __init__(self, part: Part, chunks: Callable[[], Iterable[Any]], stored: StoredArray | None = None) -> None:
        self.part, self._chunks, self._stored = part, chunks, stored
        self.before: Callable[[], object] = lambda: None

    def chunks(self) -> Iterator[Any]:
        """Buffers that together are the part."""
        self.before()
        yield from self._chunks()

    def write_to(self, sink: Sink) -> None:
        """Append the part to a sink; FormatError when it gives another length than declared."""
        start = sink.tell()
        self.before()
        if self._stored is not None and not self._stored.part.filters:
            sink.copy(self._stored)
        else:
            for chunk in self.chunks():
                sink.write(chunk)
        if sink.tell() - start != self.part.nbytes:
            raise FormatError(
                "a part came out in another size than declared",
                expected=self.part.nbytes, found=sink.tell() - start, code="size",
            )  # fmt: skip


@contextmanager
def atomic_file(
    target: Path, progress: Callable[[int], None] | None = None, packing: ByteCodec | None = None
) -> Iterator[Sink]:
    """A Sink whose file takes the target's place only when the block ends well; `packing` compresses it whole."""
    _check_plain(target)
    _check_parent(target)
    temporary = _beside(target)
    try:
        # A stop may come while it is made: inside, what is there by then is taken away.
        with _made(target, lambda: temporary.open("x+b", buffering=1 << 20)) as file, closing(Syncer()) as syncer:
            if packing is None:
                yield Sink(file, None, progress, syncer=syncer)
            else:
                with packing.packing(file.write) as write:
                    yield PackedSink(write, progress)
            syncer.finish(file)
            syncer.wait()
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def appended_file(target: Path) -> Iterator[Sink]:
    """A Sink at the end of a file that is there; synced when the block ends well, else cut back to what it was."""
    _check_plain(target)
    file = _made(target, lambda: target.open("r+b", buffering=1 << 20))
    size = file.seek(0, os.SEEK_END)
    try:
        with file, closing(Syncer()) as syncer:
            yield Sink(file, None, None, size, syncer)
            syncer.finish(file)
            syncer.wait()
    except BaseException:
        # Closed first, though that may fail too (a full disk): what is buffered must not come after the cut.
        os.truncate(target, size)
        raise


@contextmanager
def atomic_folder(target: Path, progress: Callable[[int], None] | None = None) -> Iterator[Sink]:
    """A Sink of a new folder that appears only when the block ends well; an existing one is not touched."""
    if target.exists() or target.is_symlink():
        raise FormatError("already exists", file=str(target), code="exists", hint="Name a new folder, or remove it.")
    _check_parent(target)
    temporary = _beside(target)
    try:
        _made(target, temporary.mkdir)
        with closing(Syncer()) as syncer:
            yield Sink(None, temporary, progress, syncer=syncer)
            syncer.wait()
        for folder in (*(path for path in temporary.rglob("*") if path.is_dir()), temporary):
            _sync_folder(folder)
        os.rename(temporary, target)
        _sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_parent(target: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        hint = home_hint(folder) or "Create it first."
        raise FormatError("the folder does not exist", file=str(folder), code="missing", hint=hint)


def _check_plain(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_file()):
        kind = "a link" if target.is_symlink() else "a folder" if target.is_dir() else "no regular file"
        raise FormatError(
            f"is {kind}, and is not written through", file=str(target), code="file-kind",
            hint="Name a file in it." if kind == "a folder" else "Name a plain file.",
        )  # fmt: skip


def _made(target: Path, make: Callable[[], _Made]) -> _Made:
    """The file or folder that `make` makes; FormatError where it cannot."""
    try:
        return make()
    except OSError as error:
        raise FormatError(
            "cannot be written", file=str(target), found=error.strerror, code="unwritable",
            hint=f"Check that {str(target.parent)!r} lets you make files and that the name is not too long.",
        ) from None  # fmt: skip


def _beside(target: Path) -> Path:
    """A new hidden name in the target's folder; what is made there gets the permissions of any new file."""
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}.part")


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
