"""The buffers that llama-server allocates for computing: values of the graph, and the logits that it keeps."""

from __future__ import annotations

from .allocator import Graph, Value
from .cache import cells
from .layers import Inputs, attended, experts, mlp, normed
from .model import Layer, ServedModel
from .recurrent import recurrent

DEEP = "n_deepstack_layers"
"""Layers to which rows of images are added, which follow those of the text."""


def logits_size(model: ServedModel) -> int:
    """Return the bytes of the logits of one token."""
    return 4 * model.vocabulary


def compute_size(model: ServedModel, context: int, batch: int) -> int:
    """Return the bytes in which a graph over a batch of tokens keeps its values, for one output."""
    graph = Graph(min(context, batch))
    embedded, inputs, outputs = _embedded(graph, model, context, batch)
    values, deep = embedded, model.numbers.number(DEEP)
    for layer in model.layers:
        is_last = layer is model.layers[-1]
        values = _layer(graph, layer, values, inputs, outputs if is_last else None)
        if layer.number < deep:
            values = graph.rows(model.embedding, values, embedded, in_place=True)
    values = normed(graph, values, model.embedding)
    graph.rows(model.vocabulary, values)
    return graph.peak()


def _embedded(graph: Graph, model: ServedModel, context: int, batch: int) -> tuple[Value, Inputs, Value]:
    """Add what is set before the graph runs, and the embeddings: of texts, and of images between them."""
    width = model.embedding * (1 + model.numbers.number(DEEP))
    graph.input(4 * width * graph.tokens)
    text = graph.input(4 * graph.tokens)
    mixed = graph.input(4 * width * graph.tokens)
    positions, places = graph.input(4 * graph.tokens), graph.input(8 * graph.tokens)
    counts = {bool(layer.window): cells(layer, context, batch) for layer in model.layers if layer.attention}
    masks = {windowed: graph.input(2 * count * graph.tokens) for windowed, count in sorted(counts.items())}
    outputs = graph.input(4)
    values = _rows_of(graph, model.embedding, width, text)
    text_rows = _rows_of(graph, model.embedding, width, text)
    mixed_rows = graph.rows(width, mixed)
    mixed_rows.stays = True  # nothing reads it in a graph over text alone
    graph.step(0, text_rows, mixed_rows)
    return values, Inputs(positions=positions, cells=places, masks=masks), outputs


def _rows_of(graph: Graph, embedding: int, width: int, text: Value) -> Value:
    """Rows of the embeddings, as wide as those of images."""
    values = graph.rows(embedding, text)
    return values if width == embedding else graph.rows(width, values)


def _layer(graph: Graph, layer: Layer, values: Value, inputs: Inputs, outputs: Value | None) -> Value:
    """Add a layer; the last one goes on with the tokens of `outputs` alone behind its attention."""
    width = layer.of("embedding_length")
    before = normed(graph, values, width) if layer.has("attn_norm") else values
    found = _mixed(graph, layer, before, inputs)
    feeds = layer.has("ffn_down", "ffn_down_exps")
    has_own_norm = layer.has("ffn_norm", "post_attention_norm")
    if outputs is not None:
        graph.tokens = 1
        values = graph.rows(width, values, outputs)
        found = graph.rows(width, found, outputs) if found else None
        before = before if has_own_norm else graph.rows(width, before, outputs)
    if not feeds:
        return graph.rows(width, found, values, in_place=True) if found else values
    if found is None:  # an MLP alone
        return graph.rows(width, _fed(graph, layer, before), values, in_place=True)
    if not has_own_norm:
        both = graph.rows(width, _fed(graph, layer, before), found, in_place=True)
        return graph.rows(width, both, values, in_place=True)
    found = graph.rows(width, found, values, in_place=True)
    before = normed(graph, found, width) if layer.has("ffn_norm") or not layer.has("post_ffw_norm") else found
    return graph.rows(width, _fed(graph, layer, before), found, in_place=True)


def _mixed(graph: Graph, layer: Layer, before: Value, inputs: Inputs) -> Value | None:
    """Add what mixes tokens: a state, attention, or both."""
    found = recurrent(graph, layer, before) if layer.state else None
    if layer.attention:
        other = attended(graph, layer, before, inputs, inputs.masks[bool(layer.window)])
        found = other if found is None else graph.rows(layer.of("embedding_length"), other, found, in_place=True)
    return found


def _fed(graph: Graph, layer: Layer, before: Value) -> Value:
    return experts(graph, layer, before) if layer.has("ffn_gate_inp") else mlp(graph, layer, before)
