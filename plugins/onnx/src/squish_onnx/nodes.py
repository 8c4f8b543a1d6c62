"""The nodes of a graph: operators, the values between them, and attributes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import field, frozen

from squish_core.api import LimitError, Limits, protobuf

from .types import ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS, GRAPH_OUTPUT, NODE

_MOST_VALUES = 1 << 16
"""Largest number of inputs or outputs of a node."""
_NODE_SIZE, _VALUE_SIZE = 256, 32
"""Bytes of the header limit that a node and each of its values use."""
_LONGEST_TEXT = 64
"""Bytes of the longest attribute that is read as text."""


@frozen
class Node:
    """A node of the graph: its field, operator, inputs, outputs and attributes.

    `kind`: the operator, with its domain as prefix unless that is ONNX's. `attributes`: numbers, lists of integers,
    short texts, tensors (as fields), or None for other types. `graphs`: the graphs inside the node.
    """

    item: protobuf.Field
    number: int
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(factory=dict)
    graphs: tuple[protobuf.Field, ...] = ()


Pattern = str | tuple[Any, ...]
"""A placeholder for a value, or a node: (operator, attributes, input, ...)."""


class Flow:
    """The data flow of a graph. `producers`: value -> its node. `consumers`: value -> the nodes that read it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.producers = {output: node for node in nodes for output in node.outputs if output}
        self.consumers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                self.consumers.setdefault(name, []).append(node)

    def reader(self, value: str) -> Node | None:
        """Return the only node that reads a value; None if several do, or it has several outputs."""
        nodes = self.consumers.get(value, ())
        return nodes[0] if len(nodes) == 1 and len(nodes[0].outputs) == 1 else None

    def matches(self, value: str, pattern: Pattern, values: dict[str, str], nodes: list[int]) -> bool:
        """Return whether a pattern matches the nodes behind a value; collect them and its placeholders.

        Examples
        --------
        >>> add = Node(None, 0, "Add", ("a", "b"), ("c",))
        >>> values, nodes = {}, []
        >>> Flow([add]).matches("c", ("Add", {}, "left", "right"), values, nodes), values, nodes
        (True, {'left': 'a', 'right': 'b'}, [0])
        """
        if isinstance(pattern, str):
            return values.setdefault(pattern, value) == value
        kind, attributes, *inputs = pattern
        node = self.producers.get(value)
        if node is None or node.kind != kind or len(node.inputs) != len(inputs) or len(node.outputs) != 1:
            return False
        nodes.append(node.number)
        return all(node.attributes.get(key) == expected for key, expected in attributes.items()) and all(
            self.matches(name, input_, values, nodes) for name, input_ in zip(node.inputs, inputs, strict=True)
        )


def read_nodes(items: Iterable[protobuf.Field], limits: Limits) -> list[Node]:
    """Read the nodes of a graph; raise LimitError if they exceed the header limit in memory."""
    nodes: list[Node] = []
    size = 0
    for item in items:
        node = read_node(item, len(nodes))
        size += _NODE_SIZE + _VALUE_SIZE * (len(node.inputs) + len(node.outputs))
        if size > limits.header:
            raise LimitError(
                "the graph has too many nodes",
                offset=item.offset,
                expected=f"at most {limits.header} bytes of them",
                code="header",
                limit="header",
            )
        nodes.append(node)
    return nodes


def read_node(item: protobuf.Field, number: int) -> Node:
    """Read a node of a graph."""
    kind, domain = "", ""
    names: dict[int, list[str]] = {1: [], 2: []}
    attributes: dict[str, Any] = {}
    graphs: list[protobuf.Field] = []
    for entry in item.message:
        if entry.number in names:
            if len(names[entry.number]) == _MOST_VALUES:
                raise LimitError(
                    "a node has too many values",
                    offset=entry.offset,
                    expected=f"at most {_MOST_VALUES}",
                    code="count",
                )
            names[entry.number].append(entry.text)
        elif entry.number == 4:
            kind = entry.text
        elif entry.number == 7:
            domain = entry.text
        elif entry.number == 5:
            key, value, inner = _attribute(entry)
            attributes[key] = value
            graphs += inner
    kind = f"{domain}::{kind}" if domain not in ("", "ai.onnx") else kind
    return Node(item, number, kind, tuple(names[1]), tuple(names[2]), attributes, tuple(graphs))


def value_name(item: protobuf.Field) -> str:
    """Return the name of a ValueInfoProto."""
    return next((entry.text for entry in item.message if entry.number == 1), "")


def _attribute(item: protobuf.Field) -> tuple[str, Any, list[protobuf.Field]]:
    """Read the name, value and graphs of an attribute."""
    name, value = "", None
    integers: list[int] = []
    graphs: list[protobuf.Field] = []
    for entry in item.message:
        if entry.number == 1:
            name = entry.text
        elif entry.number == 2 and entry.size == 4:
            (value,) = struct.unpack("<f", entry.bytes)
        elif entry.number == 3:
            value = entry.integer
        elif entry.number == 4 and entry.size <= _LONGEST_TEXT:
            value = bytes(entry.bytes)
        elif entry.number == 5:
            value = entry
        elif entry.number == 8:
            integers += entry.integers
        elif entry.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            graphs.append(entry)
    return name, integers or value, graphs


def names_inside(graph: protobuf.Field, limits: Limits, depth: int) -> Iterator[str]:
    """Yield every value that a nested graph reads or returns."""
    if depth > limits.depth:
        raise LimitError(
            "graphs are nested too deeply",
            offset=graph.offset,
            expected=f"at most {limits.depth} levels",
            code="depth",
            limit="depth",
        )
    for item in graph.message:
        if item.number == GRAPH_OUTPUT:
            yield value_name(item)
        if item.number != NODE:
            continue
        for entry in item.message:
            if entry.number == 1:
                yield entry.text
            elif entry.number == 5:
                for inner in _attribute(entry)[2]:
                    yield from names_inside(inner, limits, depth + 1)


def is_transpose(node: Node) -> bool:
    """Return whether a node swaps the axes of a matrix."""
    return (
        node.kind == "Transpose"
        and len(node.inputs) == len(node.outputs) == 1
        and node.attributes.get("perm") in (None, [1, 0])
    )
