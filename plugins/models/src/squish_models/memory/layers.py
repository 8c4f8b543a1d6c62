"""The values that llama.cpp's graph computes in a layer: attention, MLPs and experts."""

from __future__ import annotations

from attrs import frozen

from ..engines.llama_cpp.graph import HAS_NO_ROPE
from .allocator import Graph, Value
from .cache import key_value_sizes
from .model import LATENT, Layer

WEIGH_BEFORE = ("llama4",)
"""Architectures that scale what experts are given, instead of what they return."""


@frozen(kw_only=True)
class Inputs:
    """Values that are set before the graph runs: positions, cells of the cache, and masks without and with a window."""

    positions: Value
    cells: Value
    masks: dict[bool, Value]


def normed(graph: Graph, values: Value, width: int) -> Value:
    """A norm with a weight, which takes the place of values that nothing else uses."""
    result = graph.rows(width, values, in_place=True)
    return graph.rows(width, result, in_place=True)


def attention(graph: Graph, layer: Layer, values: Value, inputs: Inputs, mask: Value) -> Value:
    """Attention with heads of keys and values of their own."""
    heads = layer.of("attention.head_count")
    key, value = (layer.numbers.head_size(name, layer.number) for name in ("key", "value"))
    keys, value_rows = key_value_sizes(layer)
    gated = layer.width("attn_q") == 2 * heads * key
    if layer.has("attn_qkv"):
        query = fused = graph.rows(layer.width("attn_qkv"), values)
        stored_key = stored_value = fused
        if layer.numbers.architecture not in HAS_NO_ROPE:
            query = graph.rows(heads * key, fused, inputs.positions)
            stored_key = graph.rows(keys, fused, inputs.positions)
    else:
        fused = graph.rows(layer.width("attn_q"), values)
        query = graph.rows(heads * key, fused) if gated else fused
        query = graph.rows(heads * key, query, inputs.positions, in_place=True)
        stored_value = graph.rows(value_rows, values) if layer.has("attn_v") else fused
        stored_key = graph.rows(keys, values) if layer.has("attn_k") else fused
        if layer.has("attn_k"):
            stored_key = graph.rows(keys, stored_key, inputs.positions, in_place=True)
    graph.step(0, stored_key, inputs.cells)
    graph.step(0, stored_value, inputs.cells)
    result = graph.rows(heads * value, query, mask)
    if gated:
        result = _gated(graph, result, heads * value, fused, heads * key)
    if layer.has("attn_gate"):
        result = _gated(graph, result, heads * value, values, layer.width("attn_gate"))
    return graph.rows(layer.of("embedding_length"), result)


def _gated(graph: Graph, values: Value, width: int, source: Value, gate_width: int) -> Value:
    """Values times a gate that is computed from another one."""
    gate = graph.rows(gate_width, source)
    return graph.rows(width, values, graph.rows(gate_width, gate, in_place=True), in_place=True)


def latent_attention(graph: Graph, layer: Layer, values: Value, inputs: Inputs, mask: Value) -> Value:
    """Attention to a compressed row for each token, with all heads' keys and values absorbed in the queries."""
    heads, rank = layer.of("attention.head_count"), layer.of("attention.kv_lora_rank")
    rotated = layer.numbers.head_size("rope", layer.number)
    if layer.has("attn_q"):
        query = graph.rows(layer.width("attn_q"), values)
    else:
        low = graph.rows(layer.width("attn_q_a"), values)
        query = graph.rows(layer.width("attn_q_b"), normed(graph, low, layer.width("attn_q_a")))
    absorbed = graph.rows(heads * rank, query)
    turned = graph.rows(heads * rotated, query, inputs.positions)
    query = graph.rows(heads * (rank + rotated), absorbed, turned)
    compressed = graph.rows(rank + rotated, values)
    row = normed(graph, graph.rows(rank, compressed), rank)
    turned = graph.rows(rotated, compressed, inputs.positions)
    stored = graph.rows(rank + rotated, row, turned)
    graph.step(0, stored, inputs.cells)
    found = graph.rows(heads * rank, query, mask)
    value = layer.of("attention.value_length_mla")
    result = graph.rows(heads * value, graph.rows(heads * value, found))
    return graph.rows(layer.of("embedding_length"), result)


def attended(graph: Graph, layer: Layer, values: Value, inputs: Inputs, mask: Value) -> Value:
    """The result of a layer's attention."""
    if layer.attention == LATENT and layer.of("attention.key_length_mla"):
        return latent_attention(graph, layer, values, inputs, mask)
    return attention(graph, layer, values, inputs, mask)


def mlp(graph: Graph, layer: Layer, values: Value, suffix: str = "") -> Value:
    """An MLP, or the shared experts: `suffix` follows the names of its matrices."""
    up, down = f"ffn_up{suffix}", f"ffn_down{suffix}"
    width = layer.shapes[f"{down}.weight"][-1]
    if layer.has(f"ffn_gate{suffix}"):
        gate = graph.rows(width, values)
        hidden = graph.rows(width, gate, graph.rows(width, values))
    else:
        hidden = graph.rows(layer.width(up), values)
        hidden = graph.rows(width, hidden, in_place=True)
    return graph.rows(layer.width(down), hidden)


def experts(graph: Graph, layer: Layer, values: Value) -> Value:
    """Experts, each token with as many as it uses, and the shared ones beside them."""
    used, count = layer.of("expert_used_count"), layer.width("ffn_gate_inp")
    scores = graph.rows(count, values)
    scores = graph.rows(count, scores, in_place=True)
    chosen = graph.rows(count, scores)
    weights = graph.rows(used, scores, chosen)
    weights = graph.rows(used, weights, graph.rows(1, weights), in_place=True)
    width, embedding = layer.shapes["ffn_down_exps.weight"][-1], layer.width("ffn_down_exps")
    weighs_before = layer.numbers.architecture in WEIGH_BEFORE
    own = values
    if weighs_before:
        values = graph.rows(embedding * used, graph.rows(embedding * used, own), weights, in_place=True)
    if layer.has("ffn_gate_up_exps"):
        both = graph.rows(2 * width * used, values, chosen)
        hidden = graph.rows(width * used, both)
    elif layer.has("ffn_gate_exps"):
        gate = graph.rows(width * used, values, chosen)
        hidden = graph.rows(width * used, gate, graph.rows(width * used, values, chosen))
    else:
        hidden = graph.rows(width * used, values, chosen)
        hidden = graph.rows(width * used, hidden, in_place=True)
    found = graph.rows(embedding * used, hidden, chosen)
    if not weighs_before:
        found = graph.rows(embedding * used, found, weights, in_place=True)
    result = graph.rows(embedding, *[found] * min(used, 2))
    if used > 2:  # one after the other, in the same place
        result = graph.rows(embedding, result, found, in_place=True)
    if layer.has("ffn_down_shexp"):
        shared = mlp(graph, layer, own, "_shexp")
        if layer.has("ffn_gate_inp_shexp"):
            gate = graph.rows(1, own)
            shared = graph.rows(embedding, shared, gate, in_place=True)
        result = graph.rows(embedding, result, shared, in_place=True)
    return result
