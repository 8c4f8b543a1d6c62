"""Tensors to write: specs, and their parts as streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from squish_core.codecs.stored import StoredArray
from squish_core.errors import FormatError
from squish_core.io.digest import Digest
from squish_core.io.sink import Sink
from squish_core.model import Part, TensorSpec


class OutgoingTensor:
    """A tensor to write: its spec in the target, and its parts as streams."""

    def __init__(self, spec: TensorSpec, parts: Mapping[str, Stream]) -> None:
        self.spec, self.parts = spec, parts


class Stream:
    """The bytes of one part in order, before the target's filters. `before` is called when reading starts."""

    def __init__(
        self,
        part: Part,
        chunks: Callable[[], Iterable[Any]],
        array: StoredArray | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        self.part, self._chunks, self._array, self._before = part, chunks, array, before

    def chunks(self) -> Iterator[Any]:
        """Yield the part as consecutive buffers."""
        if self._before:
            self._before()
        yield from self._chunks()

    def read(self) -> bytes:
        """Return the whole part; zeros while a target is laid out (`Sink.records`), so sizes must not depend on it."""
        return b"".join(bytes(chunk) for chunk in self.chunks())

    def write_to(self, sink: Sink, digest: Digest | None = None) -> None:
        """Append the part to a sink, and to a digest; FormatError if its length differs from the declared one."""
        start = sink.tell()
        if self._before:
            self._before()
        if self._array is not None and not self._array.part.filters and digest is None:
            self._array.write_to(sink)
        else:
            for chunk in self._chunks():
                sink.write(chunk)
                if digest is not None:
                    digest.update(chunk)
        if sink.tell() - start != self.part.nbytes:
            raise FormatError("part size mismatch", expected=self.part.nbytes, found=sink.tell() - start, code="size")
