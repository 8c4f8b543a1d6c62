"""The values that llama.cpp's graph computes in a recurrent layer: short convolutions, Mamba, gated delta nets."""

from __future__ import annotations

from .allocator import Graph, Value
from .cache import state_sizes
from .model import CONVOLUTION, DELTA, MAMBA, Layer


def recurrent(graph: Graph, layer: Layer, values: Value) -> Value:
    """The result of a layer with a state."""
    steps = {CONVOLUTION: short_convolution, DELTA: delta_net, MAMBA: mamba}
    return steps.get(layer.state or "", mamba2)(graph, layer, values)


def convolved(graph: Graph, values: Value, before: Value, width: int, length: int) -> Value:
    """A convolution over the rows and those `before` them, which the state keeps."""
    joined = graph.step(4 * width * (graph.tokens + length - 1), before, values)
    graph.step(0, joined)
    return graph.rows(width, joined)


def short_convolution(graph: Graph, layer: Layer, values: Value) -> Value:
    """A short convolution of LFM 2."""
    width, length = layer.of("embedding_length"), layer.of("shortconv.l_cache")
    parts = graph.rows(3 * width, values)
    product = graph.rows(width, parts)
    before = graph.step(4 * state_sizes(layer)[0])
    result = convolved(graph, product, before, width, length)
    return graph.rows(width, graph.rows(width, parts, result, in_place=True))


def mamba(graph: Graph, layer: Layer, values: Value) -> Value:
    """A layer of Mamba."""
    inner, state, rank = (layer.of(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
    before = graph.step(4 * state_sizes(layer)[0])
    both = graph.rows(2 * inner, values)
    scanned = convolved(graph, both, before, inner, layer.of("ssm.conv_kernel"))
    scanned = graph.rows(inner, scanned, in_place=True)
    parts = graph.rows(rank + 2 * state, scanned)
    steps = graph.rows(inner, graph.rows(rank, parts))
    result = graph.step(4 * inner * (graph.tokens + state), scanned, steps, parts)
    graph.step(0, result)
    skipped = graph.rows(inner, scanned)
    result = graph.rows(inner, result, skipped, in_place=True)
    gate = graph.rows(inner, both)
    return graph.rows(layer.of("embedding_length"), graph.rows(inner, gate, result))


def mamba2(graph: Graph, layer: Layer, values: Value) -> Value:
    """A layer of Mamba 2."""
    inner, heads = layer.of("ssm.inner_size"), layer.of("ssm.time_step_rank")
    width = inner + 2 * layer.of("ssm.group_count") * layer.of("ssm.state_size")
    before, state = state_sizes(layer)
    kept = graph.step(4 * before)
    parts = graph.rows(layer.width("ssm_in"), values)
    mixed = convolved(graph, parts, kept, width, layer.of("ssm.conv_kernel"))
    mixed = graph.rows(width, mixed, in_place=True)
    steps = graph.rows(heads, parts)
    result = graph.step(4 * (inner * graph.tokens + state), mixed, steps)
    graph.step(0, result)
    skipped = graph.rows(inner, mixed)
    result = graph.rows(inner, result, skipped, in_place=True)
    result = graph.rows(inner, graph.rows(inner, parts), result)
    return graph.rows(layer.of("embedding_length"), graph.rows(inner, result, in_place=True))


def delta_net(graph: Graph, layer: Layer, values: Value) -> Value:
    """A gated delta rule."""
    inner, heads = layer.of("ssm.inner_size"), layer.of("ssm.time_step_rank")
    keys = layer.of("ssm.group_count") * layer.of("ssm.state_size")
    before, size = state_sizes(layer)
    mixed = graph.rows(inner + 2 * keys, values)
    kept = graph.step(4 * before)
    mixed = convolved(graph, mixed, kept, inner + 2 * keys, layer.of("ssm.conv_kernel"))
    state = graph.step(4 * size)
    mixed = graph.rows(inner + 2 * keys, mixed, in_place=True)
    query, key = graph.rows(keys, mixed), graph.rows(keys, mixed)
    alpha, beta = graph.rows(heads, values), graph.rows(heads, values)
    result = graph.step(4 * (inner * graph.tokens + size), query, key, mixed, alpha, beta, state)
    graph.step(0, result)
    result = graph.rows(inner, result)
    result = graph.rows(inner, result, in_place=True)
    gate = graph.rows(inner, values)
    result = graph.rows(inner, result, graph.rows(inner, gate, in_place=True), in_place=True)
    return graph.rows(layer.of("embedding_length"), result)
