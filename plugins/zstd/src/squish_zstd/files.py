"""Files that are compressed whole: read and written in frames that open alone, several at a time.

Source: the seekable format of zstd's contrib folder, 0.1.0; any zstd unpacks what is written here.
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

from .codec import LEVEL, Zstd, frames

if TYPE_CHECKING:
    from concurrent.futures import Future

SUFFIX = ".zst"
FRAME = 1 << 20
"""Bytes of content in each frame that is written, but the last: a core's cache holds it and what it is packed to."""
LARGEST = 128 << 20
"""Bytes of content of the largest frame that is decoded for the sake of a few of them."""
HELD = 32 << 20
"""Bytes of content that are kept for the next read, in whole frames; always the last one."""
WORKERS = 8
"""Frames packed or unpacked at once, at most."""

_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC = 0x184D2A5E, 0x8F92EAB1
_CHECKSUMS, _RESERVED = 1 << 7, 0x7C  # of the table's descriptor
_UNTABLED = 1 << 20  # frames that are looked for one by one
_SMALL = 256 << 20


class Unpacked(Source):
    """The content of a `.zst` file: by its seek table, or by the sizes that its frames state."""

    def __init__(self, packed: Source, limits: Limits) -> None:
        self._packed, self._limits = packed, limits
        table = _table(packed, limits)
        self._stored_ends, self._ends = np.cumsum(table, axis=0, dtype=np.int64).T
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
                "would decode to more than the limits allow", expected=f"at most {allowed} bytes",
                found=f"{self.size} bytes", code="ratio",
                limit="ratio",
            )  # fmt: skip
        if largest > LARGEST:
            raise _unpack_first(f"in frames of up to {largest} bytes")

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
        out = np.empty(length, np.uint8).data  # which NumPy puts on large pages
        self.read_into(offset, out)
        return out.toreadonly()

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        files = self._packed.members(folder, [name + end for name in names for end in ("", SUFFIX)])
        return tuple(name for name in names if name in files or name + SUFFIX in files)

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return tuple(name.removesuffix(SUFFIX) for name in self._packed.members(folder))

    def _open_member(self, name: str) -> Source:
        folder, _, plain = name.rpartition("/")
        if self._packed.has(plain + SUFFIX, folder):
            return Unpacked(self._packed.member(plain + SUFFIX, folder), self._limits)
        return self._packed.member(plain, folder)

    def _number(self, offset: int) -> int:
        """The frame that holds a byte of the content."""
        return int(np.searchsorted(self._ends, offset, side="right"))

    def _range(self, number: int) -> tuple[int, int]:
        """Where the content of a frame lies in that of the file."""
        return int(self._ends[number - 1]) if number else 0, int(self._ends[number])

    def _content(self, number: int) -> memoryview:
        """A frame's content; who reads on from the last one gets the next frames decoded along with it."""
        with self._lock:
            if number in self._frames:
                self._frames.move_to_end(number)
                return self._frames[number]
            ahead = workers(WORKERS) if number and number == self._next else 1
            numbers = range(number, min(number + ahead, len(self._ends)))
            self._next = numbers.stop
        made = _on_cores(self._alone, numbers)
        with self._lock:
            # What was asked for is the newest, so that it is kept however large it is.
            self._frames.update(reversed(list(zip(numbers, made))))
            held = sum(map(len, self._frames.values()))
            while held > HELD and len(self._frames) > 1:
                held -= len(self._frames.popitem(last=False)[1])
        return made[0]

    def _alone(self, number: int) -> memoryview:
        start, end = self._range(number)
        content = np.empty(end - start, np.uint8).data
        self._decode(number, content)
        return content.toreadonly()

    def _decode(self, number: int, out: memoryview) -> None:
        start = int(self._stored_ends[number - 1]) if number else 0
        stored = self._packed.view(start, int(self._stored_ends[number]) - start, "a zstd frame")
        try:
            Zstd().decode(stored, {}, out=out, ratio=self._limits.ratio)
        except CodecError as error:
            error.offset = start + (error.offset or 0)
            raise


