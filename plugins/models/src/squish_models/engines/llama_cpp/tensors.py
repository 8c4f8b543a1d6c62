"""The tensors that llama.cpp's loader creates for an architecture, with the sizes that follow from hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod

from attrs import frozen

from .keys import Hyperparameters

Sizes = Mapping[str, int]
Test = Callable[[Hyperparameters, int], bool]
"""Whether a layer has a tensor."""


@frozen
class Need:
    """A tensor that llama.cpp looks for: its sizes, those of a row's values first, and whether it is required."""

    name: str
    sizes: tuple[int, ...]
    required: bool = True


@frozen
class Row:
    """A tensor of a layer or of the model; `sizes` are expressions such as "embd 2*ff".

    The sizes of "attn_qkv" are those of its parts, which may be stored as one tensor or apart; `letters` are the parts
    that a layer must have.
    """

    name: str
    sizes: str
    required: bool = True
    when: Test | None = None
    letters: str = "qkv"


def optional(name: str, sizes: str, when: Test | None = None) -> Row:
    """Return a row for a tensor that may be missing."""
    return Row(name, sizes, required=False, when=when)


def _is_dense(numbers: Hyperparameters, layer: int) -> bool:
    return not numbers.number("expert_count")


def _has_experts(numbers: Hyperparameters, layer: int) -> bool:
    return bool(numbers.number("expert_count"))


def _is_leading(numbers: Hyperparameters, layer: int) -> bool:
    return layer < numbers.number("leading_dense_block_count")


def _is_mixed(numbers: Hyperparameters, layer: int) -> bool:
    return not _is_leading(numbers, layer)


def _has_query_rank(numbers: Hyperparameters, layer: int) -> bool:
    return bool(query_rank(numbers))


def _has_no_query_rank(numbers: Hyperparameters, layer: int) -> bool:
    return not query_rank(numbers)


def _is_split(numbers: Hyperparameters, layer: int) -> bool:
    return bool(numbers.number("attention.key_length_mla") and numbers.number("attention.value_length_mla"))


def _is_whole(numbers: Hyperparameters, layer: int) -> bool:
    return not _is_split(numbers, layer)


def _predicts(numbers: Hyperparameters, layer: int) -> bool:
    return layer >= numbers.trunk


def _attends(numbers: Hyperparameters, layer: int) -> bool:
    return numbers.of_layer("attention.head_count_kv", layer) > 0


def _convolves(numbers: Hyperparameters, layer: int) -> bool:
    return not _attends(numbers, layer)


def _recurs(numbers: Hyperparameters, layer: int) -> bool:
    """Whether a layer has a gated delta rule instead of attention."""
    stated = numbers.keys["attention.recurrent_layers"]
    if isinstance(stated, Sequence):
        return layer < len(stated) and bool(stated[layer])
    interval = numbers.number("full_attention_interval")
    return layer < numbers.trunk and bool(interval and (layer + 1) % interval)


def _feeds(numbers: Hyperparameters, layer: int) -> bool:
    """Whether a layer of Nemotron-H has an MLP or experts."""
    return numbers.of_layer("feed_forward_length", layer) > 0 and layer < numbers.trunk


def _feeds_alone(numbers: Hyperparameters, layer: int) -> bool:
    return _feeds(numbers, layer) and _is_dense(numbers, layer)


def _mixes(numbers: Hyperparameters, layer: int) -> bool:
    return (_feeds(numbers, layer) or _predicts(numbers, layer)) and _has_experts(numbers, layer)


def _attends_alone(numbers: Hyperparameters, layer: int) -> bool:
    return _predicts(numbers, layer) or not (_feeds(numbers, layer) or _convolves(numbers, layer))


def _scans(numbers: Hyperparameters, layer: int) -> bool:
    return layer < numbers.trunk and _convolves(numbers, layer) and not _feeds(numbers, layer)


def _attends_wholly(numbers: Hyperparameters, layer: int) -> bool:
    return not _recurs(numbers, layer)


def _has_long_rope(numbers: Hyperparameters, layer: int) -> bool:
    return numbers.keys["rope.scaling.type"] == "longrope"


def _has_other_rope(numbers: Hyperparameters, layer: int) -> bool:
    return not _has_long_rope(numbers, layer)


def _has_shared(numbers: Hyperparameters, layer: int) -> bool:
    return _is_mixed(numbers, layer) and bool(numbers.number("expert_shared_count"))


def _owns_keys(numbers: Hyperparameters, layer: int) -> bool:
    """Whether a layer computes keys and values, which others take from it."""
    return layer < numbers.layers - numbers.number("attention.shared_kv_layers")


def _takes_keys(numbers: Hyperparameters, layer: int) -> bool:
    return not _owns_keys(numbers, layer)


def _has_own_embeddings(numbers: Hyperparameters, layer: int) -> bool:
    return bool(numbers.number("embedding_length_per_layer_input"))


def _has_wide_layers(numbers: Hyperparameters, layer: int) -> bool:
    """Whether any layer attends without a window."""
    return not all(numbers.has_window(each) for each in range(numbers.trunk))


def _is_deep(numbers: Hyperparameters, layer: int) -> bool:
    """Return whether this is the model with 64 layers, which has more tensors."""
    return numbers.trunk >= 64


