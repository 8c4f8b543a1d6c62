"""The nodes of an existing graph, and what each value is used for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from attrs import field, frozen

from squish_core.api import LimitError, Limits, Source, protobuf

from ..external import ExternalFiles
from ..model import ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS, GRAPH, INITIALIZER, NODE, GraphReader
from ..tensor import TensorProto, read_tensor

IR, OPSETS = 1, 8
GRAPH_INPUT, GRAPH_OUTPUT, VALUE_INFO = 11, 12, 13
SUBGRAPH = "a graph inside a node"
OUTPUT = "the outputs of the graph"


@frozen
class Node:
    """A node of the graph: its field, operator, inputs and outputs, and attributes that are numbers."""

    item: protobuf.Field
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(factory=dict)


class ExistingModel:
    """A model whose graph is kept: its fields in file order, its nodes and initializers.

    `nested`: initializers of graphs inside nodes, as `node/attribute/name`. `consumers`: value -> numbers of the nodes
    that read it. `elsewhere`: value -> where else it is used.
    """

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self.items = list(protobuf.Message.of(source))
        self.graph: list[protobuf.Field] = []
        self.nodes: list[Node] = []
        self.initializers: dict[str, TensorProto] = {}
        self.nested: dict[str, TensorProto] = {}
        self.consumers: dict[str, list[int]] = {}
        self.elsewhere: dict[str, str] = {}
        self.opsets = dict(_opset(item) for item in self.items if item.number == OPSETS)
        self.ir_version = next((item.integer for item in self.items if item.number == IR), 0)
        self.external = ExternalFiles(source, source)
        for item in self.items:
            if item.number == GRAPH:
                self._read(item, limits)

    @property
    def names(self) -> set[str]:
        """All names of values."""
        outputs = (output for node in self.nodes for output in node.outputs)
        return {*self.initializers, *self.consumers, *self.elsewhere, *outputs}

    def _read(self, graph: protobuf.Field, limits: Limits) -> None:
        reader = GraphReader(limits)
        self.graph = list(graph.message)
        for item in self.graph:
            if item.number == NODE:
                inner = reader.in_node(item, "", len(self.nodes), 0)
                self.nested.update((tensor.name, tensor) for tensor in inner)
                self._add(item, limits)
            elif item.number == INITIALIZER:
                tensor = read_tensor(item, "", limits)
                self.initializers[tensor.name] = tensor
            elif item.number == GRAPH_OUTPUT:
                self.elsewhere[value_name(item)] = OUTPUT

    def _add(self, item: protobuf.Field, limits: Limits) -> None:
        kind, domain = "", ""
        names: dict[int, list[str]] = {1: [], 2: []}
        attributes: dict[str, Any] = {}
        for each in item.message:
            if each.number in names:
                names[each.number].append(each.text)
            elif each.number == 4:
                kind = each.text
            elif each.number == 7:
                domain = each.text
            elif each.number == 5:
                key, value, graphs = _attribute(each)
                attributes[key] = value
                for graph in graphs:
                    self.elsewhere.update(dict.fromkeys(_names_inside(graph, limits, 1), SUBGRAPH))
        number = len(self.nodes)
        kind = f"{domain}::{kind}" if domain not in ("", "ai.onnx") else kind
        self.nodes.append(Node(item, kind, tuple(names[1]), tuple(names[2]), attributes))
        for name in dict.fromkeys(names[1]):
            self.consumers.setdefault(name, []).append(number)


def value_name(item: protobuf.Field) -> str:
    """The name of a ValueInfoProto."""
    return next((each.text for each in item.message if each.number == 1), "")


def _opset(item: protobuf.Field) -> tuple[str, int]:
    values: dict[int, Any] = {each.number: each for each in item.message}
    domain = values[1].text if 1 in values else ""
    return ("" if domain == "ai.onnx" else domain), values[2].integer if 2 in values else 0


def _attribute(item: protobuf.Field) -> tuple[str, Any, list[protobuf.Field]]:
    """Name, value and graphs of an attribute: a number, a list of integers, or None."""
    name, value = "", None
    integers: list[int] = []
    graphs: list[protobuf.Field] = []
    for each in item.message:
        if each.number == 1:
            name = each.text
        elif each.number == 2 and each.size == 4:
            (value,) = struct.unpack("<f", each.bytes)
        elif each.number == 3:
            value = each.integer
        elif each.number == 8:
            integers += each.integers
        elif each.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            graphs.append(each)
    return name, integers or value, graphs


def _names_inside(graph: protobuf.Field, limits: Limits, depth: int) -> Iterator[str]:
    """Every name that a graph inside a node reads or returns."""
    if depth > limits.depth:
        raise LimitError(
            "graphs are nested too deeply", offset=graph.offset, expected=f"at most {limits.depth} levels",
            code="depth", limit="depth",
        )  # fmt: skip
    for item in graph.message:
        if item.number == GRAPH_OUTPUT:
            yield value_name(item)
        if item.number != NODE:
            continue
        for each in item.message:
            if each.number == 1:
                yield each.text
            elif each.number == 5:
                for inner in _attribute(each)[2]:
                    yield from _names_inside(inner, limits, depth + 1)


def is_transpose(node: Node) -> bool:
    """Whether a node swaps the axes of a matrix."""
    return (
        node.kind == "Transpose"
        and len(node.inputs) == len(node.outputs) == 1
        and node.attributes.get("perm") in (None, [1, 0])
    )