@contextmanager
def packing(write: Callable[[bytes], object]) -> Iterator[Callable[[Any], None]]:
    """What takes the content of a file and writes frames of `FRAME` bytes, packed on all cores, and a seek table."""
    waiting: deque[Future[bytes]] = deque()
    held, sizes, table = bytearray(), deque[int](), bytearray()

    def packed(content: bytes) -> bytes:
        return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(content)

    def submit(size: int, waits: int) -> None:
        if size:
            waiting.append(pool.submit(packed, bytes(memoryview(held)[:size])))
            sizes.append(size)
            del held[:size]
        while len(waiting) > waits:
            done = waiting.popleft().result()
            write(done)
            table.extend(struct.pack("<II", len(done), sizes.popleft()))

    def take(content: Any) -> None:
        held.extend(content)
        while len(held) >= FRAME:
            submit(FRAME, 2 * threads)

    threads = workers(WORKERS)
    with Pool(threads) as pool:
        yield take
        submit(len(held), 0)
    if not table:  # without a frame an empty file would not begin with the signature
        empty = packed(b"")
        write(empty)
        table.extend(struct.pack("<II", len(empty), 0))
    write(_HEADER.pack(_SKIPPABLE, len(table) + _FOOTER.size) + table + _FOOTER.pack(len(table) // 8, 0, _MAGIC))


def _on_cores(work: Callable[[int], Any], numbers: range) -> list[Any]:
    if len(numbers) < 2:
        return list(map(work, numbers))
    with Pool(workers(min(WORKERS, len(numbers)))) as pool:
        return pool.map(work, numbers)


def _table(packed: Source, limits: Limits) -> np.ndarray:
    """Stored and decoded bytes of each frame, i64 [frames, 2]."""
    if packed.size < _HEADER.size + _FOOTER.size:
        return _walked(packed)
    count, descriptor, magic = _FOOTER.unpack(packed.read(packed.size - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC:
        return _walked(packed)
    columns = 3 if descriptor & _CHECKSUMS else 2
    size = 4 * columns * count
    start = packed.size - _HEADER.size - size - _FOOTER.size
    if descriptor & _RESERVED or start < 0:
        raise _damaged("has a damaged seek table", "a table that the file holds", f"{count} frames", packed.size)
    if size > limits.header:
        raise LimitError(
            "the seek table is too long", expected=f"at most {limits.header} bytes", found=f"{size} bytes",
            code="header", limit="header",
        )  # fmt: skip
    header = _HEADER.unpack(packed.read(start, _HEADER.size))
    if header != (_SKIPPABLE, size + _FOOTER.size):
        raise _damaged("has a damaged seek table", f"a frame of {size + _FOOTER.size} bytes", header, start)
    stored = np.frombuffer(packed.read(start + _HEADER.size, size), "<u4").reshape(count, columns)
    table = stored[:, :2].astype(np.int64)
    if (found := int(table[:, 0].sum())) != start:
        raise _damaged("has a seek table of another file", f"frames of {start} bytes", f"{found} bytes", start)
    return table


def _walked(packed: Source) -> np.ndarray:
    """The same where there is no table, by the headers of the frames and their blocks."""
    if packed.is_remote:
        raise FormatError(
            "is compressed whole and has no seek table: all of it would be downloaded", code="frames",
            found=f"{packed.size} bytes",
            hint="Download it; `squish convert X.gguf X.gguf.zst` makes frames that open alone, with a table.",
        )  # fmt: skip
    data = packed.view(0, packed.size)
    found, before = [], 0
    # What lies between two frames is skippable; the decoder passes over it with the frame behind it.
    for start, stop in islice(frames(data, 1 << 62), _UNTABLED + 1):
        size = zstandard.get_frame_parameters(data[start : start + 18]).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise _unpack_first("and does not state the size of its content")
        found.append((stop - before, size))
        before = stop
    if len(found) > _UNTABLED:
        raise LimitError("has too many zstd frames without a seek table", expected=f"at most {_UNTABLED}", code="count")
    return np.array(found, np.int64).reshape(-1, 2)


def _unpack_first(how: str) -> FormatError:
    return FormatError(
        f"is compressed whole, {how}", code="frames",
        hint="Unpack it (`zstd -d`); `squish convert X.gguf X.gguf.zst` makes frames that open alone.",
    )  # fmt: skip


def _damaged(what: str, expected: str, found: Any, offset: int) -> FormatError:
    return FormatError(f"the zstd file {what}", expected=expected, found=found, offset=offset, code="zstd")
