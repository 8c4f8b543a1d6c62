"""The zstd byte codec, for parts and for whole files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import zstandard

from squish_core.api import ByteCodec, CodecError, Limits, Params, Source

from .frames import LEVEL, PIECE, WINDOW, decode, frames, wrong_size


class Zstd(ByteCodec):
    """Concatenated Zstandard frames; skippable frames are ignored. Thread-safe.

    Parameter `level`: -7 to 22, default 3; encoding only. `skip`: decoded bytes before the part (the header of a
    compressed file); decoding only.
    """

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Fill `out` exactly; CodecError for invalid data, another size, a dictionary or a window over 128 MiB.

        `ratio` is ignored: memory is bounded by `out` and one window.
        """
        decode(data, out, params.get("skip", 0))

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
                            raise wrong_size(most, f"more than {most} bytes")
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

    Examples
    --------
    >>> data = zstandard.ZstdCompressor().compress(b"GGUF and the rest")
    >>> decode_head(memoryview(data), 4)
    b'GGUF'
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

    Examples
    --------
    >>> compression_level({}), compression_level({"level": "19"})
    (3, 19)
    """
    try:
        level = int(params.get("level", LEVEL))
    except (TypeError, ValueError):
        level = 99
    if not -7 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise CodecError(
            "invalid zstd level",
            expected=f"-7 to {zstandard.MAX_COMPRESSION_LEVEL}",
            found=repr(params["level"]),
            code="level",
        )
    return level
