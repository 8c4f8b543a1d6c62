"""Writes initializers: large ones aligned in the file of weights, small ones in the model."""

from __future__ import annotations

from collections.abc import Mapping

from squish_core.api import OutgoingTensor, Sink, Source

from . import proto
from .graph import Initializer

ALIGNMENT = 1 << 16
INLINE = 1 << 16
"""Tensors of fewer bytes are stored in the model, so that they take no page of their own."""


class Weights:
    """The tensors to write, and the name of the file beside the model."""

    def __init__(self, tensors: Mapping[str, OutgoingTensor], location: str) -> None:
        self._tensors, self.location = tensors, location

    def write(self, data: Sink, initializer: Initializer, tensor: str) -> bytes:
        """Write a part of a tensor as an initializer; returns its field of the graph."""
        stream = self._tensors[tensor].parts[initializer.role]
        name, dtype, shape = initializer.name, initializer.dtype, initializer.shape
        if stream.part.nbytes < INLINE:
            values = proto.raw(stream.read())
        else:
            data.pad(ALIGNMENT)
            values = proto.external(self.location, data.tell(), stream.part.nbytes)
            stream.write_to(data)
        return proto.message(5, proto.tensor(name, dtype, shape, values))

    def copy(self, data: Sink, source: Source, offset: int, length: int) -> bytes:
        """Copy a range of another file; returns the fields of a tensor that refer to it."""
        data.pad(ALIGNMENT)
        values = proto.external(self.location, data.tell(), length)
        data.copy(source, offset, length)
        return values
