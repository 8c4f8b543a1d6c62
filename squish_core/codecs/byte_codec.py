"""The interface of byte codecs: filters on a part's bytes, and files that are compressed whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from squish_core.codecs.base import Params
from squish_core.renamed import Renamed

if TYPE_CHECKING:
    from squish_core.io.source import Source
    from squish_core.limits import Limits


class ByteCodec(Renamed):
    """A byte codec (zstd): used in `Part.filters`, and for files that are compressed whole.

    Parameters
    ----------
    data, chunks
        Of methods: stored bytes; decoded bytes in pieces.
    params
        Of methods: parameters of the filter.
    out, ratio
        Of methods: memory of the decoded size, and the most that one stored byte may become.
    size, start, stop, most
        Of methods: the decoded bytes in all, a range of them, and the most that are looked at.
    source, limits, write
        Of methods: a file that was compressed whole, and where its compressed bytes go.

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

    renamed: ClassVar[Mapping[str, str]] = {"measure": "decoded_size"}
    id: str = ""

    def decode(self, data: memoryview, params: Params, *, out: memoryview, ratio: int) -> None:
        """Fill `out` exactly from the stored bytes; CodecError when they give more, less or garbage."""
        raise NotImplementedError

    def covering(self, data: memoryview, params: Params, *, size: int, start: int, stop: int) -> tuple[int, int]:
        """The smallest range around `start` to `stop` of the `size` decoded bytes that `decode_range` gives."""
        return 0, size

    def decode_range(self, data: memoryview, params: Params, *, size: int, start: int, out: memoryview) -> None:
        """Fill `out` with the decoded bytes from `start` on, a range that `covering` gave, if that is not all."""
        raise NotImplementedError

    def decoded_size(self, data: memoryview, params: Params, *, most: int) -> int | None:
        """Bytes that `decode` would give, found without keeping them; None when the codec cannot tell."""
        return None

    def encode(self, chunks: Any, params: Params) -> Any:
        """Stored bytes, as an iterable of chunks, of an iterable of chunks."""
        raise NotImplementedError

    def unpacked(self, source: Source, limits: Limits) -> Source:
        """The content of a file that was compressed whole; for a codec that declares a `signature`."""
        raise NotImplementedError

    def packing(self, write: Callable[[bytes], object]) -> AbstractContextManager[Callable[[Any], object]]:
        """What takes the content of a file piece by piece and hands on its compressed bytes, the last on leaving."""
        raise NotImplementedError
