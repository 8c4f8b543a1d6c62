"""The zstd byte codec: several frames, decoded in place, every size checked (RFC 8878)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import zstandard

from squish_core.api import ByteCodec, CodecError, Limits, Params, Source

LEVEL = 3
WINDOW = 128 << 20
"""Largest window in bytes that is decoded: what `zstd` itself takes without being told otherwise."""
PIECE = 1 << 20

_SKIPPABLE, _FRAME = 0x184D2A50, 0xFD2FB528
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3


class Zstd(ByteCodec):
    """Zstandard frames, one after the other; skippable frames are passed over. Safe to share between threads.

    Parameter `level`: -7 to 22, 3 by default; used only to encode. `skip`: decoded bytes before those of the part (the
    header of a file that was compressed whole); used only to decode.
    """

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Fill `out` exactly. CodecError for garbage, a cut or overlong stream, a dictionary, a window over 128 MiB.

        `ratio` is not looked at: nothing is ever taken beyond `out` and one window.
        """
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        filled, skip = 0, params.get("skip", 0)
        for start, stop in frames(data, skip + len(out)):
            try:
                with decompressor.stream_reader(data[start:stop]) as reader:
                    while skip and (passed := len(reader.read(min(skip, PIECE)))):
                        skip -= passed
                    while filled < len(out) and (got := reader.readinto(out[filled:])):
                        filled += got
                    # Also makes the decoder look at the checksum behind the last block.
                    if reader.read(1):
                        raise _wrong_size(len(out), f"more than {len(out)} bytes")
            except zstandard.ZstdError as error:
                raise CodecError(f"the zstd data is damaged: {error}", offset=start, code="zstd") from None
        if skip or filled != len(out):
            raise _wrong_size(len(out), f"{filled} bytes")

    def decoded_size(self, data: memoryview, params: Params, *, most: int) -> int:
        """Decoded bytes, at a window's cost; CodecError as `decode`, and when there are more than `most`."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        scratch, total = bytearray(PIECE), -params.get("skip", 0)
        for start, stop in frames(data, most - total):
            try:
                with decompressor.stream_reader(data[start:stop]) as reader:
                    while got := reader.readinto(scratch):
                        total += got
                        if total > most:
                            raise _wrong_size(most, f"more than {most} bytes")
            except zstandard.ZstdError as error:
                raise CodecError(f"the zstd data is damaged: {error}", offset=start, code="zstd") from None
        return total

    def encode(self, chunks: Iterable[Any], params: Params) -> Iterator[bytes]:
        """One frame without content size or checksum, as it streams; the same input gives the same bytes."""
        compressor = zstandard.ZstdCompressor(level=compression_level(params)).compressobj()
        for chunk in chunks:
            if compressed := compressor.compress(chunk):
                yield compressed
        yield compressor.flush()

    def unpacked(self, source: Source, limits: Limits) -> Source:
        """The content of a `.zst` file, frame by frame; FormatError where frames are too large to open one alone."""
        from .files import Unpacked

        return Unpacked(source, limits)

    def packing(self, write: Callable[[bytes], object]) -> AbstractContextManager[Callable[[Any], object]]:
        """Frames of a mebibyte with checksums, at level 3, and a seek table; the same bytes for the same content."""
        from .files import packing

        return packing(write)


def decode_head(data: memoryview, size: int) -> bytes:
    """The first decoded bytes, `size` of them or as many as there are, from the stored bytes they need."""
    found = b""
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    try:
        with decompressor.stream_reader(data, read_across_frames=True) as reader:
            while len(found) < size and (got := reader.read(size - len(found))):
                found += got
    except zstandard.ZstdError as error:
        raise CodecError(f"the zstd data is damaged: {error}", offset=0, code="zstd") from None
    return found


def compression_level(params: Params) -> int:
    """The compression level of `params`; CodecError when it is none."""
    try:
        wanted = int(params.get("level", LEVEL))
    except (TypeError, ValueError):
        wanted = 99
    if not -7 <= wanted <= zstandard.MAX_COMPRESSION_LEVEL:
        raise CodecError(
            "no such zstd level", expected=f"-7 to {zstandard.MAX_COMPRESSION_LEVEL}",
            found=repr(params["level"]), code="level",
        )  # fmt: skip
    return wanted


def frames(data: memoryview, size: int) -> Iterator[tuple[int, int]]:
    """Byte ranges of the frames that hold data (RFC 8878, 3.1); CodecError naming where the stream breaks.

    The decoder itself takes a stream that stops in the middle of a frame for complete, so the blocks are walked here;
    a frame whose blocks say that they give more than `size` bytes is refused before it is decoded.
    """
    position = 0
    while position < len(data):
        magic = _uint(data, position, 4)
        if magic & ~0xF == _SKIPPABLE:
            stop = position + 8 + _uint(data, position + 4, 4)
        elif magic == _FRAME:
            stop = _frame_end(data, position, size)
            yield position, stop
        else:
            what = "trailing bytes after the last zstd frame" if position else "is not zstd data"
            raise CodecError(
                what, offset=position, expected=_FRAME.to_bytes(4, "little").hex(),
                found=bytes(data[position : position + 4]).hex(), code="zstd",
            )  # fmt: skip
        if stop > len(data):
            raise _truncated(stop, len(data))
        position = stop


def _frame_end(data: memoryview, start: int, expected: int) -> int:
    try:
        header = zstandard.get_frame_parameters(data[start : start + 18])
    except zstandard.ZstdError as error:
        raise CodecError(f"the zstd frame header is damaged or cut: {error}", offset=start, code="zstd") from None
    if header.dict_id:
        raise CodecError("needs a zstd dictionary", offset=start, found=f"id {header.dict_id}", code="dictionary")
    if header.window_size > WINDOW:
        raise CodecError(
            "the zstd window is too large", offset=start, expected=f"at most {WINDOW} bytes",
            found=f"{header.window_size} bytes", code="window", hint="Compress it again without long mode.",
        )  # fmt: skip
    position, given, last = start + zstandard.frame_header_size(data[start : start + 18]), 0, False
    while not last:
        block = _uint(data, position, 3)
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            raise CodecError("a zstd block is of a reserved kind", offset=position, code="zstd")
        position += 3 + (1 if kind == _RLE else size)
        given += 0 if kind == _COMPRESSED else size
        if given > expected:
            raise _wrong_size(expected, f"more than {expected} bytes")
    return position + 4 * header.has_checksum


def _uint(data: memoryview, start: int, length: int) -> int:
    if start + length > len(data):
        raise _truncated(start + length, len(data))
    return int.from_bytes(data[start : start + length], "little")


def _truncated(needed: int, size: int) -> CodecError:
    return CodecError(
        "the zstd data is cut", offset=size, expected=f"at least {needed} bytes", found=f"{size} bytes", code="zstd"
    )


def _wrong_size(expected: int, found: str) -> CodecError:
    return CodecError(
        "the zstd data decodes to another size", expected=f"{expected} bytes", found=found, code="size",
        hint="The shape in the header and the data do not belong together.",
    )  # fmt: skip
