"""What layers are made of: matrices, norms, and bounds of scores."""

from __future__ import annotations

from squish_core.api import FormatError

from .config import Decoder
from .graph import Graph


def linear(graph: Graph, name: str, x: str) -> str:
    """Multiply by a matrix, and add the bias if there is one."""
    require(graph, f"{name}.weight")
    return graph.linear(f"{name}.weight", x, f"{name}.bias")


def norm(graph: Graph, decoder: Decoder, name: str, x: str) -> str:
    """The RMS norm over the last axis, or the layer norm of families that have one."""
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


def capped(graph: Graph, x: str, cap: float) -> str:
    """`cap * tanh(x / cap)`; unchanged without a cap."""
    if not cap:
        return x
    return graph.op("Mul", graph.op("Tanh", graph.op("Div", x, graph.constant(cap))), graph.constant(cap))


def require(graph: Graph, name: str) -> None:
    """FormatError if the model lacks a tensor."""
    if name not in graph:
        raise FormatError(
            "the model has no such tensor, which the graph of its family needs",
            tensor=name,
            code="tensor-missing",
            hint="Convert the complete model.",
        )
