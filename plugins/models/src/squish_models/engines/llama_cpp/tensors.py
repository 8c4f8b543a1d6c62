"""The tensors that llama.cpp's loader creates for an architecture, with the sizes that follow from hyperparameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from .architectures import LAYERS, OTHERS
from .keys import Hyperparameters
from .rows import EXPERTS, NEXT, PLAIN_GATED, WIDE_EXPERTS, WIDE_SHARED, Row, query_rank

Sizes = Mapping[str, int]


@frozen
class Need:
    """A tensor that llama.cpp looks for: its sizes, those of a row's values first, and whether it is required."""

    name: str
    sizes: tuple[int, ...]
    required: bool = True


HALVES = ("jina-bert-v2",)
"""Architectures whose gate is a tensor of its own, or half of the one that projects up."""
ROUTED = ("jamba",)
"""Architectures whose layers have experts where they have a router."""
LAX = ("mimo2", "step35")
"""Architectures that load whatever a layer has of an MLP, of experts and of a shared one."""
ALL_LAYERS = (
    "deepseek2", "glm4", "glm4moe", "nemotron_h", "nemotron_h_moe", "mistral4", "deepseek32", "glm-dsa", "deepseek4",
    "qwen35", "qwen35moe", "qwen3next", "mimo2", "step35",
)  # fmt: skip
"""Architectures that load the layers that predict further tokens; others do not look for their tensors."""
UNPROBED = ("glm4",)
"""Of these, those that need the tensors of these layers, even if the file does not have the first one's."""
PARTS = {"t5encoder": "enc."}
"""What precedes the names of layers in architectures that may have a decoder beside them."""
PARTS_OF_LAYER = ((PLAIN_GATED, False), (EXPERTS, True), (WIDE_SHARED, True))
"""The rows of an MLP, of experts and of a shared one, and whether a layer with a router computes with them."""
SCALED = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "ffn_gate", "ffn_down", "ffn_up",
          "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp", "nextn.eh_proj", "nextn.shared_head_head")  # fmt: skip
SCALED_EXPERTS = ("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")
"""Matrices that may have a scale, and one for their inputs; experts have one each."""


def needs(numbers: Hyperparameters, tokens: int, present: Collection[str]) -> Iterator[Need]:
    """Yield every tensor that llama.cpp looks for in a file with these names."""
    sizes = sizes_of(numbers, tokens)
    for row in OTHERS[numbers.architecture]:
        if row.when is None or row.when(numbers, 0):
            yield Need(row.name, _evaluated(row.sizes, sizes), row.required)
    count = numbers.layers if numbers.architecture in ALL_LAYERS else numbers.trunk
    first_predicted = f"blk.{numbers.trunk}.{NEXT[0].name}"
    for layer in range(count):
        head = numbers.head_size("key", layer)
        layer_sizes = {
            **sizes,
            "layer_head": head,
            "layer_q": head * numbers.of_layer("attention.head_count", layer),
            "layer_k": head * numbers.of_layer("attention.head_count_kv", layer),
            "layer_v": numbers.head_size("value", layer) * numbers.of_layer("attention.head_count_kv", layer),
            "layer_ff": numbers.of_layer("feed_forward_length", layer),
            "layer_heads": numbers.of_layer("attention.head_count", layer),
        }  # fmt: skip
        prefix = f"{PARTS.get(numbers.architecture, '')}blk.{layer}."
        rows = LAYERS[numbers.architecture]
        if numbers.architecture in ROUTED and f"{prefix}{WIDE_EXPERTS[0].name}" in present:
            rows = (*(row for row in rows if row not in PLAIN_GATED), *WIDE_EXPERTS)
        if numbers.architecture in LAX:
            rows = tuple(_relaxed(rows, prefix, present))
        if layer >= numbers.trunk and numbers.architecture not in UNPROBED and first_predicted not in present:
            rows = tuple(evolve(row, required=False) for row in rows)
        if numbers.architecture in HALVES and f"{prefix}ffn_gate.weight" in present:
            rows = tuple(Row(row.name, row.sizes.replace("2*ff", "ff"), row.required) for row in rows)
        for row in rows:
            if row.when is None or row.when(numbers, layer):
                yield from _of_row(row, prefix, layer_sizes, present)
        yield from _scales(prefix, sizes["experts"], present)


def _relaxed(rows: Iterable[Row], prefix: str, present: Collection[str]) -> Iterator[Row]:
    """Yield the rows, required only where the graph of this layer computes with them; it does without any gate."""
    routed = f"{prefix}{EXPERTS[0].name}" in present
    of_part = {row.name: (part, is_needed == routed) for part, is_needed in PARTS_OF_LAYER for row in part}
    for row in rows:
        if row.name in of_part:
            part, is_run = of_part[row.name]
            is_there = any(f"{prefix}{each.name}" in present for each in part)
            row = evolve(row, required=row.required and is_run and is_there and not row.name.startswith("ffn_gate"))
        yield row


def _of_row(row: Row, prefix: str, sizes: Sizes, present: Collection[str]) -> Iterator[Need]:
    name, shape = prefix + row.name, _evaluated(row.sizes, sizes)
    if row.name == "attn_qkv":
        yield from _attention(row, prefix, shape, present)
    elif row.name == "ffn_gate_up_exps":
        columns, rows, experts = shape
        yield Need(f"{name}.weight", (columns, 2 * rows, experts), required=False)
        if f"{name}.weight" not in present:
            yield from (Need(f"{prefix}{part}.weight", shape) for part in ("ffn_gate_exps", "ffn_up_exps"))
    else:
        yield Need(name, shape, row.required)


