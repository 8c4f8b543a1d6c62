"""The graph of a decoder: embedding, layers with a cache of keys and values, and the head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from squish_core.api import FormatError, TensorSpec

from . import proto
from .config import Decoder, Rope
from .graph import Graph

LOWEST = float(np.finfo(np.float32).min)
HEAD, EMBEDDING, FINAL_NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"


@frozen
class Shared:
    """What all layers use: masks by window, sines and cosines by rope."""

    masks: dict[int, str]
    angles: dict[Rope, tuple[str, str]]


def decoder_graph(decoder: Decoder, specs: Sequence[TensorSpec]) -> Graph:
    """Build the graph of a decoder.

    Parameters
    ----------
    decoder
        Sizes and constants.
    specs
        The tensors, under the names of transformers.

    Returns
    -------
    Graph
        Inputs `input_ids`, `attention_mask`, `position_ids` and `past_key_values.N.key|value`; outputs `logits` and
        `present.N.key|value`, as optimum and onnxruntime-genai name them.

    Raises
    ------
    FormatError
        A tensor of the family is missing.
    """
    graph = Graph(specs, axes=2)
    _declare(graph, decoder)
    shared = Shared(
        {window: _mask(graph, window) for window in dict.fromkeys(decoder.windows)},
        {rope: _angles(graph, rope) for rope in dict.fromkeys(decoder.ropes)},
    )
    _require(graph, EMBEDDING)
    x = graph.embedding(EMBEDDING, "input_ids")
    if decoder.embedding_factor != 1:
        x = graph.op("Mul", x, graph.constant(decoder.embedding_factor))
    for layer in range(decoder.layers):
        x = _layer(graph, decoder, shared, layer, x)
    x = _norm(graph, decoder, FINAL_NORM, x)
    head = HEAD if HEAD in graph else EMBEDDING
    if head == EMBEDDING and not decoder.tied:
        _require(graph, HEAD)
    logits = graph.linear(head, x)
    if decoder.logits_factor != 1:
        logits = graph.op("Mul", logits, graph.constant(decoder.logits_factor))
    graph.op("Identity", _capped(graph, logits, decoder.logits_cap), output="logits")
    return graph


def _declare(graph: Graph, decoder: Decoder) -> None:
    """Declare inputs and outputs."""
    batch, length = ("batch_size", "sequence_length")
    inputs = {
        "input_ids": (batch, length),
        "attention_mask": (batch, "total_sequence_length"),
        "position_ids": (batch, length),
    }  # fmt: skip
    graph.inputs += [proto.value_info(11, name, "i64", shape) for name, shape in inputs.items()]
    graph.outputs.append(proto.value_info(12, "logits", "f32", (batch, length, decoder.vocabulary)))
    for layer in range(decoder.layers):
        for part in ("key", "value"):
            past = (batch, decoder.kv_heads, "past_sequence_length", decoder.head_size)
            total = (batch, decoder.kv_heads, "total_sequence_length", decoder.head_size)
            graph.inputs.append(proto.value_info(11, f"past_key_values.{layer}.{part}", "f32", past))
            graph.outputs.append(proto.value_info(12, f"present.{layer}.{part}", "f32", total))


def _mask(graph: Graph, window: int) -> str:
    """0 where a query may see a key, else the lowest float: [batch, 1, 1, queries, keys]."""
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    total = graph.op("Squeeze", graph.op("Shape", "attention_mask", start=1, end=2), graph.integers(0))
    length = graph.op("Squeeze", graph.op("Shape", "input_ids", start=1, end=2), graph.integers(0))
    keys = graph.op("Range", zero, total, one)
    queries = graph.op("Range", graph.op("Sub", total, length), total, one)
    queries = graph.op("Unsqueeze", queries, graph.integers(1))
    visible = graph.op("LessOrEqual", keys, queries)
    if window:
        oldest = graph.op("Sub", queries, graph.constant(window, np.int64))
        visible = graph.op("And", visible, graph.op("Greater", keys, oldest))
    real = graph.op("Cast", "attention_mask", to=proto.CODES["bool"])
    visible = graph.op("And", visible, graph.op("Unsqueeze", real, graph.integers(1, 2, 3)))
    return graph.op("Where", visible, graph.constant(0), graph.constant(LOWEST))


def _angles(graph: Graph, rope: Rope) -> tuple[str, str]:
    """Cosines and sines of the positions: [batch, 1, positions, head size / 2]."""
    positions = graph.op("Cast", "position_ids", to=proto.CODES["f32"])
    positions = graph.op("Unsqueeze", positions, graph.integers(1, 3))
    angles = graph.op("Mul", positions, graph.constant(rope.frequencies))
    return graph.op("Cos", angles), graph.op("Sin", angles)


def _layer(graph: Graph, decoder: Decoder, shared: Shared, layer: int, x: str) -> str:
    prefix = f"model.layers.{layer}"

    def norm(name: str, y: str) -> str:
        return _norm(graph, decoder, f"{prefix}.{name}.weight", y) if name else y

    def added(y: str) -> str:
        if decoder.residual_factor != 1:
            y = graph.op("Mul", y, graph.constant(decoder.residual_factor))
        return graph.op("Add", x, y)

    before_attention, after_attention, before_mlp, after_mlp = decoder.norms
    y = _attention(graph, decoder, shared, layer, norm(before_attention, x))
    x = added(norm(after_attention, y))
    y = _mlp(graph, decoder, f"{prefix}.mlp", norm(before_mlp, x))
    return added(norm(after_mlp, y))


def _attention(graph: Graph, decoder: Decoder, shared: Shared, layer: int, x: str) -> str:
    prefix = f"model.layers.{layer}.self_attn"
    angles = shared.angles[decoder.ropes[layer]]
    projections = {}
    for part, y in zip("qkv", _projected(graph, decoder, prefix, x)):
        heads = decoder.heads if part == "q" else decoder.kv_heads
        norm = f"{prefix}.{part}_norm.weight"
        if norm in graph and graph.spec(norm).shape != (decoder.head_size,):  # over all heads at once
            y = _norm(graph, decoder, norm, y)
        y = graph.op("Reshape", y, graph.integers(0, 0, heads, decoder.head_size))
        if norm in graph and graph.spec(norm).shape == (decoder.head_size,):
            y = _norm(graph, decoder, norm, y)
        y = graph.op("Transpose", y, perm=(0, 2, 1, 3))
        projections[part] = y if part == "v" else _rotate(graph, y, angles, decoder, layer)
    keys, values = (
        graph.op(
            "Concat", f"past_key_values.{layer}.{part}", projections[part[0]], axis=2, output=f"present.{layer}.{part}"
        )
        for part in ("key", "value")
    )
    groups = decoder.heads // decoder.kv_heads
    queries = graph.op("Reshape", projections["q"], graph.integers(0, decoder.kv_heads, groups, -1, decoder.head_size))
    transposed = graph.op("Unsqueeze", graph.op("Transpose", keys, perm=(0, 1, 3, 2)), graph.integers(2))
    scores = graph.op("Mul", graph.op("MatMul", queries, transposed), graph.constant(decoder.scale))
    scores = _capped(graph, scores, decoder.attention_cap)
    weights = graph.op("Softmax", graph.op("Add", scores, shared.masks[decoder.windows[layer]]), axis=-1)
    y = graph.op("MatMul", weights, graph.op("Unsqueeze", values, graph.integers(2)))
    y = graph.op("Reshape", y, graph.integers(0, decoder.heads, -1, decoder.head_size))
    y = graph.op("Transpose", y, perm=(0, 2, 1, 3))
    y = graph.op("Reshape", y, graph.integers(0, 0, decoder.heads * decoder.head_size))
    return _linear(graph, f"{prefix}.o_proj", y)


def _projected(graph: Graph, decoder: Decoder, prefix: str, x: str) -> list[str]:
    """Queries, keys and values, by one matrix or three."""
    fused = f"{prefix}.qkv_proj"
    if f"{fused}.weight" in graph:
        sizes = [heads * decoder.head_size for heads in (decoder.heads, decoder.kv_heads, decoder.kv_heads)]
        y = graph.linear(f"{fused}.weight", x, f"{fused}.bias")
        return graph.ops("Split", (y, graph.integers(*sizes)), ("", "", ""), axis=-1)
    names = [f"{prefix}.{part}_proj" for part in "qkv"]
    return [_linear(graph, name, x) for name in names]


def _linear(graph: Graph, name: str, x: str) -> str:
    _require(graph, f"{name}.weight")
    return graph.linear(f"{name}.weight", x, f"{name}.bias")


def _rotate(graph: Graph, x: str, angles: tuple[str, str], decoder: Decoder, layer: int) -> str:
    """Rotate each pair of a head's first and second half by its angle; what no angle is for stays."""
    cosines, sines = angles
    half = len(decoder.ropes[layer].frequencies)
    rest = decoder.head_size - 2 * half
    sizes = (half, half, rest) if rest else (half, half)
    first, second, *others = graph.ops("Split", (x, graph.integers(*sizes)), ("",) * len(sizes), axis=-1)
    left = graph.op("Sub", graph.op("Mul", first, cosines), graph.op("Mul", second, sines))
    right = graph.op("Add", graph.op("Mul", second, cosines), graph.op("Mul", first, sines))
    return graph.op("Concat", left, right, *others, axis=-1)


