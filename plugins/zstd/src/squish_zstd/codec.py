"""The zstd byte codec: decodes concatenated frames in place and checks every size (RFC 8878)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import zstandard

from squish_core.api import ByteCodec, CodecError, Limits, Params, Source

LEVEL = 3
WINDOW = 128 << 20
"""Maximum window size in bytes, the default limit of the `zstd` command."""
PIECE = 1 << 20

_SKIPPABLE, _FRAME = 0x184D2A50, 0xFD2FB528
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3


class Zstd(ByteCodec):
    """Concatenated Zstandard frames; skippable frames are ignored. Thread-safe.

    Parameter `level`: -7 to 22, default 3; encoding only. `skip`: decoded bytes before the part (the header of a
    compressed file); decoding only.
    """

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Fill `out` exactly; CodecError for invalid data, another size, a dictionary or a window over 128 MiB.

        `ratio` is ignored: memory is bounded by `out` and one window.
        """
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        filled, skip = 0, params.get("skip", 0)
        for start, stop in frames(data, skip + len(out)):
            try:
                with decompressor.stream_reader(data[start:stop]) as reader:
                    while skip and (n_skipped := len(reader.read(min(skip, PIECE)))):
                        skip -= n_skipped
                    while filled < len(out) and (n_read := reader.readinto(out[filled:])):
                        filled += n_read
                    # This read also verifies the checksum after the last block.
                    if reader.read(1):
                        raise _wrong_size(len(out), f"more than {len(out)} bytes")
            except zstandard.ZstdError as error:
                raise CodecError(f"corrupt zstd data: {error}", offset=start, code="zstd") from None
        if skip or filled != len(out):
            raise _wrong_size(len(out), f"{filled} bytes")

    def decoded_size(self, data: memoryview, params: Params, *, most: int) -> int:
        """Return the decoded size in bounded memory; CodecError like `decode`, or if it exceeds `most`."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        scratch, total = bytearray(PIECE), -params.get("skip", 0)
        for start, stop in frames(data, most - total):
            try:
                with decompressor.stream_reader(data[start:stop]) as reader:
                    while n_read := reader.readinto(scratch):
                        total += n_read
                        if total > most:
                            raise _wrong_size(most, f"more than {most} bytes")
            except zstandard.ZstdError as error:
                raise CodecError(f"corrupt zstd data: {error}", offset=start, code="zstd") from None
        return total

    def encode(self, chunks: Iterable[Any], params: Params) -> Iterator[bytes]:
        """Yield one frame without content size or checksum; deterministic."""
        compressor = zstandard.ZstdCompressor(level=compression_level(params)).compressobj()
        for chunk in chunks:
            if compressed := compressor.compress(chunk):
                yield compressed
        yield compressor.flush()

    def unpacked(self, source: Source, limits: Limits) -> Source:
        """Return the content of a `.zst` file, decoded frame by frame; FormatError if the frames are too large."""
        from .files import Unpacked

        return Unpacked(source, limits)

    def packing(self, write: Callable[[bytes], object]) -> AbstractContextManager[Callable[[Any], object]]:
        """Write 1 MiB frames with checksums at level 3, and a seek table; deterministic."""
        from .files import packing

        return packing(write)


def decode_head(data: memoryview, size: int) -> bytes:
    """Decode the start of zstd data.

    Parameters
    ----------
    data : memoryview
        Compressed data, possibly truncated.
    size : int
        Maximum number of decoded bytes.

    Returns
    -------
    bytes
        Up to `size` bytes.

    Raises
    ------
    CodecError
        `zstd` if the data are corrupt.
    """
    head = b""
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    try:
        with decompressor.stream_reader(data, read_across_frames=True) as reader:
            while len(head) < size and (piece := reader.read(size - len(head))):
                head += piece
    except zstandard.ZstdError as error:
        raise CodecError(f"corrupt zstd data: {error}", offset=0, code="zstd") from None
    return head


def compression_level(params: Params) -> int:
    """Return the compression level.

    Parameters
    ----------
    params : mapping
        Parameters of the codec; `level` defaults to 3.

    Returns
    -------
    int

    Raises
    ------
    CodecError
        `level` unless it is an integer from -7 to 22.
    """
    try:
        level = int(params.get("level", LEVEL))
    except (TypeError, ValueError):
        level = 99
    if not -7 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise CodecError(
            "invalid zstd level", expected=f"-7 to {zstandard.MAX_COMPRESSION_LEVEL}",
            found=repr(params["level"]), code="level",
        )  # fmt: skip
    return level


def frames(data: memoryview, size: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of data frames (RFC 8878, 3.1); CodecError gives the offset of the fault.

    The decoder accepts a stream truncated within a frame, so block headers are parsed here. A frame whose blocks
    declare more than `size` bytes is refused before decoding.
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
            what = "trailing bytes after the last zstd frame" if position else "not zstd data"
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
        raise CodecError(f"corrupt or truncated zstd frame header: {error}", offset=start, code="zstd") from None
    if header.dict_id:
        raise CodecError("needs a zstd dictionary", offset=start, found=f"id {header.dict_id}", code="dictionary")
    if header.window_size > WINDOW:
        raise CodecError(
            "zstd window too large", offset=start, expected=f"at most {WINDOW} bytes",
            found=f"{header.window_size} bytes", code="window", hint="Compress again without long mode.",
        )  # fmt: skip
    position, decoded, last = start + zstandard.frame_header_size(data[start : start + 18]), 0, False
    while not last:
        block = _uint(data, position, 3)
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            raise CodecError("reserved zstd block type", offset=position, code="zstd")
        position += 3 + (1 if kind == _RLE else size)
        decoded += 0 if kind == _COMPRESSED else size
        if decoded > expected:
            raise _wrong_size(expected, f"more than {expected} bytes")
    return position + 4 * header.has_checksum


def _uint(data: memoryview, start: int, length: int) -> int:
    if start + length > len(data):
        raise _truncated(start + length, len(data))
    return int.from_bytes(data[start : start + length], "little")


def _truncated(min_size: int, size: int) -> CodecError:
    return CodecError(
        "truncated zstd data", offset=size, expected=f"at least {min_size} bytes", found=f"{size} bytes", code="zstd"
    )


def _wrong_size(expected: int, found: str) -> CodecError:
    return CodecError(
        "decoded zstd size mismatch", expected=f"{expected} bytes", found=found, code="size",
        hint="The shape in the header does not match the data.",
    )  # fmt: skip