def _attention(row: Row, prefix: str, shape: tuple[int, ...], present: Collection[str]) -> Iterator[Need]:
    """Yield queries, keys and values as one tensor if the file has it, or else each; with biases in either case."""
    columns, *parts = shape
    fused, letters = f"{prefix}attn_qkv", "qkv"
    yield Need(f"{fused}.weight", (columns, sum(parts)), required=False)
    if f"{fused}.weight" in present and row.letters != letters:
        return
    if f"{fused}.weight" in present:
        yield Need(f"{fused}.bias", (sum(parts),), required=False)
        if f"{fused}.bias" in present:
            return
    else:
        for letter, rows in zip(letters, parts):
            yield Need(f"{prefix}attn_{letter}.weight", (columns, rows), row.required and letter in row.letters)
    for letter, rows in zip(letters, parts) if row.letters == letters else ():
        yield Need(f"{prefix}attn_{letter}.bias", (rows,), required=False)


def _scales(prefix: str, experts: int, present: Collection[str]) -> Iterator[Need]:
    for names, count in ((SCALED, 1), (SCALED_EXPERTS, experts)):
        for name in names:
            if f"{prefix}{name}.weight" in present:
                yield Need(f"{prefix}{name}.scale", (count,), required=False)
                yield Need(f"{prefix}{name}.input_scale", (count,), required=False)


def sizes_of(numbers: Hyperparameters, tokens: int) -> dict[str, int]:
    """Return the sizes that the words in the rows stand for."""
    number, embedding = numbers.number, numbers.number("embedding_length")
    heads, groups = number("attention.head_count"), number("attention.head_count_kv")
    key, value, rotated = (numbers.head_size(name) for name in ("key", "value", "rope"))
    labels = numbers.keys["classifier.output_labels"]
    classes = len(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else 0
    key_mla, value_mla = number("attention.key_length_mla") or key, number("attention.value_length_mla") or value
    return {
        "embd": embedding,
        "vocab": tokens,
        "types": numbers.token_types,
        "ctx": number("context_length"),
        "heads": heads,
        "kv_heads": groups,
        "q": key * heads,
        "k": key * groups,
        "v": value * groups,
        "kv": value * groups,
        "head": key,
        "rot": rotated,
        "half_rot": rotated // 2,
        "half_wide_rot": number("attention.key_length") // 2,
        "layers": numbers.trunk,
        "own_embd": number("embedding_length_per_layer_input"),
        "ff": number("feed_forward_length"),
        "experts": number("expert_count"),
        "expert_ff": expert_size(numbers),
        "shared_ff": number("expert_shared_feed_forward_length"),
        "shared": number("expert_shared_count"),
        "shared_or_one": max(number("expert_shared_count"), 1),
        "state": number("ssm.state_size"),
        "state_keys": number("ssm.group_count"),
        "state_values": number("ssm.time_step_rank"),
        "taps": number("ssm.conv_kernel"),
        "inner": number("ssm.inner_size"),
        "group_inner": number("ssm.inner_size") // (number("ssm.group_count") or 1),
        "latent": number("moe_latent_size") or embedding,
        "q_rank": query_rank(numbers),
        "kv_rank": number("attention.kv_lora_rank"),
        "mla_key": key_mla,
        "mla_value": value_mla,
        "nope": key_mla - rotated,
        "nope_value": key_mla - rotated + value_mla,
        "own_rank": number("attention.q_lora_rank"),
        "used": number("expert_used_count"),
        "streams": number("hyper_connection.count"),
        "mixed": (2 + number("hyper_connection.count")) * number("hyper_connection.count"),
        "out_rank": number("attention.output_lora_rank"),
        "out_groups": number("attention.output_group_count"),
        "out_width": key * heads // max(number("attention.output_group_count"), 1),
        "index_heads": number("attention.indexer.head_count"),
        "index_head": number("attention.indexer.key_length"),
        "delta": number("kda.head_dim"),
        "conv": number("shortconv.l_cache"),
        "quotient": embedding // heads if heads else 0,
        "classes": classes or 1,
        "embd_out": number("embedding_length_out") or embedding,
        "buckets": number("attention.relative_buckets_count"),
        "dense_2": number("dense_2_feat_out"),
        "dense_3": number("dense_3_feat_in"),
    }


def expert_size(numbers: Hyperparameters) -> int:
    """Return the rows of an expert; without a key for them, Qwen 3 divides those of the dense layers."""
    rows = numbers.number("expert_feed_forward_length")
    used = numbers.number("expert_used_count")
    return rows or (numbers.number("feed_forward_length") // used if used else 0)


def _evaluated(words: str, sizes: Sizes) -> tuple[int, ...]:
    """Return the sizes for expressions such as "embd kv_rank+rot": sums of products.

    >>> _evaluated("a 2*a+b", {"a": 3, "b": 1})
    (3, 7)
    """
    return tuple(sum(_product(term, sizes) for term in word.split("+")) for word in words.split())


def _product(term: str, sizes: Sizes) -> int:
    return prod(int(factor) if factor.isdigit() else sizes[factor] for factor in term.split("*"))