def _has_shared_expert(numbers: Hyperparameters, layer: int) -> bool:
    return _has_experts(numbers, layer) and bool(numbers.number("expert_shared_feed_forward_length"))


def _is_step(numbers: Hyperparameters, layer: int) -> bool:
    step = numbers.number("interleave_moe_layer_step")
    return bool(step) and (layer + 1) % step == 0


def _is_no_step(numbers: Hyperparameters, layer: int) -> bool:
    return not _is_step(numbers, layer)


def _has_wide_shared(numbers: Hyperparameters, layer: int) -> bool:
    return _is_mixed(numbers, layer) and bool(numbers.number("expert_shared_feed_forward_length"))


EMBEDDINGS = (Row("token_embd.weight", "embd vocab"), Row("output_norm.weight", "embd"))
HEAD = optional("output.weight", "embd vocab")
TOP = (*EMBEDDINGS, HEAD)
ROPE_FACTORS = (
    optional("rope_factors_long.weight", "half_rot", _has_long_rope),
    optional("rope_factors_short.weight", "half_rot", _has_long_rope),
    optional("rope_freqs.weight", "half_rot", _has_other_rope),
)
GATED = (
    Row("ffn_gate.weight", "embd ff", when=_is_dense), Row("ffn_down.weight", "ff embd", when=_is_dense),
    Row("ffn_up.weight", "embd ff", when=_is_dense),
)  # fmt: skip
PLAIN_GATED = tuple(Row(row.name, row.sizes) for row in GATED)
LLAMA = (
    Row("attn_norm.weight", "embd"),
    Row("attn_qkv", "embd q k v"),
    Row("attn_output.weight", "q embd"),
    optional("attn_output.bias", "embd"),
    Row("ffn_norm.weight", "embd"),
    *GATED,
    optional("ffn_gate.bias", "ff", _is_dense),
    optional("ffn_down.bias", "embd", _is_dense),
    optional("ffn_up.bias", "ff", _is_dense),
    Row("ffn_gate_inp.weight", "embd experts", when=_has_experts),
    optional("ffn_gate_exps.weight", "embd ff experts", _has_experts),
    Row("ffn_down_exps.weight", "ff embd experts", when=_has_experts),
    Row("ffn_up_exps.weight", "embd ff experts", when=_has_experts),
    Row("ffn_gate_shexp.weight", "embd shared_ff", when=_has_shared_expert),
    Row("ffn_up_shexp.weight", "embd shared_ff", when=_has_shared_expert),
    Row("ffn_down_shexp.weight", "shared_ff embd", when=_has_shared_expert),
)
QWEN2 = (
    Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd embd kv kv"), Row("attn_output.weight", "embd embd"),
    Row("ffn_norm.weight", "embd"), *PLAIN_GATED,
)  # fmt: skip
QWEN3 = (
    Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd q kv kv"), Row("attn_output.weight", "q embd"),
    Row("attn_k_norm.weight", "head"), Row("attn_q_norm.weight", "head"), Row("ffn_norm.weight", "embd"),
)  # fmt: skip
EXPERTS = (
    Row("ffn_gate_inp.weight", "embd experts"), Row("ffn_gate_exps.weight", "embd expert_ff experts"),
    Row("ffn_down_exps.weight", "expert_ff embd experts"), Row("ffn_up_exps.weight", "embd expert_ff experts"),
)  # fmt: skip
GEMMA2 = (
    Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd q k v"), Row("attn_output.weight", "q embd"),
    Row("post_attention_norm.weight", "embd"), Row("ffn_norm.weight", "embd"), *PLAIN_GATED,
    Row("post_ffw_norm.weight", "embd"),
)  # fmt: skip
NEXT = (
    Row("nextn.eh_proj.weight", "2*embd embd", when=_predicts), Row("nextn.enorm.weight", "embd", when=_predicts),
    Row("nextn.hnorm.weight", "embd", when=_predicts), optional("nextn.embed_tokens.weight", "embd vocab", _predicts),
    optional("nextn.shared_head_head.weight", "embd vocab", _predicts),
    optional("nextn.shared_head_norm.weight", "embd", _predicts),
)  # fmt: skip
DEEPSEEK2 = (
    Row("attn_norm.weight", "embd"),
    Row("attn_q_a_norm.weight", "q_rank", when=_has_query_rank),
    Row("attn_kv_a_norm.weight", "kv_rank"),
    Row("attn_q_a.weight", "embd q_rank", when=_has_query_rank),
    Row("attn_q_b.weight", "q_rank heads*mla_key", when=_has_query_rank),
    Row("attn_q.weight", "embd heads*mla_key", when=_has_no_query_rank),
    Row("attn_kv_a_mqa.weight", "embd kv_rank+rot"),
    Row("attn_k_b.weight", "nope kv_rank heads", when=_is_split),
    Row("attn_v_b.weight", "kv_rank mla_value heads", when=_is_split),
    Row("attn_kv_b.weight", "kv_rank heads*nope_value", when=_is_whole),
    Row("attn_output.weight", "heads*mla_value embd"),
    Row("ffn_norm.weight", "embd"),
    *(Row(row.name, row.sizes, when=_is_leading) for row in GATED),
    Row("ffn_gate_inp.weight", "embd experts", when=_is_mixed),
    optional("exp_probs_b.bias", "experts", _is_mixed),
    Row("ffn_down_exps.weight", "expert_ff embd experts", when=_is_mixed),
    Row("ffn_gate_up_exps", "embd expert_ff experts", when=_is_mixed),
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared", when=_is_mixed),
    Row("ffn_down_shexp.weight", "expert_ff*shared embd", when=_is_mixed),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared", when=_is_mixed),
    *NEXT,
)
INDEXER = (
    Row("indexer.k_norm.weight", "index_head"), Row("indexer.k_norm.bias", "index_head"),
    Row("indexer.proj.weight", "embd index_heads"), Row("indexer.attn_k.weight", "embd index_head"),
    Row("indexer.attn_q_b.weight", "q_rank index_heads*index_head"),
)  # fmt: skip


