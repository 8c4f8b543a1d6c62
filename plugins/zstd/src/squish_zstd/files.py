"""Compressed files: read and written in independent frames, several in parallel.

Source: zstd's contrib seekable format 0.1.0; any zstd can decompress the files written here.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from squish_core.api import CodecError, FormatError, LimitError, Limits, Pool, Source, workers

from .frames import LEVEL, decode, frames

if TYPE_CHECKING:
    from concurrent.futures import Future

SUFFIX = ".zst"
FRAME = 1 << 20
"""Content bytes per written frame (except the last); content and compressed frame fit a core's cache."""
LARGEST = 128 << 20
"""Maximum content bytes of a frame, since a small read decodes a whole frame."""
CACHE_SIZE = 32 << 20
"""Content bytes to cache, in whole frames; the last frame is always cached."""
WORKERS = 8
"""Maximum number of frames in parallel."""

_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC = 0x184D2A5E, 0x8F92EAB1
_CHECKSUMS, _RESERVED = 1 << 7, 0x7C  # bits of the table descriptor
_MAX_SCANNED = 1 << 20  # maximum number of frames without a seek table
_SMALL = 256 << 20


class Unpacked(Source):
    """The content of a `.zst` file, located by its seek table or by the content sizes of its frames."""

    def __init__(self, packed: Source, limits: Limits) -> None:
        self._packed, self._limits = packed, limits
        table = _table(packed, limits)
        self._frame_ends, self._ends = np.cumsum(table, axis=0, dtype=np.int64).T
        self._frames: OrderedDict[int, memoryview] = OrderedDict()
        self._next = 0
        super().__init__(packed.name, int(self._ends[-1]) if len(table) else 0)
        self.packed, self.path = ("zstd", packed.size), packed.path
        self.is_remote, self.lists_members, self.pin = packed.is_remote, packed.lists_members, packed.pin
        name = packed.filename
        self.filename = name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name
        largest, allowed = int(table[:, 1].max(initial=0)), max(_SMALL, packed.size * limits.ratio)
        if self.size > allowed:
            raise LimitError(
                "decompressed size exceeds the limit",
                expected=f"at most {allowed} bytes",
                found=f"{self.size} bytes",
                code="ratio",
                limit="ratio",
            )
        if largest > LARGEST:
            raise _unpack_first(f"with frames of up to {largest} bytes")

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self._check(offset, len(out), what)
        stop = offset + len(out)
        numbers = range(self._number(offset), self._number(stop - 1) + 1) if len(out) else range(0)

        def fill(number: int) -> None:
            start, end = self._range(number)
            low, high = max(start, offset), min(end, stop)
            target = out[low - offset : high - offset]
            if (low, high) == (start, end):
                self._decode(number, target)
            else:
                target[:] = self._content(number)[low - start : high - start]

        _on_cores(fill, numbers)

    def unmapped(self) -> Source:
        twin: Unpacked = super().unmapped()  # type: ignore[assignment]
        twin._packed, twin._frames = self._packed.unmapped(), OrderedDict()
        return twin

    def close(self) -> None:
        super().close()
        self._packed.close()

    def _view(self, offset: int, length: int) -> memoryview:
        number = self._number(offset)
        start, end = self._range(number)
        if offset + length <= end:
            return self._content(number)[offset - start : offset - start + length]
        out = np.empty(length, np.uint8).data  # NumPy requests huge pages
        self.read_into(offset, out)
        return out.toreadonly()

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        files = self._packed.members(folder, [name + end for name in names for end in ("", SUFFIX)])
        return tuple(name for name in names if name in files or name + SUFFIX in files)

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return tuple(name.removesuffix(SUFFIX) for name in self._packed.members(folder))

    def _open_member(self, name: str) -> Source:
        folder, _, base = name.rpartition("/")
        if self._packed.has(base + SUFFIX, folder):
            return Unpacked(self._packed.member(base + SUFFIX, folder), self._limits)
        return self._packed.member(base, folder)

    def _number(self, offset: int) -> int:
        """Return the frame number of a content offset."""
        return int(np.searchsorted(self._ends, offset, side="right"))

    def _range(self, number: int) -> tuple[int, int]:
        """Return the content range of a frame."""
        return int(self._ends[number - 1]) if number else 0, int(self._ends[number])

    def _content(self, number: int) -> memoryview:
        """Return a frame's content; sequential reads decode the next frames ahead."""
        with self._lock:
            if number in self._frames:
                self._frames.move_to_end(number)
                return self._frames[number]
            ahead = workers(WORKERS) if number and number == self._next else 1
            numbers = range(number, min(number + ahead, len(self._ends)))
            self._next = numbers.stop
        contents = _on_cores(self._decode_frame, numbers)
        with self._lock:
            # The requested frame is inserted last, so it stays cached whatever its size.
            self._frames.update(reversed(list(zip(numbers, contents))))
            cached = sum(map(len, self._frames.values()))
            while cached > CACHE_SIZE and len(self._frames) > 1:
                cached -= len(self._frames.popitem(last=False)[1])
        return contents[0]

    def _decode_frame(self, number: int) -> memoryview:
        start, end = self._range(number)
        content = np.empty(end - start, np.uint8).data
        self._decode(number, content)
        return content.toreadonly()

    def _decode(self, number: int, out: memoryview) -> None:
        start = int(self._frame_ends[number - 1]) if number else 0
        frame = self._packed.view(start, int(self._frame_ends[number]) - start, "a zstd frame")
        try:
            decode(frame, out)
        except CodecError as error:
            error.offset = start + (error.offset or 0)
            raise


