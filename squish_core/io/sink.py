"""Sinks: the files and folders that containers write into, with space allocated ahead and writes in the background."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from squish_core.codes import ErrorCode
from squish_core.concurrency import Pool, map_in_order
from squish_core.errors import FormatError
from squish_core.io.source import Source, check_file_name
from squish_core.io.system import WRITES_IN_THREADS, write_at

if TYPE_CHECKING:
    from concurrent.futures import Future


STEP = 64 << 20
"""Bytes of a file between the starts of a writeback."""
THREADS = 4
"""Concurrent syncs: concurrent fsyncs share a journal commit."""
MOST = 16
"""Open files with a sync pending, at most."""


WRITES = 3
"""Writes pending, at most; each keeps its bytes in memory."""


class Syncer:
    """Writes to files and syncs them in background threads; `finish_writes` and `wait` raise their OSErrors."""

    def __init__(self) -> None:
        self._pool = Pool(THREADS)
        self._running: deque[Future[None]] = deque()
        self._writes: deque[Future[None]] = deque()

    def write(self, file: BinaryIO, offset: int, data: memoryview) -> None:
        """Start writing bytes at an offset."""
        while len(self._writes) >= WRITES:
            self._writes.popleft().result()
        self._writes.append(self._submitted(write_at, file, data, offset))

    def finish_writes(self) -> None:
        """Wait until all bytes are written."""
        while self._writes:
            self._writes.popleft().result()

    def begin(self, file: BinaryIO) -> None:
        """Start writeback of a file's dirty pages."""
        while len(self._running) >= MOST:
            self._running.popleft().result()
        self._running.append(self._submitted(os.fsync, file))

    def finish(self, file: BinaryIO) -> None:
        """Flush and close a file, and sync it in the background."""
        with file:
            file.flush()
            self.finish_writes()
            self.begin(file)

    def wait(self) -> None:
        """Wait until all syncs are done."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        """Cancel writes and syncs that have not started, and wait for the others."""
        self._pool.close()

    def _submitted(self, function: Callable[..., None], file: BinaryIO, *arguments: Any) -> Future[None]:
        """Return a call with a descriptor of its own: the file may be closed meanwhile."""
        fd = os.dup(file.fileno())
        future = self._pool.submit(function, fd, *arguments)
        future.add_done_callback(lambda _: os.close(fd))
        return future


KEEP_SIZE = 1
"""Linux's FALLOC_FL_KEEP_SIZE: the file does not grow until it is written."""


def allocate(fd: int, offset: int, length: int) -> None:
    """Allocate disk space for a range of a file; a hint, without effect where the system or the file system cannot.

    Writes then take half the time: ext4 finds places for all blocks at once, not for each page.
    """
    if (fallocate := _fallocate()) is not None:
        fallocate(fd, KEEP_SIZE, offset, length)


