"""The encoding `zt.zstd-seekable/1`: independent zstd frames with a seek table behind them (Draft 4; wires 6.6)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from squish_core.api import ByteCodec, CodecError, Params, map_in_order

from ..options import zstd_codec

FRAME = 4 << 20
"""Bytes of content in each frame that is written, but the last."""
_LARGEST = 16 << 20
_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC = 0x184D2A5E, 0x8F92EAB1
_CHECKSUM = 1 << 2  # in a frame header's descriptor


class ZstdSeekable(ByteCodec):
    """Frames of at most 16 MiB, decoded and encoded on all cores. Needs squish-zstd."""

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Fill `out` exactly; CodecError for a damaged table or frame, checked before anything is decoded."""
        self.decode_range(data, params, size=len(out), start=0, out=out)

    def covering(self, data: memoryview, params: Params, *, size: int, start: int, stop: int) -> tuple[int, int]:
        """Whole frames: all but the last are as long as the first."""
        frame = max(_table(data, size)[0][1], 1) if size else 1
        return start - start % frame, min(-(-stop // frame) * frame, size)

    def decode_range(self, data: memoryview, params: Params, *, size: int, start: int, out: memoryview) -> None:
        """Frames from the one that begins at `start` on, until `out` is full."""
        jobs, done, at = [], 0, 0
        for stored, decoded in _table(data, size):
            if start <= done and done + decoded <= start + len(out):
                jobs.append((data[at : at + stored], out[done - start : done - start + decoded], at))
            at, done = at + stored, done + decoded
        list(map_in_order(_decode_frame, jobs))

    def encode(self, chunks: Iterable[Any], params: Params) -> Iterator[bytes]:
        """Frames of 4 MiB each, then the table; the same bytes for the same input, however it is cut."""
        import zstandard

        level = int(params.get("level", 3))

        def frame(content: bytes) -> tuple[bytes, int]:
            return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(content), len(content)

        table = []
        for packed, size in map_in_order(frame, cut(chunks, FRAME)):
            table.append(struct.pack("<II", len(packed), size))
            yield packed
        entries = b"".join(table)
        yield _HEADER.pack(_SKIPPABLE, len(entries) + _FOOTER.size) + entries + _FOOTER.pack(len(table), 0, _MAGIC)


def _decode_frame(job: tuple[memoryview, memoryview, int]) -> None:
    stored, target, start = job
    if len(stored) < 5 or not stored[4] & _CHECKSUM:
        raise CodecError("a zstd frame has no checksum", offset=start, code="zstd")
    codec, _ = zstd_codec()
    codec.decode(stored, {}, out=target, ratio=0)


def _table(data: memoryview, expected: int) -> list[tuple[int, int]]:
    """Stored and decoded size of each frame; CodecError when they do not fit the data and `expected`."""
    if len(data) < _HEADER.size + _FOOTER.size:
        raise _damaged("is too short for a seek table", f"at least {_HEADER.size + _FOOTER.size} bytes", len(data))
    count, descriptor, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    if magic != _MAGIC or descriptor:
        raise _damaged("has no seek table", f"{_MAGIC:#x} and descriptor 0", f"{magic:#x} and {descriptor}")
    size = 8 * count + _FOOTER.size
    start = len(data) - size - _HEADER.size
    if start < 0 or _HEADER.unpack(data[start : start + _HEADER.size]) != (_SKIPPABLE, size):
        raise _damaged("has a damaged seek table", f"a table of {count} frames", f"{len(data)} bytes")
    entries = list(struct.iter_unpack("<II", data[start + _HEADER.size : -_FOOTER.size]))
    sizes = [decoded for _, decoded in entries]
    if any(decoded > _LARGEST for decoded in sizes):
        raise _damaged("has a frame of more than 16 MiB", f"at most {_LARGEST} bytes", max(sizes))
    if len(set(sizes[:-1])) > 1 or (len(sizes) > 1 and sizes[-1] > sizes[0]):
        raise _damaged("has frames of different sizes", "equal sizes, the last one smaller", "another table")
    if sum(packed for packed, _ in entries) != start:
        raise _damaged("has a seek table of another stream", f"{start} bytes", sum(packed for packed, _ in entries))
    if sum(sizes) != expected:
        raise _damaged("decodes to another size", f"{expected} bytes", f"{sum(sizes)} bytes by its table")
    return entries


def _damaged(what: str, expected: str, found: Any) -> CodecError:
    return CodecError(f"the zstd stream {what}", expected=expected, found=found, code="zstd")


def cut(chunks: Iterable[Any], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of `size`, the last one shorter."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += memoryview(chunk).cast("B") if memoryview(chunk).nbytes else b""
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
