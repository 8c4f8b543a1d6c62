"""The short convolution of a layer, with a cache of the last columns."""

from __future__ import annotations

from . import proto
from .config import CONVOLUTION, Decoder
from .graph import Graph
from .layers import linear, require
from .rope import unsupported


def is_convolution(decoder: Decoder, layer: int) -> bool:
    """Return whether a layer has a short convolution instead of attention."""
    return bool(decoder.kinds) and decoder.kinds[layer] == CONVOLUTION


def short_convolution(graph: Graph, decoder: Decoder, prefix: str, layer: int, x: str) -> str:
    """Add a gated convolution over the last tokens."""
    require(graph, f"{prefix}.conv.weight")
    if graph.spec(f"{prefix}.conv.weight").shape != (decoder.hidden, 1, decoder.taps) or decoder.taps < 2:
        raise unsupported("conv_L_cache", "the columns of the convolution", decoder.taps)
    length = graph.op("Shape", "input_ids", start=1, end=2)
    mask = graph.op("Slice", "attention_mask", graph.op("Neg", length), graph.integers(1 << 31), graph.integers(1))
    mask = graph.op("Unsqueeze", graph.op("Cast", mask, to=proto.CODES["f32"]), graph.integers(2))
    y = linear(graph, f"{prefix}.in_proj", graph.op("Mul", x, mask))
    y = graph.op("Transpose", y, perm=(0, 2, 1))
    input_gate, output_gate, y = graph.ops("Split", (y, graph.integers(*[decoder.hidden] * 3)), ("", "", ""), axis=1)
    columns = graph.op("Concat", f"past.{layer}.conv", graph.op("Mul", input_gate, y), axis=2)
    first = graph.integers(1 - decoder.taps)
    graph.op("Slice", columns, first, graph.integers(1 << 31), graph.integers(2), output=f"present.{layer}.conv")
    weight = graph.floats(f"{prefix}.conv.weight")
    y = graph.op("Conv", columns, weight, group=decoder.hidden, kernel_shape=(decoder.taps,))
    y = graph.op("Transpose", graph.op("Mul", output_gate, y), perm=(0, 2, 1))
    return linear(graph, f"{prefix}.out_proj", y)
