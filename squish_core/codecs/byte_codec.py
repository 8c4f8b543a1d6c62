"""The interface of byte codecs: filters on the bytes of a part, and compression of whole files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from squish_core.codecs.base import Params

if TYPE_CHECKING:
    from squish_core.io.source import Source
    from squish_core.limits import Limits


class ByteCodec:
    """A byte codec, such as zstd, for `Part.filters` and for compressed files.

    Parameters
    ----------
    data, chunks
        Of methods: stored bytes; decoded bytes in chunks.
    params
        Of methods: parameters of the filter.
    out, ratio
        Of methods: memory of the decoded size, and the maximum ratio of decoded to stored bytes.
    size, start, stop, most
        Of methods: total decoded size, a range of decoded bytes, and the maximum number to decode.
    source, limits, write
        Of methods: a compressed file, limits for reading it, and a function that takes compressed bytes.

    Examples
    --------
    >>> import zlib
    >>> from squish_core import api
    >>> class Deflate(api.ByteCodec):
    ...     def decode(self, data, params, *, out, ratio):
    ...         out[:] = zlib.decompressobj().decompress(data, len(out))
    >>> out = bytearray(5)
    >>> Deflate().decode(memoryview(zlib.compress(b"bytes")), {}, out=memoryview(out), ratio=1000)
    >>> out
    bytearray(b'bytes')
    """

    id: str = ""

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Decode into `out`; CodecError if the data is damaged or its decoded size differs."""
        raise NotImplementedError

    def covering(self, data: memoryview, params: Params, *, size: int, start: int, stop: int) -> tuple[int, int]:
        """Smallest range of decoded bytes around `start` to `stop` that `decode_range` can decode."""
        return 0, size

    def decode_range(self, data: memoryview, params: Params, *, size: int, start: int, out: memoryview) -> None:
        """Decode a range that `covering` returned into `out`; not called for the full range."""
        raise NotImplementedError

    def decoded_size(self, data: memoryview, params: Params, *, most: int) -> int | None:
        """Decoded size, determined in constant memory; None if the codec cannot tell."""
        return None

    def encode(self, chunks: Any, params: Params) -> Any:
        """Encode an iterable of chunks; returns an iterable of chunks."""
        raise NotImplementedError

    def unpacked(self, source: Source, limits: Limits) -> Source:
        """Open the content of a compressed file; for codecs that declare a `signature`."""
        raise NotImplementedError

    def packing(self, write: Callable[[bytes], object]) -> AbstractContextManager[Callable[[Any], object]]:
        """Context manager for a function that takes file content and passes compressed bytes to `write`."""
        raise NotImplementedError
