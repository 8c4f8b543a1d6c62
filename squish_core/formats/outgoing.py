"""Tensors on their way into a file: specs and streams of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from squish_core.codecs.stored import StoredArray
from squish_core.errors import FormatError
from squish_core.io.sink import Sink
from squish_core.model import Part, TensorSpec


class OutgoingTensor:
    """A tensor on its way into a file: its spec as the target will hold it, and streams of its parts."""

    def __init__(self, spec: TensorSpec, parts: Mapping[str, Stream]) -> None:
        self.spec, self.parts = spec, parts


class Stream:
    """The bytes of one part, in order, before the target's filters; `before` is called when they begin."""

    def __init__(
        self,
        part: Part,
        chunks: Callable[[], Iterable[Any]],
        stored: StoredArray | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        self.part, self._chunks, self._stored, self._before = part, chunks, stored, before

    def chunks(self) -> Iterator[Any]:
        """Buffers that together are the part."""
        if self._before:
            self._before()
        yield from self._chunks()

    def write_to(self, sink: Sink) -> None:
        """Append the part to a sink; FormatError when it gives another length than declared."""
        start = sink.tell()
        if self._stored is not None and not self._stored.part.filters:
            if self._before:
                self._before()
            for source, offset, length in self._stored.runs():
                sink.copy(source, offset, length)
            if self._stored.part.data is not None:
                sink.write(self._stored.part.data)
        else:
            for chunk in self.chunks():
                sink.write(chunk)
        if sink.tell() - start != self.part.nbytes:
            raise FormatError(
                "a part came out in another size than declared",
                expected=self.part.nbytes, found=sink.tell() - start, code="size",
            )  # fmt: skip
