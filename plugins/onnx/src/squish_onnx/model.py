"""ModelProto: its metadata, and the initializers of its graph and of the graphs inside nodes."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, field, frozen

from squish_core.api import ErrorCode, FormatError, LimitError, Limits, Source, protobuf

from .codes import BIASES, CODE_DTYPES, quantized_weights, uncombined_codes
from .graph_values import GraphValues, QuantizedWeight, UncombinedCodes
from .nodes import Flow, read_nodes
from .tensor import TensorProto, pair, read_tensor
from .types import (
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_GRAPHS,
    GRAPH,
    INITIALIZER,
    METADATA,
    NODE,
    NODE_ATTRIBUTE,
    NODE_NAME,
    SPARSE_INITIALIZER,
)

_TEXTS = {2: "producer_name", 3: "producer_version", 4: "domain", 6: "doc_string"}
_NUMBERS = {1: "ir_version", 5: "model_version"}
OWN_KEYS = "onnx."
"""Prefix of the metadata keys for fields of ModelProto; other formats keep these keys."""
_FIELDS = {1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26}
"""Fields of ModelProto."""


@frozen(kw_only=True)
class ModelHeader:
    """The header of a model. `meta`: metadata properties, and fields of ModelProto under `onnx.*`.

    `weights`: quantized weights, whose parts are in `tensors`. `uncombined`: other quantized codes. `nodes`: number of
    nodes.
    """

    ir_version: int
    meta: dict[str, str | int] = field(factory=dict)
    tensors: dict[str, TensorProto] = field(factory=dict)
    weights: dict[str, QuantizedWeight] = field(factory=dict)
    uncombined: tuple[UncombinedCodes, ...] = ()
    nodes: int = 0


def looks_like_model(source: Source) -> bool:
    """Return whether a file starts with fields of ModelProto, up to the graph."""
    for item in protobuf.Message.of(source):
        if item.number not in _FIELDS or (item.number in _NUMBERS) != (item.wire == protobuf.VARINT):
            return False
        if item.number == GRAPH:
            return True
    return False


def read_model(source: Source, limits: Limits) -> ModelHeader:
    """Read the metadata of a model and the locations of its initializers.

    Parameters
    ----------
    source
        The file.
    limits
        Upper bounds for the number of tensors, the depth of graphs, and the bytes of nodes and other fields.

    Returns
    -------
    Model
        Tensors of nested graphs are named `node/attribute/name`, with a number for a node without a name.

    Raises
    ------
    FormatError
        The file is not a model, or two tensors of a graph have the same name.
    """
    meta: dict[str, str | int] = {}
    fields: dict[str, str | int] = {}
    graph = None
    reader = GraphReader(limits)
    for item in protobuf.Message.of(source):
        if item.number == GRAPH:
            graph = item
        elif item.number == METADATA:
            reader.count(item)
            key, value = pair(item, limits)
            meta[key] = value
        elif item.number in _TEXTS and item.size:
            reader.count(item)
            fields[OWN_KEYS + _TEXTS[item.number]] = item.text
        elif item.number in _NUMBERS:
            fields[OWN_KEYS + _NUMBERS[item.number]] = item.integer
    if graph is None:
        raise FormatError("the model has no graph", code="graph", hint="Is the file an ONNX model, and complete?")
    for tensor in reader.tensors(graph, "", 0):
        if tensor.name in reader.names:
            raise FormatError(
                "two initializers have this name", tensor=tensor.name, offset=tensor.offset, code=ErrorCode.DUPLICATE
            )
        reader.names[tensor.name] = tensor
    weights, uncombined = _quantized_weights(source, graph, reader.names, limits)
    return ModelHeader(
        ir_version=int(fields.get(f"{OWN_KEYS}ir_version", 0)),
        meta=meta | fields,
        tensors=reader.names,
        weights=weights,
        uncombined=uncombined,
        nodes=reader.nodes,
    )


def _quantized_weights(
    source: Source, graph: protobuf.Field, tensors: dict[str, TensorProto], limits: Limits
) -> tuple[dict[str, QuantizedWeight], tuple[UncombinedCodes, ...]]:
    """Return the quantized weights and the other codes; read nodes only if a tensor may hold codes."""
    if not any(tensor.dtype in (*CODE_DTYPES, BIASES) and tensor.shape for tensor in tensors.values()):
        return {}, ()
    nodes = read_nodes((item for item in graph.message if item.number == NODE), limits)
    weights = quantized_weights(nodes, GraphValues(Flow(nodes), tensors, source, limits))
    return weights, uncombined_codes(nodes, tensors, weights)


class GraphReader:
    """A walk over nested graphs, within limits. `names`: tensors by name. `nodes`: number of nodes."""

    def __init__(self, limits: Limits) -> None:
        self.names: dict[str, TensorProto] = {}
        self.nodes = 0
        self._limits, self._size = limits, 0

    def count(self, item: protobuf.Field) -> None:
        """Count the bytes of a field; raise LimitError beyond the limit of headers."""
        self._size += item.size if item.wire == protobuf.BYTES else 0
        if self._size > self._limits.header:
            raise LimitError(
                "the graph is too large",
                offset=item.offset,
                expected=f"at most {self._limits.header} bytes of nodes",
                found=f"{self._size} bytes so far",
                code="header",
                limit="header",
            )

    def tensors(self, graph: protobuf.Field, prefix: str, depth: int) -> Iterator[TensorProto]:
        """Yield the initializers of a graph, then of the graphs in its nodes."""
        limits = self._limits
        if depth > limits.depth:
            raise LimitError(
                "graphs are nested too deeply",
                offset=graph.offset,
                expected=f"at most {limits.depth} levels",
                code="depth",
                limit="depth",
            )
        nodes = 0
        for item in graph.message:
            if item.number in (INITIALIZER, SPARSE_INITIALIZER):
                if len(self.names) >= limits.tensors:
                    raise LimitError(
                        "too many initializers",
                        offset=item.offset,
                        expected=f"at most {limits.tensors}",
                        code="count",
                        limit="tensors",
                    )
                yield read_tensor(item, prefix, limits) if item.number == INITIALIZER else _sparse(item, prefix, limits)
            elif item.number == NODE:
                yield from self.in_node(item, prefix, nodes, depth)
                nodes += 1
        self.nodes += nodes

    def in_node(self, node: protobuf.Field, prefix: str, number: int, depth: int) -> Iterator[TensorProto]:
        """Yield the initializers of the graphs in a node's attributes."""
        if depth == 0:
            self.count(node)
        label, graphs = str(number), []
        for item in node.message:
            if item.number == NODE_NAME and 0 < item.size <= self._limits.name:
                label = item.text
            elif item.number == NODE_ATTRIBUTE:
                graphs += _graphs(item, self._limits)
        for attribute, graph in graphs:
            yield from self.tensors(graph, f"{prefix}{label}/{attribute}/", depth + 1)


def _graphs(attribute: protobuf.Field, limits: Limits) -> list[tuple[str, protobuf.Field]]:
    """Return the graphs of an attribute, each with the attribute's name."""
    name, graphs = "", []
    for item in attribute.message:
        if item.number == 1 and item.size <= limits.name:
            name = item.text
        elif item.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            graphs.append(item)
    return [(f"{name}.{number}" if number else name, graph) for number, graph in enumerate(graphs)]


def _sparse(item: protobuf.Field, prefix: str, limits: Limits) -> TensorProto:
    """Return a sparse initializer under the name of its values, without a codec."""
    for entry in item.message:
        if entry.number == 1:
            return evolve(read_tensor(entry, prefix, limits), problem="sparse initializers are not decoded")
    raise FormatError("a sparse initializer has no values", offset=item.offset, code="sparse")
