"""The bytes of an existing model with new weights; unchanged fields are copied."""

from __future__ import annotations

from bisect import bisect_left

from squish_core.api import Sink, protobuf

from ..nodes import value_name
from ..tensor import TensorProto
from ..types import GRAPH, GRAPH_INPUT, INITIALIZER, NODE, VALUE_INFO
from . import proto
from .existing import RewrittenGraph, new_opsets
from .graph import Initializer
from .source_graph import ExistingModel
from .weights import WeightWriter

Piece = bytes | memoryview
_NAME, _RAW, _EXTERNAL, _LOCATION = 8, 9, 13, 14


def splice(result: RewrittenGraph, weights: WeightWriter, data: Sink) -> list[Piece]:
    """Write the weights, and return the pieces of the model.

    Parameters
    ----------
    result
        The changes to the graph.
    weights
        Writer of the tensors.
    data
        The external file.

    Returns
    -------
    list of bytes
        The fields of the model in order; unchanged ones are views of its file.
    """
    graph = _graph_fields(result, weights, data)
    pieces: list[Piece] = []
    for item in result.model.items:
        if item.number == GRAPH:
            pieces += [protobuf.header(GRAPH, sum(map(len, graph))), *graph]
        else:
            pieces.append(item.encoded)
    pieces += [proto.opset(domain, version) for domain, version in new_opsets(result).items()]
    return pieces


def _graph_fields(result: RewrittenGraph, weights: WeightWriter, data: Sink) -> list[Piece]:
    """Return the fields of the graph, with the new nodes and initializers."""
    model, first, number = result.model, [*result.graph.constant_nodes, *result.first], 0
    undeclared = {GRAPH_INPUT: result.removed_values | result.computed, VALUE_INFO: result.removed_values}
    nested = _NestedInitializers(result, weights, data)
    pieces: list[Piece] = []
    for item in model.graph:
        if item.number == NODE:
            pieces += [*first, *(result.nodes[number] if number in result.nodes else [nested.field(item)])]
            first, number = [], number + 1
        elif item.number == INITIALIZER:
            name = _name(item)
            pieces += (
                []
                if name in result.replaced_initializers
                else [_copy(model, item, model.initializers[name], weights, data)]
            )
        elif item.number not in undeclared or value_name(item) not in undeclared[item.number]:
            pieces.append(item.encoded)
    initializers = result.graph.initializers.values()
    return [
        *pieces,
        *(weights.write(data, initializer, result.tensors[initializer.tensor]) for initializer in initializers),
    ]


def _name(item: protobuf.Field) -> str:
    """Return the name of a TensorProto."""
    return next((entry.text for entry in item.message if entry.number == _NAME), "")


def _copy(model: ExistingModel, item: protobuf.Field, tensor: TensorProto, weights: WeightWriter, data: Sink) -> Piece:
    """Return an initializer with the same values; external data is copied to the new file."""
    if tensor.external is None:
        return item.encoded
    location = model.external.locate(tensor, tensor.external)
    values = weights.copy(data, model.external.files[location.path], location.offset, location.size)
    fields = [entry.encoded for entry in item.message if entry.number not in (_RAW, _EXTERNAL, _LOCATION)]
    return proto.message(INITIALIZER, *map(bytes, fields), values)


class _NestedInitializers:
    """Initializers of nested graphs whose values change or move to another file."""

    def __init__(self, result: RewrittenGraph, weights: WeightWriter, data: Sink) -> None:
        self._result, self._weights, self._data = result, weights, data
        items, changes = result.model.nested.items(), result.nested_changes
        self._tensors = {tensor.offset: (name, tensor) for name, tensor in items if tensor.offset in changes}
        self._offsets = sorted(self._tensors)

    def field(self, item: protobuf.Field) -> Piece:
        """Return a field, with the new initializers inside it."""
        if item.offset in self._tensors:
            return self._initializer(item, *self._tensors[item.offset])
        if bisect_left(self._offsets, item.start) == bisect_left(self._offsets, item.end):
            return item.encoded
        return protobuf.message(item.number, *(bytes(self.field(entry)) for entry in item.message))

    def _initializer(self, item: protobuf.Field, name: str, tensor: TensorProto) -> Piece:
        source = self._result.tensors.get(name)
        if source is None:
            return _copy(self._result.model, item, tensor, self._weights, self._data)
        initializer = Initializer(_name(item), tensor.dtype, tensor.shape, source, "data")
        return self._weights.write(self._data, initializer, source)