def _ratio(numbers: Hyperparameters, layer: int) -> int:
    """Return how many tokens become one in a layer of DeepSeek 4."""
    return numbers.of_layer("attention.compress_ratios", layer)


def _mixing(part: str) -> tuple[Row, ...]:
    return (
        Row(f"hc_{part}_fn.weight", "streams*embd mixed"), Row(f"hc_{part}_base.weight", "mixed"),
        Row(f"hc_{part}_scale.weight", "3"),
    )  # fmt: skip


def _compressor(name: str, size: str, ratio: int) -> tuple[Row, ...]:
    """The tensors of what makes one token of several; it has two halves if these tokens overlap."""
    wide = f"2*{size}" if ratio == 4 else size
    rows = (("kv", f"embd {wide}"), ("gate", f"embd {wide}"), ("ape", f"{wide} {ratio}"), ("norm", size))
    return tuple(
        Row(f"{name}_{part}.weight", sizes, when=lambda numbers, layer: _ratio(numbers, layer) == ratio)
        for part, sizes in rows
    )


def _is_hashed(numbers: Hyperparameters, layer: int) -> bool:
    return layer < numbers.number("hash_layer_count")


def _is_routed(numbers: Hyperparameters, layer: int) -> bool:
    return not _is_hashed(numbers, layer)


def _has_index(numbers: Hyperparameters, layer: int) -> bool:
    return _ratio(numbers, layer) == 4