@cache
def _fallocate() -> Any:
    """The system call, on 64-bit Linux. `os.posix_fallocate` would write zeros where the file system lacks it."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_PAGE, _PIECE = 4096, 2 << 20
_ZEROS = bytes(_PAGE)
_BUFFER, _SPAN = 1 << 20, 4
"""Bytes of a thread's buffer, which stays in the processor's cache, and the buffers that a thread copies in a row."""
COPIERS = 3
"""Threads that copy at once: a file takes one write at a time, and meanwhile the others read."""


def align_up(offset: int, alignment: int) -> int:
    """Return the next multiple of `alignment`, or the offset itself if it is one.

    Parameters
    ----------
    offset, alignment
        A position in a file, and what it must be a multiple of.

    Returns
    -------
    int
        At least `offset`.

    Examples
    --------
    >>> align_up(33, 32), align_up(64, 32)
    (64, 64)
    """
    return offset + -offset % alignment


class Sink:
    """Output of a container: sequential bytes of one file, or the files of a folder.

    `notes`: remarks for the user, complete when the write ends. `mode`: permissions of a folder's files, masked by
    the umask. `name`: path of the file in its folder, "" for a single file. `siblings`: files that were
    written beside the file, when the write ends. `check_member`: called with the name of each member that is complete.
    `records`: only places are recorded: parts have no bytes, and `skip` stands for what depends on them.
    """

    records = False

    def __init__(
        self,
        file: BinaryIO | None,
        folder: Path | None,
        progress: Callable[[int], None] | None,
        position: int = 0,
        syncer: Syncer | None = None,
        mode: int | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self._file, self._folder, self._progress, self._syncer = file, folder, progress, syncer
        self._position, self._sync_position = position, position
        self._mode = mode
        self.siblings: tuple[Path, ...] = ()
        self.check_member: Callable[[str], object] = lambda name: None
        self.kernel_copy = True
        self.notes: list[str] = []

    def tell(self) -> int:
        """Current position in the file."""
        return self._position

    def reserve(self, length: int) -> None:
        """Allocate disk space for exactly the bytes that follow, if the system can; writing them is then faster."""
        if self._file is not None:
            allocate(self._file.fileno(), self._position, length)

    def write(self, data: Any) -> None:
        """Append bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return
        assert self._file is not None
        self._file.write(view.cast("B"))
        self._advance(view.nbytes)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite earlier bytes, such as header fields whose value follows from the data."""
        assert self._file is not None
        assert offset + len(data) <= self._position
        self._finish_writes()
        self._file.seek(offset)
        self._file.write(data)
        self._file.seek(self._position)

    @property
    def is_seekable(self) -> bool:
        """Whether earlier and later bytes of the file can be written (`write_ahead`) and read."""
        return self._file is not None

    def write_ahead(self, offset: int, data: Any) -> None:
        """Write bytes ahead of the current position; `skip` passes them when their turn comes."""
        assert self._file is not None
        assert offset >= self._position
        self._file.seek(offset)
        self._file.write(data)
        self._file.seek(self._position)

    def skip(self, length: int) -> None:
        """Pass bytes that `write_ahead` wrote."""
        assert self._file is not None
        self._file.seek(self._position + length)
        self._advance(length)

    def read_back(self, offset: int, length: int) -> bytes:
        """Read earlier bytes."""
        assert self._file is not None
        self._finish_writes()
        self._file.seek(offset)
        data = self._file.read(length)
        self._file.seek(self._position)
        return data

    def truncate(self, offset: int) -> None:
        """Drop all bytes from `offset` on."""
        assert self._file is not None
        self._finish_writes()
        self._file.truncate(offset)
        self._file.seek(offset)
        self._advance(offset - self._position)

    def pad(self, alignment: int) -> None:
        """Append zeros up to the next multiple of `alignment`."""
        rest = -self._position % alignment
        while rest:
            self.write(_ZEROS[:rest])
            rest -= min(rest, len(_ZEROS))

    def copy(self, source: Source, offset: int, length: int) -> None:
        """Append a byte range of a source, copied in the kernel if the file system supports it."""
        if length <= _PIECE:
            self.write(source.view(offset, length))
        elif (descriptor := source.descriptor()) is None:
            self._copy_views(source, offset, length)
        elif self.kernel_copy and (offset - self._position) % _PAGE == 0:
            self._copy_range(descriptor, offset, length, source)
        else:
            # For unaligned pages, the kernel's copy takes 1.5 times as long.
            self.fill(lambda start, piece: source.read_into(offset + start, piece), length)

    def fill(
        self, read_into: Callable[[int, memoryview], object], length: int, grain: int = 1, *, in_order: bool = False
    ) -> None:
        """Append bytes through small buffers. `read_into` receives multiples of `grain` bytes, and their start; several
        threads call it, unless `in_order`."""
        size = min(max(_BUFFER - _BUFFER % grain, grain), length)
        if self._supports_pwrite and not in_order:
            self._fill_in_threads(read_into, length, size)
            return
        buffer = memoryview(bytearray(size))
        for start in range(0, length, size or 1):
            piece = buffer[: min(size, length - start)]
            read_into(start, piece)
            self.write(piece)

    def member(self, name: str, folder: str = "") -> Any:
        """Context manager: a Sink for another file of the folder, or of its subfolder `folder`."""
        for piece in (*folder.split("/"), name) if folder else (name,):
            check_file_name(piece, str(self._folder))
        return self._member(f"{folder}/{name}")

    def sentinel(self, name: str, folder: str = "") -> None:
        """Write an empty hidden file that marks everything written before it as complete."""
        with self._member(f"{folder}/{name}"):
            pass

    @contextmanager
    def _member(self, name: str) -> Iterator[Sink]:
        if self._folder is None:
            raise FormatError("this format writes one file, not a folder", code=ErrorCode.FOLDER)
        path = self._folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        assert self._syncer is not None
        mode = 0o666 if self._mode is None else self._mode
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield Sink(file, None, self._progress, syncer=self._syncer, name=name.lstrip("/"))
            self._syncer.finish(file)
        self.check_member(name.lstrip("/"))

    def _copy_range(self, fd: int, offset: int, length: int, source: Any) -> None:
        assert self._file is not None
        self._file.flush()
        target, done = self._file.fileno(), 0
        while done < length and self.kernel_copy:
            try:
                count = os.copy_file_range(fd, target, min(length - done, 1 << 26), offset + done)
            except (OSError, AttributeError):
                self.kernel_copy = False
                break
            if not count:
                break
            done += count
            self._advance(count)
        self._file.seek(self._position)  # the buffered file does not see the kernel's writes
        if done < length:
            self.write(source.view(offset + done, length - done))

    @property
    def _supports_pwrite(self) -> bool:
        """Whether threads can write at any offset: not if the file is compressed, nor on Windows."""
        return self._file is not None and self._syncer is not None and WRITES_IN_THREADS

    def _fill_in_threads(self, read_into: Callable[[int, memoryview], object], length: int, size: int) -> None:
        assert self._file is not None
        self._file.flush()
        target, position, span = self._file.fileno(), self._position, _SPAN * size

        def copy(first: int) -> int:
            buffer, stop = memoryview(bytearray(size)), min(first + span, length)
            for start in range(first, stop, size):
                piece = buffer[: min(size, stop - start)]
                read_into(start, piece)
                write_at(target, piece, position + start)
            return stop - first

        for count in map_in_order(copy, range(0, length, span or 1), most=COPIERS):
            self._advance(count)
        self._file.seek(self._position)

    def _copy_views(self, source: Source, offset: int, length: int) -> None:
        """Write views in other threads while the next ones arrive, if this is a file that is synced."""
        views = (source.view(offset + start, min(_PIECE, length - start)) for start in range(0, length, _PIECE))
        if not self._supports_pwrite:
            for view in views:
                self.write(view)
            return
        assert self._file is not None
        assert self._syncer is not None
        self._file.flush()
        for view in views:
            self._syncer.write(self._file, self._position, view)
            self._advance(len(view))
        self._file.seek(self._position)

    def _finish_writes(self) -> None:
        """Wait for the writes of other threads."""
        if self._syncer is not None:
            self._syncer.finish_writes()

    def _advance(self, count: int) -> None:
        self._position += count
        if self._syncer is not None and self._file is not None and self._position - self._sync_position >= STEP:
            self._syncer.begin(self._file)
            self._sync_position = self._position
        if self._progress:
            self._progress(count)


class PackedSink(Sink):
    """A Sink into a compressed file; bytes once written cannot be read or changed."""

    def __init__(self, write: Callable[[Any], object], progress: Callable[[int], None] | None) -> None:
        super().__init__(None, None, progress)
        self._write, self.kernel_copy = write, False

    def write(self, data: Any) -> None:
        view = memoryview(data)
        if view.nbytes:
            self._write(view.cast("B"))
            self._advance(view.nbytes)

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        raise self._not_seekable()

    def _not_seekable(self) -> FormatError:
        return FormatError(
            "this format revises earlier bytes of its file, so it cannot be written compressed",
            code="compressed",
            hint="Remove the compression suffix from the file name.",
        )

    patch = read_back = truncate = _refuse
