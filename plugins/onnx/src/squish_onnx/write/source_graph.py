"""The model that provides the graph, and the uses of its values."""

from __future__ import annotations

from typing import Any

from squish_core.api import Limits, Source, protobuf

from ..codes import quantized_weights
from ..external import ExternalFiles
from ..graph_values import GraphValues
from ..model import GraphReader
from ..nodes import Flow, Node, names_inside, read_nodes, value_name
from ..tensor import TensorProto, read_tensor
from ..types import GRAPH, GRAPH_OUTPUT, INITIALIZER, NODE

IR, OPSETS = 1, 8
SUBGRAPH = "a nested graph"
OUTPUT = "the outputs of the graph"


class ExistingModel:
    """A model that provides the graph: its fields in file order, its nodes and initializers.

    `nested`: initializers of nested graphs, as `node/attribute/name`. `weights`: quantized weights, whose parts are
    initializers. `other_uses`: value -> a use that is not a node of the graph.
    """

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self.items = list(protobuf.Message.of(source))
        graphs = [item for item in self.items if item.number == GRAPH]
        self.graph = list(graphs[-1].message) if graphs else []
        self.nodes: list[Node] = []
        self.initializers: dict[str, TensorProto] = {}
        self.nested: dict[str, TensorProto] = {}
        self.other_uses: dict[str, str] = {}
        self.opsets = dict(_opset(item) for item in self.items if item.number == OPSETS)
        self.ir_version = next((item.integer for item in self.items if item.number == IR), 0)
        self.external = ExternalFiles(source, source)
        self._read(limits)
        self.flow = Flow(self.nodes)
        self.weights = quantized_weights(self.nodes, GraphValues(self.flow, self.initializers, source, limits))

    @property
    def names(self) -> set[str]:
        """The names of all values."""
        return {*self.initializers, *self.flow.consumers, *self.other_uses, *self.flow.producers}

    def readers(self, value: str) -> list[int]:
        """Return the numbers of the nodes that read a value."""
        return [node.number for node in self.flow.consumers.get(value, ())]

    def _read(self, limits: Limits) -> None:
        reader, items = GraphReader(limits), [item for item in self.graph if item.number == NODE]
        for number, item in enumerate(items):
            self.nested.update((tensor.name, tensor) for tensor in reader.in_node(item, "", number, 0))
        self.nodes = read_nodes(items, limits)
        inside = (graph for node in self.nodes for graph in node.graphs)
        self.other_uses.update((name, SUBGRAPH) for graph in inside for name in names_inside(graph, limits, 1))
        for item in self.graph:
            if item.number == INITIALIZER:
                tensor = read_tensor(item, "", limits)
                self.initializers[tensor.name] = tensor
            elif item.number == GRAPH_OUTPUT:
                self.other_uses[value_name(item)] = OUTPUT


def _opset(item: protobuf.Field) -> tuple[str, int]:
    fields: dict[int, Any] = {entry.number: entry for entry in item.message}
    domain = fields[1].text if 1 in fields else ""
    return ("" if domain == "ai.onnx" else domain), fields[2].integer if 2 in fields else 0