DEEPSEEK4 = (
    Row("attn_norm.weight", "embd"), Row("attn_sinks.weight", "heads"), Row("attn_q_a.weight", "embd own_rank"),
    Row("attn_q_a_norm.weight", "own_rank"), Row("attn_q_b.weight", "own_rank q"), Row("attn_kv.weight", "embd head"),
    Row("attn_kv_a_norm.weight", "head"), Row("attn_output_a.weight", "out_width out_rank*out_groups"),
    Row("attn_output_b.weight", "out_rank*out_groups embd"), *_mixing("attn"), *_mixing("ffn"),
    *_compressor("attn_compressor", "head", 4), *_compressor("attn_compressor", "head", 128),
    *_compressor("indexer_compressor", "index_head", 4),
    Row("indexer.proj.weight", "embd index_heads", when=_has_index),
    Row("indexer.attn_q_b.weight", "own_rank index_heads*index_head", when=_has_index),
    Row("ffn_gate_tid2eid.weight", "used vocab", when=_is_hashed), Row("exp_probs_b.bias", "experts", when=_is_routed),
    optional("exp_probs_b_vl.bias", "experts"), Row("ffn_norm.weight", "embd"), *EXPERTS,
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared"), Row("ffn_down_shexp.weight", "expert_ff*shared embd"),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared"), *NEXT,
)  # fmt: skip
BIASED_NORMS = (
    Row("attn_norm.weight", "embd"), Row("attn_norm.bias", "embd"), Row("attn_output.weight", "embd embd"),
    Row("attn_output.bias", "embd"), Row("ffn_norm.weight", "embd"), Row("ffn_norm.bias", "embd"),
    Row("ffn_down.weight", "ff embd"), Row("ffn_down.bias", "embd"), Row("ffn_up.weight", "embd ff"),
    Row("ffn_up.bias", "ff"),
)  # fmt: skip
BIASED = (
    Row("attn_norm.weight", "embd"), Row("attn_norm.bias", "embd"), Row("ffn_norm.weight", "embd"),
    Row("ffn_norm.bias", "embd"),
)  # fmt: skip
LFM2 = (
    Row("ffn_norm.weight", "embd"),
    *PLAIN_GATED,
    Row("attn_norm.weight", "embd"),
    Row("attn_q_norm.weight", "head", when=_attends),
    Row("attn_k_norm.weight", "head", when=_attends),
    Row("attn_qkv", "embd embd layer_k layer_v", when=_attends),
    Row("attn_output.weight", "embd embd", when=_attends),
    Row("shortconv.conv.weight", "conv embd", when=_convolves),
    Row("shortconv.in_proj.weight", "embd 3*embd", when=_convolves),
    Row("shortconv.out_proj.weight", "embd embd", when=_convolves),
)
PRE_NORM = (
    Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd q k v"), Row("attn_output.weight", "q embd"),
    Row("ffn_norm.weight", "embd"),
)  # fmt: skip
HEAD_NORMS = (Row("attn_q_norm.weight", "head"), Row("attn_k_norm.weight", "head"))
WIDE_EXPERTS = tuple(Row(row.name, row.sizes.replace("expert_ff", "ff")) for row in EXPERTS)
"""Experts as large as a dense layer."""
PARALLEL = (
    Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd embd kv kv"), Row("attn_output.weight", "embd embd"),
    *PLAIN_GATED,
)  # fmt: skip
GLM4_MOE = (
    *(row for row in PRE_NORM if row.name != "ffn_norm.weight"), Row("post_attention_norm.weight", "embd"),
    optional("attn_q_norm.weight", "head"), optional("attn_k_norm.weight", "head"),
    *(Row(row.name, row.sizes, when=_is_leading) for row in GATED),
    *(Row(row.name, row.sizes, when=_is_mixed) for row in EXPERTS), Row("exp_probs_b.bias", "experts", when=_is_mixed),
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared", when=_has_shared),
    Row("ffn_down_shexp.weight", "expert_ff*shared embd", when=_has_shared),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared", when=_has_shared), *NEXT,
)  # fmt: skip
LEADING = tuple(Row(row.name, row.sizes, when=_is_leading) for row in GATED)
MIXED = (
    *(Row(row.name, row.sizes, when=_is_mixed) for row in EXPERTS), optional("exp_probs_b.bias", "experts", _is_mixed),
)  # fmt: skip
SHARED = (
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared", when=_is_mixed),
    Row("ffn_down_shexp.weight", "expert_ff*shared embd", when=_is_mixed),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared", when=_is_mixed),
)  # fmt: skip
"""Dense layers, those with experts, and the experts that all tokens pass."""
GEMMA4 = (
    Row("attn_norm.weight", "embd"),
    Row("attn_qkv", "embd layer_q layer_k layer_v", when=_owns_keys, letters="qk"),
    Row("attn_qkv", "embd layer_q layer_k layer_v", when=_takes_keys, letters="q"),
    Row("attn_output.weight", "layer_q embd"),
    Row("attn_q_norm.weight", "layer_head"),
    Row("attn_k_norm.weight", "layer_head", when=_owns_keys),
    optional("attn_k_norm.weight", "layer_head", _takes_keys),
    Row("post_attention_norm.weight", "embd"),
    optional("layer_output_scale.weight", "1"),
    Row("ffn_norm.weight", "embd"),
    Row("ffn_gate.weight", "embd layer_ff"),
    Row("ffn_up.weight", "embd layer_ff"),
    Row("ffn_down.weight", "layer_ff embd"),
    Row("post_ffw_norm.weight", "embd"),
    Row("ffn_gate_inp.weight", "embd experts", when=_has_experts),
    Row("ffn_gate_inp.scale", "embd", when=_has_experts),
    Row("pre_ffw_norm_2.weight", "embd", when=_has_experts),
    Row("post_ffw_norm_1.weight", "embd", when=_has_experts),
    Row("post_ffw_norm_2.weight", "embd", when=_has_experts),
    Row("ffn_gate_up_exps", "embd expert_ff experts", when=_has_experts),
    Row("ffn_down_exps.weight", "expert_ff embd experts", when=_has_experts),
    Row("inp_gate.weight", "embd own_embd", when=_has_own_embeddings),
    Row("proj.weight", "own_embd embd", when=_has_own_embeddings),
    Row("post_norm.weight", "embd", when=_has_own_embeddings),
)
GEMMA4_TOP = (
    Row("rope_freqs.weight", "half_wide_rot", when=_has_wide_layers),
    Row("per_layer_token_embd.weight", "own_embd*layers vocab", when=_has_own_embeddings),
    Row("per_layer_model_proj.weight", "embd own_embd*layers", when=_has_own_embeddings),
    Row("per_layer_proj_norm.weight", "own_embd", when=_has_own_embeddings),
)
SHARED_EXPERT = (
    Row("ffn_gate_inp_shexp.weight", "embd"), Row("ffn_gate_shexp.weight", "embd shared_ff"),
    Row("ffn_down_shexp.weight", "shared_ff embd"), Row("ffn_up_shexp.weight", "embd shared_ff"),
)  # fmt: skip


def _delta(*gates: Row) -> tuple[Row, ...]:
    """Layers of a gated delta rule, with its gates, and layers of gated attention."""
    attention = (Row("attn_qkv", "embd 2*q k v"), Row("attn_output.weight", "q embd"), *HEAD_NORMS)
    states = (
        Row("attn_qkv.weight", "embd 2*state*state_keys+state*state_values"),
        Row("attn_gate.weight", "embd state*state_values"), Row("ssm_conv1d.weight", CONVOLUTION),
        Row("ssm_dt.bias", "state_values"), Row("ssm_a", "state_values"), *gates, Row("ssm_norm.weight", "state"),
        Row("ssm_out.weight", "state*state_values embd"),
    )  # fmt: skip
    return (
        Row("attn_norm.weight", "embd"), Row("post_attention_norm.weight", "embd"),
        *(Row(row.name, row.sizes, when=_attends_wholly) for row in attention),
        *(Row(row.name, row.sizes, when=_recurs) for row in states),
    )  # fmt: skip


