"""Encoders of the messages of onnx.proto."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from squish_core.api import dtypes, protobuf

from ..types import DTYPES

message, number = protobuf.message, protobuf.number
CODES = {dtype: code for code, dtype in DTYPES.items()}
"""Dtype -> TensorProto.DataType."""
Attribute = int | float | str | bytes | Sequence[int]
"""Value of an attribute; bytes are an encoded TensorProto."""
Dimension = int | str


def tensor(name: str, dtype: str, shape: Sequence[int], *values: bytes) -> bytes:
    """Encode a TensorProto; `values` are the results of `raw` or `external`."""
    return b"".join([*(number(1, size) for size in shape), number(2, CODES[dtype]), message(8, name), *values])


def array(values: np.ndarray) -> bytes:
    """Encode an array as a TensorProto without a name."""
    return tensor("", str(dtypes.named(values.dtype)), values.shape, raw(values.tobytes()))


def raw(data: bytes) -> bytes:
    """Encode the field with a tensor's bytes."""
    return message(9, data)


def external(location: str, offset: int, length: int) -> bytes:
    """Encode the fields of a tensor whose bytes are in another file."""
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    pairs = [message(13, message(1, key), message(2, value)) for key, value in entries.items()]
    return b"".join(pairs) + number(14, 1)


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str, **attributes: Attribute) -> bytes:
    """Encode a node of a graph, with the name of its first output."""
    fields = [*(message(1, name) for name in inputs), *(message(2, name) for name in outputs)]
    fields += [message(3, outputs[0]), message(4, kind)]
    fields += [message(5, _attribute(key, value)) for key, value in attributes.items()]
    return message(1, *fields, message(7, domain) if domain else b"")


def _attribute(name: str, value: Attribute) -> bytes:
    match value:
        case bytes():
            return message(1, name) + message(5, value) + number(20, 4)
        case int():
            return message(1, name) + number(3, value) + number(20, 2)
        case float():
            return message(1, name) + protobuf.fixed32(2, struct.pack("<f", value)) + number(20, 1)
        case str():
            return message(1, name) + message(4, value) + number(20, 3)
        case _:
            return message(1, name) + b"".join(number(8, element) for element in value) + number(20, 7)


def value_info(tag: int, name: str, dtype: str, shape: Sequence[Dimension]) -> bytes:
    """Encode an input (11) or output (12) of a graph."""
    sizes = [message(1, number(1, size) if isinstance(size, int) else message(2, size)) for size in shape]
    return message(tag, message(1, name), message(2, message(1, number(1, CODES[dtype]), message(2, *sizes))))


def model(graph: Sequence[bytes], opsets: Mapping[str, int], ir_version: int, meta: Mapping[str, str]) -> list[bytes]:
    """Encode a ModelProto in pieces, because the fields of its graph are too large to copy."""
    head = number(1, ir_version) + message(2, "squish")
    imports = [opset(domain, version) for domain, version in opsets.items()]
    pairs = [message(14, message(1, key), message(2, value)) for key, value in meta.items()]
    return [head, *imports, *pairs, protobuf.header(7, sum(map(len, graph))), *graph]


def opset(domain: str, version: int) -> bytes:
    """Encode the field of a model that imports the operators of a domain."""
    return message(8, message(1, domain), number(2, version))
