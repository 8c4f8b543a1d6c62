"""The MLP of a layer: gated, fused, ungated, or a mixture of experts."""

from __future__ import annotations

import numpy as np

from .config import Decoder
from .graph import Graph
from .layers import linear


def mlp(graph: Graph, decoder: Decoder, prefix: str, x: str) -> str:
    """Add the MLP of a layer, or the mixture of experts if it has a router."""
    if f"{prefix}.gate.weight" in graph:
        return _experts(graph, decoder, prefix, x)
    return _dense(graph, decoder, prefix, x)


def _dense(graph: Graph, decoder: Decoder, prefix: str, x: str) -> str:
    names, fused = decoder.names, f"{prefix}.gate_up_proj"
    if not names.gate:
        return linear(graph, f"{prefix}.{names.down}", _activation(graph, decoder, _up(graph, decoder, prefix, x)))
    if f"{fused}.weight" in graph:
        half = graph.spec(f"{fused}.weight").shape[0] // 2
        gate, up = graph.ops("Split", (linear(graph, fused, x), graph.integers(half, half)), ("", ""), axis=-1)
    else:
        gate, up = linear(graph, f"{prefix}.{names.gate}", x), _up(graph, decoder, prefix, x)
    return linear(graph, f"{prefix}.{names.down}", graph.op("Mul", _activation(graph, decoder, gate), up))


def _up(graph: Graph, decoder: Decoder, prefix: str, x: str) -> str:
    return linear(graph, f"{prefix}.{decoder.names.up}", x)


def _activation(graph: Graph, decoder: Decoder, x: str) -> str:
    if decoder.activation == "silu":
        return graph.op("Mul", x, graph.op("Sigmoid", x))
    return graph.op("Gelu", x, approximate="tanh" if decoder.activation == "gelu_tanh" else "none")


def _experts(graph: Graph, decoder: Decoder, prefix: str, x: str) -> str:
    """Add the experts: each computes its tokens, and the results are scattered to slots and weighted by the router.

    The slot of a result is the token's index times the experts per token, plus the rank of the expert.
    """
    count, chosen = graph.spec(f"{prefix}.gate.weight").shape[0], decoder.experts_per_token
    tokens = graph.op("Reshape", x, graph.integers(-1, decoder.hidden))
    logits = linear(graph, f"{prefix}.gate", x)
    probabilities = graph.op("Reshape", graph.op("Softmax", logits, axis=-1), graph.integers(-1, count))
    weights, experts = graph.ops("TopK", (probabilities, graph.integers(chosen)), ("", ""), axis=-1)
    if decoder.normalized_routing:
        weights = graph.op("Div", weights, graph.op("ReduceSum", weights, graph.integers(-1), keepdims=1))
    experts = graph.op("Reshape", experts, graph.integers(-1))
    results, indices = [], []
    for expert in range(count):
        slots = graph.op("NonZero", graph.op("Equal", experts, graph.constant(expert, np.int64)))
        slots = graph.op("Reshape", slots, graph.integers(-1))
        rows = graph.op("Gather", tokens, graph.op("Div", slots, graph.constant(chosen, np.int64)))
        y = _dense(graph, decoder, f"{prefix}.experts.{expert}", graph.op("Unsqueeze", rows, graph.integers(0)))
        results.append(graph.op("Squeeze", y, graph.integers(0)))
        indices.append(slots)
    y = graph.op("Concat", *results, axis=0)
    index = graph.op("Unsqueeze", graph.op("Concat", *indices, axis=0), graph.integers(1))
    y = graph.op("Reshape", graph.op("ScatterND", y, index, y), graph.integers(-1, chosen, decoder.hidden))
    y = graph.op("Mul", y, graph.op("Unsqueeze", weights, graph.integers(2)))
    y = graph.op("ReduceSum", y, graph.integers(1), keepdims=0)
    return graph.op("Reshape", y, graph.op("Shape", x))
