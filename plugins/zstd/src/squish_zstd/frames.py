"""Zstandard frames: decoding concatenated frames in place, with every size checked (RFC 8878)."""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from squish_core.api import CodecError

LEVEL = 3
WINDOW = 128 << 20
"""Maximum window size in bytes, the default limit of the `zstd` command."""
PIECE = 1 << 20

_SKIPPABLE, _FRAME = 0x184D2A50, 0xFD2FB528
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3


def decode(data: memoryview, out: memoryview, skip: int = 0) -> None:
    """Fill `out` exactly with what follows the first `skip` decoded bytes; CodecError if the data are invalid."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    filled = 0
    for start, stop in frames(data, skip + len(out)):
        try:
            with decompressor.stream_reader(data[start:stop]) as reader:
                while skip and (n_skipped := len(reader.read(min(skip, PIECE)))):
                    skip -= n_skipped
                while filled < len(out) and (n_read := reader.readinto(out[filled:])):
                    filled += n_read
                # This read also verifies the checksum after the last block.
                if reader.read(1):
                    raise wrong_size(len(out), f"more than {len(out)} bytes")
        except zstandard.ZstdError as error:
            raise CodecError(f"corrupt zstd data: {error}", offset=start, code="zstd") from None
    if skip or filled != len(out):
        raise wrong_size(len(out), f"{filled} bytes")


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
                what,
                offset=position,
                expected=_FRAME.to_bytes(4, "little").hex(),
                found=bytes(data[position : position + 4]).hex(),
                code="zstd",
            )
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
            "zstd window too large",
            offset=start,
            expected=f"at most {WINDOW} bytes",
            found=f"{header.window_size} bytes",
            code="window",
            hint="Compress again without long mode.",
        )
    position, decoded, last = start + zstandard.frame_header_size(data[start : start + 18]), 0, False
    while not last:
        block = _uint(data, position, 3)
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            raise CodecError("reserved zstd block type", offset=position, code="zstd")
        position += 3 + (1 if kind == _RLE else size)
        decoded += 0 if kind == _COMPRESSED else size
        if decoded > expected:
            raise wrong_size(expected, f"more than {expected} bytes")
    return position + 4 * header.has_checksum


def _uint(data: memoryview, start: int, length: int) -> int:
    if start + length > len(data):
        raise _truncated(start + length, len(data))
    return int.from_bytes(data[start : start + length], "little")


def _truncated(min_size: int, size: int) -> CodecError:
    return CodecError(
        "truncated zstd data", offset=size, expected=f"at least {min_size} bytes", found=f"{size} bytes", code="zstd"
    )


def wrong_size(expected: int, found: str) -> CodecError:
    """Return the error for frames that decode to another size than declared."""
    return CodecError(
        "decoded zstd size mismatch",
        expected=f"{expected} bytes",
        found=found,
        code="size",
        hint="The shape in the header does not match the data.",
    )
