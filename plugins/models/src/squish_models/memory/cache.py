"""The caches and states that llama-server keeps for a context, by the kind of layer."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from .model import CONVOLUTION, LATENT, Layer, ServedModel

PADDING = 256
"""llama.cpp rounds contexts and windows up to a multiple."""
SHARED = "attention.shared_kv_layers"


@frozen(kw_only=True)
class Cache:
    """What layers of one kind keep of the tokens before.

    Attributes
    ----------
    kind
        "attention", "sliding window", "latent attention", or the kind of a recurrent state.
    layers
        The number of layers.
    cells
        The number of tokens that a layer keeps; 1 for a state.
    size
        Bytes of all layers.
    """

    kind: str
    layers: int
    cells: int
    size: int

    @property
    def is_state(self) -> bool:
        """Whether it is as large for every context."""
        return self.cells == 1


def caches(model: ServedModel, context: int, batch: int) -> tuple[Cache, ...]:
    """Return what the layers keep, with f16 keys and values and f32 states, one row for each kind."""
    found: dict[tuple[str, int], Cache] = {}
    for layer in model.layers:
        for cache in _of_layer(layer, context, batch):
            before = found.get((cache.kind, cache.cells), evolve(cache, layers=0, size=0))
            found[cache.kind, cache.cells] = evolve(before, layers=before.layers + 1, size=before.size + cache.size)
    return tuple(found.values())


def cells(layer: Layer, context: int, batch: int) -> int:
    """Return the number of tokens that a layer with attention keeps."""
    return padded(min(context, layer.window + batch)) if layer.window else context


def padded(context: int) -> int:
    """Return a context as llama.cpp rounds it up."""
    return -(-context // PADDING) * PADDING


def _of_layer(layer: Layer, context: int, batch: int) -> Iterator[Cache]:
    if layer.state:
        yield Cache(kind=layer.state, layers=1, cells=1, size=4 * sum(state_sizes(layer)))
    if not layer.attention or layer.number >= layer.numbers.trunk - layer.of(SHARED):
        return
    kind = "sliding window" if layer.window else layer.attention
    count = cells(layer, context, batch)
    yield Cache(kind=kind, layers=1, cells=count, size=2 * count * sum(key_value_sizes(layer)))


def key_value_sizes(layer: Layer) -> tuple[int, int]:
    """Return the numbers of values that a layer keeps of a token's keys and of its values."""
    heads = layer.of("attention.head_count_kv")
    key, value = (layer.numbers.head_size(name, layer.number) for name in ("key", "value"))
    if layer.attention == LATENT and layer.of("attention.key_length_mla"):
        return heads * key, 0  # the values are the first ones of the keys
    return heads * key, heads * value


def state_sizes(layer: Layer) -> tuple[int, int]:
    """Return the numbers of values of a layer's convolution and of its recurrent state."""
    if layer.state == CONVOLUTION:
        return layer.of("embedding_length") * (layer.of("shortconv.l_cache") - 1), 0
    inner, state = layer.of("ssm.inner_size"), layer.of("ssm.state_size")
    return (layer.of("ssm.conv_kernel") - 1) * (inner + 2 * layer.of("ssm.group_count") * state), inner * state