def _where(when: Test, rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows, in these layers."""
    return tuple(Row(row.name, row.sizes, row.required, when) for row in rows)


MAMBA2 = (
    Row("ssm_in.weight", "embd 2*inner+2*state_keys*state+state_values"),
    Row("ssm_conv1d.weight", "taps inner+2*state_keys*state"),
    optional("ssm_conv1d.bias", "inner+2*state_keys*state"),
    Row("ssm_dt.bias", "state_values"), Row("ssm_a", "1 state_values"), Row("ssm_d", "1 state_values"),
    Row("ssm_norm.weight", "group_inner state_keys"), Row("ssm_out.weight", "inner embd"),
)  # fmt: skip
MAMBA = (
    Row("ssm_in.weight", "embd 2*inner"), Row("ssm_conv1d.weight", "taps inner"), Row("ssm_conv1d.bias", "inner"),
    Row("ssm_x.weight", "inner state_values+2*state"), Row("ssm_dt.weight", "state_values inner"),
    Row("ssm_dt.bias", "inner"), Row("ssm_a", "state inner"), Row("ssm_d", "inner"), Row("ssm_out.weight", "inner embd"),
)  # fmt: skip
LAYER_ATTENTION = (
    Row("attn_qkv", "embd q layer_k layer_v"), Row("attn_output.weight", "q embd"), optional("attn_output.bias", "embd"),
)  # fmt: skip
GRANITE_HYBRID = (
    Row("attn_norm.weight", "embd"), *_where(_convolves, MAMBA2), *_where(_attends, LAYER_ATTENTION), *LLAMA[4:],
    optional("rope_freqs.weight", "half_rot"),
)  # fmt: skip
NEMOTRON_H = (
    Row("attn_norm.weight", "embd"),
    *_where(_scans, MAMBA2),
    *_where(_attends_alone, LAYER_ATTENTION),
    Row("ffn_down.weight", "layer_ff embd", when=_feeds_alone), Row("ffn_up.weight", "embd layer_ff", when=_feeds_alone),
    optional("ffn_down.bias", "embd", _feeds_alone), optional("ffn_up.bias", "layer_ff", _feeds_alone),
    Row("ffn_gate_inp.weight", "embd experts", when=_mixes), Row("exp_probs_b.bias", "experts", when=_mixes),
    optional("ffn_latent_down.weight", "embd latent", _mixes), optional("ffn_latent_up.weight", "latent embd", _mixes),
    Row("ffn_down_exps.weight", "expert_ff latent experts", when=_mixes),
    Row("ffn_up_exps.weight", "latent expert_ff experts", when=_mixes),
    Row("ffn_down_shexp.weight", "shared_ff embd", when=_mixes),
    Row("ffn_up_shexp.weight", "embd shared_ff", when=_mixes),
    Row("post_attention_norm.weight", "embd", when=_predicts), *NEXT,
)  # fmt: skip
FALCON_H1 = (
    Row("attn_norm.weight", "embd"), *(row for row in MAMBA2 if row.name != "ssm_norm.weight"),
    optional("ssm_norm.weight", "group_inner state_keys"), *LAYER_ATTENTION, Row("ffn_norm", "embd"),
    optional("rope_freqs.weight", "half_rot"), *PLAIN_GATED, optional("ffn_gate.bias", "ff"),
    optional("ffn_down.bias", "embd"), optional("ffn_up.bias", "ff"),
)  # fmt: skip
JAMBA = (
    Row("attn_norm.weight", "embd"), *_where(_convolves, MAMBA), Row("ssm_dt_norm.weight", "state_values", when=_convolves),
    Row("ssm_b_norm.weight", "state", when=_convolves), Row("ssm_c_norm.weight", "state", when=_convolves),
    Row("attn_qkv", "embd embd layer_k layer_v", when=_attends), Row("attn_output.weight", "embd embd", when=_attends),
    Row("ffn_norm.weight", "embd"), *PLAIN_GATED,
)  # fmt: skip
CONVOLUTION = "taps 2*state*state_keys+state*state_values"
DELTA = _delta(Row("ssm_beta.weight", "embd state_values"), Row("ssm_alpha.weight", "embd state_values"))
LAYERS: Mapping[str, tuple[Row, ...]] = {
    "llama": LLAMA,
    "granite": LLAMA,
    "qwen2": QWEN2,
    "qwen2vl": QWEN2,
    "qwen3": (*QWEN3, *PLAIN_GATED),
    "qwen3moe": (*QWEN3, *EXPERTS),
    "gemma2": GEMMA2,
    "gemma3": (*GEMMA2, Row("attn_k_norm.weight", "head"), Row("attn_q_norm.weight", "head")),
    "phi3": (
        Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd embd kv kv"),
        Row("attn_output.weight", "embd embd"), Row("ffn_norm.weight", "embd"), Row("ffn_down.weight", "ff embd"),
        Row("ffn_up.weight", "embd 2*ff"),
    ),
    "olmo2": (
        Row("attn_qkv", "embd embd kv kv"), Row("attn_output.weight", "embd embd"), Row("attn_q_norm.weight", "embd"),
        Row("attn_k_norm.weight", "kv_heads*quotient"), Row("post_attention_norm.weight", "embd"), *PLAIN_GATED,
        Row("post_ffw_norm.weight", "embd"),
    ),
    "glm4": (
        Row("attn_norm.weight", "embd"), Row("attn_qkv", "embd q k v"), Row("attn_output.weight", "q embd"),
        Row("post_attention_norm.weight", "embd"), Row("ffn_norm.weight", "embd"), Row("ffn_down.weight", "ff embd"),
        Row("ffn_up.weight", "embd 2*ff"), Row("post_ffw_norm.weight", "embd"), *NEXT,
    ),
    "starcoder2": (*BIASED_NORMS, Row("attn_qkv", "embd embd kv kv")),
    "deepseek2": DEEPSEEK2,
    "mistral4": DEEPSEEK2,
    "deepseek4": DEEPSEEK4,
    "deepseek32": (*DEEPSEEK2, *INDEXER),
    "glm-dsa": (*DEEPSEEK2, *(optional(row.name, row.sizes) for row in INDEXER)),
    "gpt2": (
        *BIASED_NORMS, Row("attn_qkv.weight", "embd embd+2*kv"), Row("attn_qkv.bias", "embd+2*kv"),
    ),
    "gpt-oss": (
        Row("attn_norm.weight", "embd"), Row("post_attention_norm.weight", "embd"),
        Row("attn_qkv", "embd heads*rot kv_heads*rot kv_heads*rot"), Row("attn_output.weight", "heads*rot embd"),
        Row("attn_sinks.weight", "heads"), *EXPERTS, Row("attn_output.bias", "embd"),
        Row("ffn_gate_inp.bias", "experts"), Row("ffn_gate_exps.bias", "expert_ff experts"),
        Row("ffn_down_exps.bias", "embd experts"), Row("ffn_up_exps.bias", "expert_ff experts"),
    ),
    "lfm2": LFM2,
    "qwen3vl": (*QWEN3, *PLAIN_GATED),
    "qwen2moe": (
        *(row for row in QWEN2 if row not in PLAIN_GATED), *EXPERTS, *SHARED_EXPERT,
    ),
    "qwen35": (*DELTA, *PLAIN_GATED),
    "qwen35moe": (*DELTA, *EXPERTS, *SHARED_EXPERT),
    "qwen3next": (*_delta(Row("ssm_ba.weight", "embd 2*state_values")), *EXPERTS, *SHARED_EXPERT),
    "glm4moe": GLM4_MOE,
    "minimax-m2": (
        *PRE_NORM, Row("attn_q_norm.weight", "q"), Row("attn_k_norm.weight", "k"), *WIDE_EXPERTS,
        Row("exp_probs_b.bias", "experts"),
    ),
    "mistral3": LLAMA,
    "lfm2moe": (
        *(row for row in LFM2 if row not in PLAIN_GATED), Row("exp_probs_b.bias", "experts", when=_is_mixed),
        *(Row(row.name, row.sizes, when=_is_leading) for row in GATED),
        *(Row(row.name, row.sizes, when=_is_mixed) for row in EXPERTS),
    ),
    "smollm3": (*PRE_NORM, *PLAIN_GATED),
    "seed_oss": (
        *(row for row in PRE_NORM if row.name != "ffn_norm.weight"), Row("post_attention_norm.weight", "embd"),
        *PLAIN_GATED,
    ),
    "ernie4_5": (*PRE_NORM, optional("attn_output.bias", "embd"), *PLAIN_GATED),
    "hunyuan-dense": (*PRE_NORM, *HEAD_NORMS, *PLAIN_GATED),
    "exaone4": (
        Row("attn_qkv", "embd q k v"), Row("attn_output.weight", "embd embd"),
        Row("post_attention_norm.weight", "embd"), *HEAD_NORMS, *PLAIN_GATED, Row("post_ffw_norm.weight", "embd"),
    ),
    "cohere2": PARALLEL,
    "command-r": (
        *PARALLEL, Row("attn_q_norm.weight", "head heads", when=_is_deep),
        Row("attn_k_norm.weight", "head kv_heads", when=_is_deep),
    ),
    "granitemoe": LLAMA,
    "olmoe": (
        *(row for row in QWEN2 if row not in PLAIN_GATED), Row("attn_q_norm.weight", "embd"),
        Row("attn_k_norm.weight", "embd"), *WIDE_EXPERTS,
    ),
    "gemma": (*PRE_NORM, *PLAIN_GATED),
    "granitehybrid": GRANITE_HYBRID,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "falcon-h1": FALCON_H1,
    "mamba2": (Row("attn_norm.weight", "embd"), *MAMBA2),
    "mamba": (Row("attn_norm.weight", "embd"), *MAMBA),
    "jamba": JAMBA,
    "llama4": (
        *PRE_NORM, *(Row(row.name, row.sizes, when=_is_step) for row in EXPERTS),
        *(Row(row.name, row.sizes, when=_is_no_step) for row in GATED),
        Row("ffn_gate_shexp.weight", "embd expert_ff", when=_is_step),
        Row("ffn_down_shexp.weight", "expert_ff embd", when=_is_step),
        Row("ffn_up_shexp.weight", "embd expert_ff", when=_is_step),
    ),
    "qwen3vlmoe": (*QWEN3, *EXPERTS),
    "arcee": (*PRE_NORM, *PLAIN_GATED[1:]),
    "dots1": (*PRE_NORM[:1], Row("attn_qkv", "embd q q q"), *PRE_NORM[2:], *HEAD_NORMS, *LEADING, *MIXED, *SHARED),
    "ernie4_5-moe": (
        *PRE_NORM, optional("attn_output.bias", "embd"), *LEADING,
        optional("ffn_gate_exps.weight", "embd expert_ff experts", _is_mixed),
        *(row for row in MIXED if row.name != "ffn_gate_exps.weight"),
        *(Row(row.name, row.sizes.replace("expert_ff*shared", "shared_ff"), when=_has_wide_shared) for row in SHARED),
    ),
    "hunyuan-moe": (
        *PRE_NORM, *HEAD_NORMS, *WIDE_EXPERTS, *(Row(row.name, row.sizes) for row in SHARED_EXPERT[1:]),
    ),
    "exaone-moe": (
        *PRE_NORM, *HEAD_NORMS, *LEADING, *MIXED,
        *(Row(row.name, row.sizes.replace("expert_ff*shared", "shared_ff"), when=_is_mixed) for row in SHARED),
    ),
    "afmoe": (
        *PRE_NORM, *HEAD_NORMS, Row("attn_gate.weight", "embd q"), Row("post_attention_norm.weight", "embd"),
        Row("post_ffw_norm.weight", "embd"), *LEADING, *MIXED[:-1],
        Row("exp_probs_b.bias", "experts", when=_is_mixed), *(Row(row.name, row.sizes, when=_has_shared) for row in SHARED),
    ),
    "mellum": (*PRE_NORM, *HEAD_NORMS, *EXPERTS),
    "falcon": (
        *BIASED[:2], optional("attn_norm_2.weight", "embd"), optional("attn_norm_2.bias", "embd"),
        Row("attn_qkv.weight", "embd embd+2*kv"), Row("attn_output.weight", "embd embd"),
        Row("ffn_down.weight", "ff embd"), Row("ffn_up.weight", "embd ff"),
    ),
    **dict.fromkeys(
        ("gptneox", "bloom", "starcoder"),
        (*BIASED_NORMS, Row("attn_qkv.weight", "embd embd+2*kv"), Row("attn_qkv.bias", "embd+2*kv")),
    ),
    "phi2": (
        *(row for row in BIASED_NORMS if not row.name.startswith("ffn_norm")), Row("attn_qkv", "embd embd kv kv"),
    ),
    "codeshell": (*BIASED_NORMS, Row("attn_qkv", "embd embd kv kv")),
    "stablelm": (
        *BIASED[:2], *QWEN2[1:3], optional("attn_q_norm.weight", "head heads"),
        optional("attn_k_norm.weight", "head kv_heads"), optional("ffn_norm.weight", "embd"),
        optional("ffn_norm.bias", "embd"), *PLAIN_GATED,
    ),
    "mpt": (
        *(Row(row.name, row.sizes, required=row.name.endswith("weight")) for row in BIASED_NORMS),
        Row("attn_qkv.weight", "embd embd+2*kv"), optional("attn_qkv.bias", "embd+2*kv"),
        *(optional(f"attn_{each}_norm.{part}", "embd") for each in "qk" for part in ("weight", "bias")),
        optional("ffn_act.scales", "ff"),
    ),
    "nemotron": (
        *BIASED, *QWEN2[1:3], optional("attn_output.bias", "embd"), *PLAIN_GATED[1:],
        optional("ffn_down.bias", "embd"), optional("ffn_up.bias", "ff"),
    ),
    "orion": (*BIASED, *QWEN2[1:3], *PLAIN_GATED),
    "olmo": (*QWEN2[1:3], *PLAIN_GATED),
    **dict.fromkeys(("internlm2", "xverse"), QWEN2),
    "exaone": (*PRE_NORM, *PLAIN_GATED),
    "minicpm": LLAMA,
    "gemma4": GEMMA4,
}  # fmt: skip
"""Tensors of each layer, without `blk.N.`. Those named without a suffix may be stored as one or apart."""
OWN_HEAD, BIAS = (*EMBEDDINGS, Row("output.weight", "embd vocab")), Row("output_norm.bias", "embd")
OTHERS: Mapping[str, tuple[Row, ...]] = {
    **dict.fromkeys(LAYERS, TOP),
    "llama": (*TOP, *ROPE_FACTORS),
    "granite": (*TOP, *ROPE_FACTORS),
    "qwen2": (*TOP, optional("output.bias", "vocab")),
    "qwen2vl": (*TOP, optional("output.bias", "vocab")),
    "qwen3": (*TOP, optional("cls.output.weight", "embd classes")),
    "gemma2": EMBEDDINGS,
    "gemma3": (*TOP, optional("dense_2.weight", "embd dense_2"), optional("dense_3.weight", "dense_3 embd")),
    "phi3": (
        *TOP, optional("rope_factors_long.weight", "half_rot"), optional("rope_factors_short.weight", "half_rot"),
    ),
    "olmo2": (*EMBEDDINGS, Row("output.weight", "embd vocab")),
    "gpt-oss": (*EMBEDDINGS, Row("output.weight", "embd vocab")),
    "gpt2": (*TOP, Row("output_norm.bias", "embd"), Row("position_embd.weight", "embd ctx")),
    "starcoder2": (*TOP, Row("output_norm.bias", "embd")),
    "lfm2": (
        EMBEDDINGS[0], Row("token_embd_norm.weight", "embd"), HEAD, optional("dense_2.weight", "embd embd_out"),
        optional("dense_2.bias", "embd_out"),
    ),
    "lfm2moe": (EMBEDDINGS[0], Row("token_embd_norm.weight", "embd"), HEAD),
    "qwen3vl": (*TOP, optional("cls.output.weight", "embd classes")),
    **dict.fromkeys(("mistral3", "granitemoe"), (*TOP, *ROPE_FACTORS)),
    "exaone4": (*TOP, ROPE_FACTORS[2]),
    "deepseek4": (
        *EMBEDDINGS, Row("output.weight", "embd vocab"), Row("output_hc_fn.weight", "streams*embd streams"),
        Row("output_hc_base.weight", "streams"), Row("output_hc_scale.weight", "1"),
    ),
    **dict.fromkeys(("qwen2moe", "minimax-m2", "olmoe"), (*EMBEDDINGS, Row("output.weight", "embd vocab"))),
    **dict.fromkeys(("cohere2", "command-r", "gemma"), EMBEDDINGS),
    **dict.fromkeys(("llama4", "arcee", "exaone-moe"), (*TOP, ROPE_FACTORS[2])),
    **dict.fromkeys(("dots1", "mellum"), (*EMBEDDINGS, Row("output.weight", "embd vocab"))),
    "falcon": (*TOP, BIAS),
    **dict.fromkeys(("gptneox", "stablelm", "nemotron", "orion"), (*OWN_HEAD, BIAS)),
    "phi2": (*OWN_HEAD, BIAS, Row("output.bias", "vocab")),
    **dict.fromkeys(("internlm2", "xverse"), OWN_HEAD),
    "bloom": (*TOP, BIAS, Row("token_embd_norm.weight", "embd"), Row("token_embd_norm.bias", "embd")),
    "mpt": (*TOP, optional("output_norm.bias", "embd"), optional("position_embd.weight", "embd ctx")),
    "starcoder": (*TOP, BIAS, Row("position_embd.weight", "embd ctx")),
    "codeshell": (optional("token_embd.weight", "embd vocab"), *OWN_HEAD[1:], BIAS),
    "exaone": (*TOP, Row("rope_freqs.weight", "half_rot", required=False)),
    "olmo": (EMBEDDINGS[0], HEAD),
    "minicpm": (*TOP, *ROPE_FACTORS),
    "gemma4": (*TOP, *GEMMA4_TOP),
}  # fmt: skip
"""Tensors outside the layers."""
ROUTED = ("jamba",)
"""Architectures whose layers have experts where they have a router."""
ALL_LAYERS = (
    "deepseek2", "glm4", "glm4moe", "nemotron_h", "nemotron_h_moe", "mistral4", "deepseek32", "glm-dsa", "deepseek4",
)  # fmt: skip
"""Architectures that load the layers that predict further tokens; others do not look for their tensors."""
SCALED = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "ffn_gate", "ffn_down", "ffn_up",
          "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp", "nextn.eh_proj", "nextn.shared_head_head")  # fmt: skip
SCALED_EXPERTS = ("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")
"""Matrices that may have a scale, and one for their inputs; experts have one each."""


def query_rank(numbers: Hyperparameters) -> int:
    """Return the rank of DeepSeek's queries, which llama.cpp does not read for the models without one."""
    layers, tokens = numbers.trunk, numbers.number("vocab_size")
    if layers in (26, 27) or (layers == 48 and tokens == 128256):
        return 0
    return numbers.number("attention.q_lora_rank")


def needs(numbers: Hyperparameters, tokens: int, present: Collection[str]) -> Iterator[Need]:
    """Yield every tensor that llama.cpp looks for in a file with these names."""
    sizes = sizes_of(numbers, tokens)
    for row in OTHERS[numbers.architecture]:
        if row.when is None or row.when(numbers, 0):
            yield Need(row.name, _evaluated(row.sizes, sizes), row.required)
    count = numbers.layers if numbers.architecture in ALL_LAYERS else numbers.trunk
    for layer in range(count):
        head = numbers.head_size("key", layer)
        layer_sizes = {
            **sizes,
            "layer_head": head,
            "layer_q": head * numbers.of_layer("attention.head_count", layer),
            "layer_k": head * numbers.of_layer("attention.head_count_kv", layer),
            "layer_v": numbers.head_size("value", layer) * numbers.of_layer("attention.head_count_kv", layer),
            "layer_ff": numbers.of_layer("feed_forward_length", layer),
        }  # fmt: skip
        prefix = f"blk.{layer}."
        rows = LAYERS[numbers.architecture]
        if numbers.architecture in ROUTED and f"{prefix}{WIDE_EXPERTS[0].name}" in present:
            rows = (*(row for row in rows if row not in PLAIN_GATED), *WIDE_EXPERTS)
        for row in rows:
            if row.when is None or row.when(numbers, layer):
                yield from _of_row(row, prefix, layer_sizes, present)
        yield from _scales(prefix, sizes["experts"], present)


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
        "conv": number("shortconv.l_cache"),
        "quotient": embedding // heads if heads else 0,
        "classes": classes or 1,
        "embd_out": number("embedding_length_out") or embedding,
        "dense_2": 0,
        "dense_3": 0,
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