@contextmanager
def packing(write: Callable[[bytes], object]) -> Iterator[Callable[[Any], None]]:
    """Yield a function that accepts content; writes frames compressed in parallel, and a seek table."""
    waiting: deque[Future[bytes]] = deque()
    buffer, sizes, table = bytearray(), deque[int](), bytearray()

    def compress(content: bytes) -> bytes:
        return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(content)

    def submit(size: int, waits: int) -> None:
        if size:
            waiting.append(pool.submit(compress, bytes(memoryview(buffer)[:size])))
            sizes.append(size)
            del buffer[:size]
        while len(waiting) > waits:
            frame = waiting.popleft().result()
            write(frame)
            table.extend(struct.pack("<II", len(frame), sizes.popleft()))

    def write_content(content: Any) -> None:
        buffer.extend(content)
        while len(buffer) >= FRAME:
            submit(FRAME, 2 * threads)

    threads = workers(WORKERS)
    with Pool(threads) as pool:
        yield write_content
        submit(len(buffer), 0)
    if not table:  # an empty file still needs a frame for its signature
        empty = compress(b"")
        write(empty)
        table.extend(struct.pack("<II", len(empty), 0))
    write(_HEADER.pack(_SKIPPABLE, len(table) + _FOOTER.size) + table + _FOOTER.pack(len(table) // 8, 0, _MAGIC))


def _on_cores(work: Callable[[int], Any], numbers: range) -> list[Any]:
    if len(numbers) < 2:
        return list(map(work, numbers))
    with Pool(workers(min(WORKERS, len(numbers)))) as pool:
        return pool.map(work, numbers)


def _table(packed: Source, limits: Limits) -> np.ndarray:
    """Return compressed and decoded size of each frame, i64 [frames, 2]."""
    if packed.size < _HEADER.size + _FOOTER.size:
        return _scan_frames(packed)
    count, descriptor, magic = _FOOTER.unpack(packed.read(packed.size - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC:
        return _scan_frames(packed)
    columns = 3 if descriptor & _CHECKSUMS else 2
    size = 4 * columns * count
    start = packed.size - _HEADER.size - size - _FOOTER.size
    if descriptor & _RESERVED or start < 0:
        raise _corrupt("corrupt seek table", "a table within the file", f"{count} frames", packed.size)
    if size > limits.header:
        raise LimitError(
            "seek table too long",
            expected=f"at most {limits.header} bytes",
            found=f"{size} bytes",
            code="header",
            limit="header",
        )
    header = _HEADER.unpack(packed.read(start, _HEADER.size))
    if header != (_SKIPPABLE, size + _FOOTER.size):
        raise _corrupt("corrupt seek table", f"a frame of {size + _FOOTER.size} bytes", header, start)
    entries = np.frombuffer(packed.read(start + _HEADER.size, size), "<u4").reshape(count, columns)
    table = entries[:, :2].astype(np.int64)
    if (total := int(table[:, 0].sum())) != start:
        raise _corrupt("seek table does not match the file", f"frames of {start} bytes", f"{total} bytes", start)
    return table


def _scan_frames(packed: Source) -> np.ndarray:
    """Return the sizes like `_table`, from frame and block headers."""
    if packed.is_remote:
        raise FormatError(
            "compressed file without a seek table: all of it would be downloaded",
            code="frames",
            found=f"{packed.size} bytes",
            hint="Download it; `squish convert X.gguf X.gguf.zst` writes seekable frames with a table.",
        )
    data = packed.view(0, packed.size)
    rows, position = [], 0
    # Data between two frames is skippable; it is decoded together with the following frame.
    for start, stop in islice(frames(data, 1 << 62), _MAX_SCANNED + 1):
        size = zstandard.get_frame_parameters(data[start : start + 18]).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise _unpack_first("without content sizes")
        rows.append((stop - position, size))
        position = stop
    if len(rows) > _MAX_SCANNED:
        raise LimitError("too many zstd frames without a seek table", expected=f"at most {_MAX_SCANNED}", code="count")
    return np.array(rows, np.int64).reshape(-1, 2)


def _unpack_first(how: str) -> FormatError:
    return FormatError(
        f"compressed file {how}",
        code="frames",
        hint="Decompress it (`zstd -d`); `squish convert X.gguf X.gguf.zst` writes seekable frames.",
    )


def _corrupt(what: str, expected: str, found: Any, offset: int) -> FormatError:
    return FormatError(f"zstd file: {what}", expected=expected, found=found, offset=offset, code="zstd")
