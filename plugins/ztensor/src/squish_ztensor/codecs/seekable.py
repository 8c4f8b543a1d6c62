"""The encoding `zt.zstd-seekable/1`: independent zstd frames, then a seek table (Draft 4; wires 6.6)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from squish_core.api import ByteCodec, CodecError, Params, map_in_order

from ..options import zstd_codec

FRAME = 4 << 20
"""Decoded bytes per written frame, except the last."""
_MAX_FRAME = 16 << 20
_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC = 0x184D2A5E, 0x8F92EAB1
_CHECKSUM = 1 << 2  # in a frame header's descriptor


class ZstdSeekable(ByteCodec):
    """Frames of at most 16 MiB, decoded and encoded on all cores. Requires squish-zstd."""

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Fill `out` exactly; CodecError for a damaged table, checked before decoding, or a damaged frame."""
        self.decode_range(data, params, size=len(out), start=0, out=out)

    def covering(self, data: memoryview, params: Params, *, size: int, start: int, stop: int) -> tuple[int, int]:
        """Return the range of whole frames; all but the last have the size of the first."""
        frame = max(_table(data, size)[0][1], 1) if size else 1
        return start - start % frame, min(-(-stop // frame) * frame, size)

    def decode_range(self, data: memoryview, params: Params, *, size: int, start: int, out: memoryview) -> None:
        """Decode frames, from the one that begins at `start`, until `out` is full."""
        jobs, done, at = [], 0, 0
        for stored, decoded in _table(data, size):
            if start <= done and done + decoded <= start + len(out):
                jobs.append((data[at : at + stored], out[done - start : done - start + decoded], at))
            at, done = at + stored, done + decoded
        list(map_in_order(_decode_frame, jobs))

    def encode(self, chunks: Iterable[Any], params: Params) -> Iterator[bytes]:
        """Yield frames of 4 MiB, then the table; the bytes do not depend on how the input is divided into chunks."""
        import zstandard

        level = int(params.get("level", 3))

        def frame(content: bytes) -> tuple[bytes, int]:
            return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(content), len(content)

        table = []
        for packed, size in map_in_order(frame, resize(chunks, FRAME)):
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
    """Return stored and decoded sizes of the frames; CodecError unless they fit the data and `expected`."""
    if len(data) < _HEADER.size + _FOOTER.size:
        raise _stream_error("is too short for a seek table", f"at least {_HEADER.size + _FOOTER.size} bytes", len(data))
    count, descriptor, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    if magic != _MAGIC or descriptor:
        raise _stream_error("has no seek table", f"{_MAGIC:#x} and descriptor 0", f"{magic:#x} and {descriptor}")
    size = 8 * count + _FOOTER.size
    start = len(data) - size - _HEADER.size
    if start < 0 or _HEADER.unpack(data[start : start + _HEADER.size]) != (_SKIPPABLE, size):
        raise _stream_error("has a damaged seek table", f"a table of {count} frames", f"{len(data)} bytes")
    entries = list(struct.iter_unpack("<II", data[start + _HEADER.size : -_FOOTER.size]))
    sizes = [decoded for _, decoded in entries]
    if any(decoded > _MAX_FRAME for decoded in sizes):
        raise _stream_error("has a frame of more than 16 MiB", f"at most {_MAX_FRAME} bytes", max(sizes))
    if len(set(sizes[:-1])) > 1 or (len(sizes) > 1 and sizes[-1] > sizes[0]):
        raise _stream_error("has frames of different sizes", "equal sizes, the last one smaller", "another table")
    if sum(packed for packed, _ in entries) != start:
        raise _stream_error("does not match its seek table", f"{start} bytes", sum(packed for packed, _ in entries))
    if sum(sizes) != expected:
        raise _stream_error("has the wrong decoded size", f"{expected} bytes", f"{sum(sizes)} bytes by its table")
    return entries


def _stream_error(fault: str, expected: str, found: Any) -> CodecError:
    return CodecError(f"the zstd stream {fault}", expected=expected, found=found, code="zstd")


def resize(chunks: Iterable[Any], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of `size`; the last one may be shorter."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += memoryview(chunk).cast("B") if memoryview(chunk).nbytes else b""
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
