"""Models of a few nodes, and what is in their graphs, for the tests."""

from __future__ import annotations

import numpy as np

from squish_core.formats.protobuf import Message, message, number


def node(kind: str, inputs: list[str], outputs: list[str], *attributes: bytes) -> bytes:
    """A node of a graph."""
    return message(
        1,
        *(message(1, name) for name in inputs),
        *(message(2, name) for name in outputs),
        message(4, kind),
        *attributes,
    )


def tensor(name: str, values: np.ndarray) -> bytes:
    """An initializer in f32."""
    sizes = [number(1, size) for size in values.shape]
    return message(5, *sizes, number(2, 1), message(8, name), message(9, values.astype("<f4").tobytes()))


def value(tag: int, name: str) -> bytes:
    """An input (11), output (12) or inner value (13) in f32."""
    return message(tag, message(1, name), message(2, message(1, number(1, 1))))


def model(*fields: bytes, ir: int = 10, opset: int = 17) -> bytes:
    """A model with metadata after its graph."""
    entry = message(14, message(1, "key"), message(2, "value"))
    return number(1, ir) + message(7, *fields) + message(8, message(1, ""), number(2, opset)) + entry


def fields(data: bytes, *numbers: int) -> list[bytes]:
    """The fields of a model's graph with these numbers, as stored."""
    graph = next(item for item in Message.of(data) if item.number == 7)
    return [bytes(item.encoded) for item in graph.message if item.number in numbers]


def kinds(data: bytes) -> list[str]:
    """The operators of a graph in order."""
    graph = next(item for item in Message.of(data) if item.number == 7)
    return [entry.text for item in graph.message if item.number == 1 for entry in item.message if entry.number == 4]
