"""The graph of a decoder: embedding, layers with their caches, and the head."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from squish_core.api import TensorSpec

from . import proto
from .attention import LayerInputs, attention
from .config import Decoder
from .convolution import is_convolution, short_convolution
from .graph import Graph
from .layers import norm, require, soft_cap
from .mlp import mlp
from .rope import angles

LOWEST = float(np.finfo(np.float32).min)
EMBEDDING = "embed_tokens.weight"
HEADS = {
    "model.": "lm_head.weight", "model.language_model.": "lm_head.weight",
    "language_model.model.": "language_model.lm_head.weight",
}  # fmt: skip
"""Prefix of a text model, alone or in a multimodal model -> its head."""


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
        Inputs: `input_ids`, `attention_mask`, `position_ids`, `past_key_values.N.key|value`. Outputs: `logits` and
        `present.N.key|value`, as optimum and onnxruntime-genai name them; `past.N.conv` and `present.N.conv` for short
        convolutions.

    Raises
    ------
    FormatError
        A tensor of the family is missing.
    """
    graph = Graph(specs, axes=2)
    prefix = text_prefix(graph)
    _declare(graph, decoder)
    shared = LayerInputs(
        {window: _mask(graph, window) for window in dict.fromkeys(decoder.windows)},
        {rope: angles(graph, rope) for rope in dict.fromkeys(decoder.ropes)},
    )
    require(graph, prefix + EMBEDDING)
    x = graph.embedding(prefix + EMBEDDING, "input_ids")
    if decoder.embedding_factor != 1:
        x = graph.op("Mul", x, graph.constant(decoder.embedding_factor))
    for layer in range(decoder.layers):
        x = _layer(graph, decoder, shared, f"{prefix}layers.{layer}", layer, x)
    x = norm(graph, decoder, prefix + decoder.names.final_norm, x)
    head = prefix + EMBEDDING if decoder.tied and HEADS[prefix] not in graph else HEADS[prefix]
    require(graph, head)
    logits = graph.linear(head, x)
    if decoder.logits_factor != 1:
        logits = graph.op("Mul", logits, graph.constant(decoder.logits_factor))
    graph.op("Identity", soft_cap(graph, logits, decoder.logits_cap), output="logits")
    return graph


def text_prefix(names: Container[str]) -> str:
    """Return the prefix of the text model's tensors."""
    return next((prefix for prefix in HEADS if prefix + EMBEDDING in names), "model.")


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
        if is_convolution(decoder, layer):
            state = (batch, decoder.hidden, decoder.taps - 1)
            graph.inputs.append(proto.value_info(11, f"past.{layer}.conv", "f32", state))
            graph.outputs.append(proto.value_info(12, f"present.{layer}.conv", "f32", state))
            continue
        for part in ("key", "value"):
            past = (batch, decoder.kv_heads, "past_sequence_length", decoder.head_size)
            total = (batch, decoder.kv_heads, "total_sequence_length", decoder.head_size)
            graph.inputs.append(proto.value_info(11, f"past_key_values.{layer}.{part}", "f32", past))
            graph.outputs.append(proto.value_info(12, f"present.{layer}.{part}", "f32", total))


def _mask(graph: Graph, window: int) -> str:
    """Add the mask: 0 where a query attends to a key, else the lowest float; [batch, 1, 1, queries, keys]."""
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


def _layer(graph: Graph, decoder: Decoder, shared: LayerInputs, prefix: str, layer: int, x: str) -> str:
    def optional_norm(name: str, y: str) -> str:
        return norm(graph, decoder, f"{prefix}.{name}", y) if name else y

    def residual(y: str) -> str:
        if decoder.residual_factor != 1:
            y = graph.op("Mul", y, graph.constant(decoder.residual_factor))
        return graph.op("Add", x, y)

    before_attention, after_attention, before_mlp, after_mlp = decoder.names.norms
    y = optional_norm(before_attention, x)
    if is_convolution(decoder, layer):
        y = short_convolution(graph, decoder, f"{prefix}.conv", layer, y)
    else:
        y = attention(graph, decoder, shared, f"{prefix}.self_attn", layer, y)
    x = residual(optional_norm(after_attention, y))
    y = mlp(graph, decoder, f"{prefix}.{decoder.names.mlp}", optional_norm(before_mlp, x))
    return residual(optional_norm(after_mlp, y))
