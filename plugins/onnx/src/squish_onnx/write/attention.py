"""Attention of a layer, with a cache of keys and values."""

from __future__ import annotations

from attrs import frozen

from .config import Decoder
from .graph import Graph
from .layers import linear, norm, soft_cap
from .rope import Rope, rotate


@frozen
class LayerInputs:
    """Values that all layers read: masks by window, cosines and sines by rope."""

    masks: dict[int, str]
    angles: dict[Rope, tuple[str, str]]


def attention(graph: Graph, decoder: Decoder, shared: LayerInputs, prefix: str, layer: int, x: str) -> str:
    """Add attention with a cache of keys and values."""
    rope, size = decoder.ropes[layer], decoder.head_size
    projections = {}
    for part, y in zip("qkv", _projections(graph, decoder, prefix, x)):
        heads = decoder.heads if part == "q" else decoder.kv_heads
        norm_name = f"{prefix}.{part}_{decoder.names.head_norm}"
        weight = f"{norm_name}.weight"
        if weight in graph and graph.spec(weight).shape != (size,):  # one norm over all heads
            y = norm(graph, decoder, norm_name, y)
        y = graph.op("Reshape", y, graph.integers(0, 0, heads, size))
        if weight in graph and graph.spec(weight).shape == (size,):
            y = norm(graph, decoder, norm_name, y)
        y = graph.op("Transpose", y, perm=(0, 2, 1, 3))
        if part != "v":
            y = rotate(graph, y, shared.angles[rope], rope, size, decoder.interleaved)
        projections[part] = y
    keys, values = (
        graph.op(
            "Concat", f"past_key_values.{layer}.{part}", projections[part[0]], axis=2, output=f"present.{layer}.{part}"
        )
        for part in ("key", "value")
    )
    groups = decoder.heads // decoder.kv_heads
    queries = graph.op("Reshape", projections["q"], graph.integers(0, decoder.kv_heads, groups, -1, size))
    transposed = graph.op("Unsqueeze", graph.op("Transpose", keys, perm=(0, 1, 3, 2)), graph.integers(2))
    scores = graph.op("Mul", graph.op("MatMul", queries, transposed), graph.constant(decoder.scale))
    scores = soft_cap(graph, scores, decoder.attention_cap)
    weights = graph.op("Softmax", graph.op("Add", scores, shared.masks[decoder.windows[layer]]), axis=-1)
    y = graph.op("MatMul", weights, graph.op("Unsqueeze", values, graph.integers(2)))
    y = graph.op("Reshape", y, graph.integers(0, decoder.heads, -1, size))
    y = graph.op("Transpose", y, perm=(0, 2, 1, 3))
    y = graph.op("Reshape", y, graph.integers(0, 0, decoder.heads * size))
    return linear(graph, f"{prefix}.{decoder.names.output}", y)


def _projections(graph: Graph, decoder: Decoder, prefix: str, x: str) -> list[str]:
    """Compute queries, keys and values, with one matrix or three."""
    fused = f"{prefix}.qkv_proj"
    if f"{fused}.weight" in graph:
        sizes = [heads * decoder.head_size for heads in (decoder.heads, decoder.kv_heads, decoder.kv_heads)]
        y = graph.linear(f"{fused}.weight", x, f"{fused}.bias")
        return graph.ops("Split", (y, graph.integers(*sizes)), ("", "", ""), axis=-1)
    names = [f"{prefix}.{part}_proj" for part in "qkv"]
    return [linear(graph, name, x) for name in names]
