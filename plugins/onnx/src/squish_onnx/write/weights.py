"""The writer of initializers: large ones go to the external file, aligned; small ones to the model."""

from __future__ import annotations

from collections.abc import Mapping

from squish_core.api import OutgoingTensor, Sink, Source

from . import proto
from .graph import Initializer

ALIGNMENT = 1 << 16
INLINE = 1 << 16
"""Tensors of fewer bytes are stored in the model, so that they do not take a page each."""


class WeightWriter:
    """Writes tensors as initializers. `location`: name of the external file."""

    def __init__(self, tensors: Mapping[str, OutgoingTensor], location: str) -> None:
        self._tensors, self.location = tensors, location

    def write(self, data: Sink, initializer: Initializer, tensor: str) -> bytes:
        """Write a part of a tensor as an initializer, and return its field of the graph."""
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
        """Copy a range of another file, and return the fields of a TensorProto that refer to it."""
        data.pad(ALIGNMENT)
        values = proto.external(self.location, data.tell(), length)
        data.copy(source, offset, length)
        return values
