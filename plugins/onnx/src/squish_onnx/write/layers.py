"""Building blocks of layers: linear, norm and soft cap."""

from __future__ import annotations

from squish_core.api import FormatError

from .config import Decoder
from .graph import Graph


def linear(graph: Graph, name: str, x: str) -> str:
    """Add a product with a matrix, plus its bias if there is one."""
    require(graph, f"{name}.weight")
    return graph.linear(f"{name}.weight", x, f"{name}.bias")


def norm(graph: Graph, decoder: Decoder, name: str, x: str) -> str:
    """Add an RMS norm over the last axis, or a layer norm if the family has one."""
    require(graph, f"{name}.weight")
    if decoder.layer_norm:
        require(graph, f"{name}.bias")
        x = graph.op("Sub", x, graph.op("ReduceMean", x, graph.integers(-1), keepdims=1))
    weight = graph.floats(f"{name}.weight")
    if decoder.norm_offset:
        weight = graph.op("Add", weight, graph.constant(decoder.norm_offset))
    mean = graph.op("ReduceMean", graph.op("Mul", x, x), graph.integers(-1), keepdims=1)
    root = graph.op("Sqrt", graph.op("Add", mean, graph.constant(decoder.epsilon)))
    y = graph.op("Mul", graph.op("Div", x, root), weight)
    return graph.op("Add", y, graph.floats(f"{name}.bias")) if decoder.layer_norm else y


def soft_cap(graph: Graph, x: str, cap: float) -> str:
    """Add `cap * tanh(x / cap)`, unless `cap` is 0."""
    if not cap:
        return x
    return graph.op("Mul", graph.op("Tanh", graph.op("Div", x, graph.constant(cap))), graph.constant(cap))


def require(graph: Graph, name: str) -> None:
    """Raise FormatError if the model lacks a tensor."""
    if name not in graph:
        raise FormatError(
            "the model lacks a tensor that the graph of its family needs",
            tensor=name,
            code="tensor-missing",
            hint="Convert the complete model.",
        )