def _capped(graph: Graph, x: str, cap: float) -> str:
    """`cap * tanh(x / cap)`; unchanged without a cap."""
    if not cap:
        return x
    return graph.op("Mul", graph.op("Tanh", graph.op("Div", x, graph.constant(cap))), graph.constant(cap))


def _mlp(graph: Graph, decoder: Decoder, prefix: str, x: str) -> str:
    fused = f"{prefix}.gate_up_proj"
    if f"{fused}.weight" in graph:
        half = graph.spec(f"{fused}.weight").shape[0] // 2
        gate, up = graph.ops("Split", (_linear(graph, fused, x), graph.integers(half, half)), ("", ""), axis=-1)
    else:
        gate, up = (_linear(graph, f"{prefix}.{part}_proj", x) for part in ("gate", "up"))
    if decoder.activation == "silu":
        gate = graph.op("Mul", gate, graph.op("Sigmoid", gate))
    else:
        gate = graph.op("Gelu", gate, approximate="tanh" if decoder.activation == "gelu_tanh" else "none")
    return _linear(graph, f"{prefix}.down_proj", graph.op("Mul", gate, up))


def _norm(graph: Graph, decoder: Decoder, name: str, x: str) -> str:
    """RMS norm over the last axis."""
    _require(graph, name)
    weight = graph.floats(name)
    if decoder.norm_offset:
        weight = graph.op("Add", weight, graph.constant(decoder.norm_offset))
    mean = graph.op("ReduceMean", graph.op("Mul", x, x), graph.integers(-1), keepdims=1)
    root = graph.op("Sqrt", graph.op("Add", mean, graph.constant(decoder.epsilon)))
    return graph.op("Mul", graph.op("Div", x, root), weight)


def _require(graph: Graph, name: str) -> None:
    if name not in graph:
        raise FormatError(
            "the model has no such tensor, which the graph of its family needs", tensor=name, code="tensor-missing",
            hint="Convert the complete model.",
        )  # fmt: skip
