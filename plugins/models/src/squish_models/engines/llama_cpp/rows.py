"""Rows that several architectures share: tensors of layers, and which layers have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from .keys import Hyperparameters

Test = Callable[[Hyperparameters, int], bool]
"""Whether a layer has a tensor."""


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


def query_rank(numbers: Hyperparameters) -> int:
    """Return the rank of DeepSeek's queries, which llama.cpp does not read for the models without one."""
    layers, tokens = numbers.trunk, numbers.number("vocab_size")
    if layers in (26, 27) or (layers == 48 and tokens == 128256):
        return 0
    return numbers.number("attention.q_lora_rank")


def _is_dense(numbers: Hyperparameters, layer: int) -> bool:
    return not numbers.number("expert_count")


def _has_experts(numbers: Hyperparameters, layer: int) -> bool:
    return bool(numbers.number("expert_count"))


def is_every(numbers: Hyperparameters, layer: int) -> bool:
    every = numbers.number("moe_every_n_layers")
    return bool(every) and layer % every == 1


def is_dense(numbers: Hyperparameters, layer: int) -> bool:
    return not is_every(numbers, layer)


def is_leading(numbers: Hyperparameters, layer: int) -> bool:
    return layer < numbers.number("leading_dense_block_count")


def is_mixed(numbers: Hyperparameters, layer: int) -> bool:
    return not is_leading(numbers, layer)


def _has_query_rank(numbers: Hyperparameters, layer: int) -> bool:
    return bool(query_rank(numbers))


def _has_no_query_rank(numbers: Hyperparameters, layer: int) -> bool:
    return not query_rank(numbers)


def _is_split(numbers: Hyperparameters, layer: int) -> bool:
    return bool(numbers.number("attention.key_length_mla") and numbers.number("attention.value_length_mla"))


def _is_whole(numbers: Hyperparameters, layer: int) -> bool:
    return not _is_split(numbers, layer)


def predicts(numbers: Hyperparameters, layer: int) -> bool:
    return layer >= numbers.trunk


def _is_first(numbers: Hyperparameters, layer: int) -> bool:
    return layer == 0


def _is_later(numbers: Hyperparameters, layer: int) -> bool:
    return layer > 0


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
    return (_feeds(numbers, layer) or predicts(numbers, layer)) and _has_experts(numbers, layer)


def _attends_alone(numbers: Hyperparameters, layer: int) -> bool:
    return predicts(numbers, layer) or not (_feeds(numbers, layer) or _convolves(numbers, layer))


def _scans(numbers: Hyperparameters, layer: int) -> bool:
    return layer < numbers.trunk and _convolves(numbers, layer) and not _feeds(numbers, layer)


def _attends_wholly(numbers: Hyperparameters, layer: int) -> bool:
    return not _recurs(numbers, layer)


def _has_long_rope(numbers: Hyperparameters, layer: int) -> bool:
    return numbers.keys["rope.scaling.type"] == "longrope"


def _has_other_rope(numbers: Hyperparameters, layer: int) -> bool:
    return not _has_long_rope(numbers, layer)


def has_shared(numbers: Hyperparameters, layer: int) -> bool:
    return is_mixed(numbers, layer) and bool(numbers.number("expert_shared_count"))


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


def is_deep(numbers: Hyperparameters, layer: int) -> bool:
    """Return whether this is the model with 64 layers, which has more tensors."""
    return numbers.trunk >= 64


def _has_shared_expert(numbers: Hyperparameters, layer: int) -> bool:
    return _has_experts(numbers, layer) and bool(numbers.number("expert_shared_feed_forward_length"))


def is_step(numbers: Hyperparameters, layer: int) -> bool:
    step = numbers.number("interleave_moe_layer_step")
    return bool(step) and (layer + 1) % step == 0


def is_no_step(numbers: Hyperparameters, layer: int) -> bool:
    return not is_step(numbers, layer)


def has_wide_shared(numbers: Hyperparameters, layer: int) -> bool:
    return is_mixed(numbers, layer) and bool(numbers.number("expert_shared_feed_forward_length"))


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
GEMMA3 = (*GEMMA2, Row("attn_k_norm.weight", "head"), Row("attn_q_norm.weight", "head"))
DENSE = (optional("dense_2.weight", "embd dense_2"), optional("dense_3.weight", "dense_3 embd"))
"""Matrices behind the pooling."""
MODERN_BERT = (
    Row("attn_norm.weight", "embd", when=_is_later), optional("attn_norm.weight", "embd", when=_is_first),
    Row("attn_qkv.weight", "embd 3*embd"), Row("attn_output.weight", "embd embd"), Row("ffn_up.weight", "embd 2*ff"),
    Row("ffn_down.weight", "ff embd"), Row("ffn_norm.weight", "embd"),
)  # fmt: skip
T5_ENCODER = (
    Row("attn_norm.weight", "embd"), Row("attn_rel_b.weight", "heads buckets", when=_is_first),
    optional("attn_rel_b.weight", "heads buckets", when=_is_later), Row("attn_q.weight", "embd k"),
    Row("attn_k.weight", "embd k"), Row("attn_v.weight", "embd v"), Row("attn_o.weight", "v embd"),
    Row("ffn_norm.weight", "embd"), optional("ffn_gate.weight", "embd ff"), Row("ffn_down.weight", "ff embd"),
    Row("ffn_up.weight", "embd ff"),
)  # fmt: skip
NEXT = (
    Row("nextn.eh_proj.weight", "2*embd embd", when=predicts), Row("nextn.enorm.weight", "embd", when=predicts),
    Row("nextn.hnorm.weight", "embd", when=predicts), optional("nextn.embed_tokens.weight", "embd vocab", predicts),
    optional("nextn.shared_head_head.weight", "embd vocab", predicts),
    optional("nextn.shared_head_norm.weight", "embd", predicts),
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
    *(Row(row.name, row.sizes, when=is_leading) for row in GATED),
    Row("ffn_gate_inp.weight", "embd experts", when=is_mixed),
    optional("exp_probs_b.bias", "experts", is_mixed),
    Row("ffn_down_exps.weight", "expert_ff embd experts", when=is_mixed),
    Row("ffn_gate_up_exps", "embd expert_ff experts", when=is_mixed),
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared", when=is_mixed),
    Row("ffn_down_shexp.weight", "expert_ff*shared embd", when=is_mixed),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared", when=is_mixed),
    *NEXT,
)


def _attends_ranked(numbers: Hyperparameters, layer: int) -> bool:
    return _attends(numbers, layer) and bool(numbers.number("attention.q_lora_rank"))


def _attends_unranked(numbers: Hyperparameters, layer: int) -> bool:
    return _attends(numbers, layer) and not numbers.number("attention.q_lora_rank")


KIMI_LINEAR = (
    Row("attn_norm.weight", "embd"),
    *(Row(f"ssm_conv1d_{each}.weight", "taps 1 heads*delta", when=_convolves) for each in "qkv"),
    Row("attn_qkv", "embd heads*delta heads*delta heads*delta", when=_convolves),
    Row("ssm_f_a.weight", "embd delta", when=_convolves), Row("ssm_f_b.weight", "delta heads*delta", when=_convolves),
    Row("ssm_beta.weight", "embd heads", when=_convolves), Row("ssm_a", "1 heads", when=_convolves),
    Row("ssm_dt.bias", "heads*delta", when=_convolves), Row("ssm_g_a.weight", "embd delta", when=_convolves),
    Row("ssm_g_b.weight", "delta heads*delta", when=_convolves), Row("ssm_norm.weight", "delta", when=_convolves),
    Row("attn_output.weight", "heads*delta embd", when=_convolves),
    Row("attn_q_a_norm.weight", "own_rank", when=_attends_ranked),
    Row("attn_kv_a_norm.weight", "kv_rank", when=_attends),
    Row("attn_q_a.weight", "embd own_rank", when=_attends_ranked),
    Row("attn_q_b.weight", "own_rank heads*mla_key", when=_attends_ranked),
    Row("attn_q.weight", "embd heads*mla_key", when=_attends_unranked),
    Row("attn_kv_a_mqa.weight", "embd kv_rank+rot", when=_attends),
    Row("attn_k_b.weight", "nope kv_rank heads", when=_attends),
    Row("attn_v_b.weight", "kv_rank mla_value heads", when=_attends),
    Row("attn_output.weight", "heads*mla_value embd", when=_attends),
    Row("ffn_norm.weight", "embd"),
    *(Row(row.name, row.sizes, when=is_leading) for row in GATED),
    Row("ffn_gate_inp.weight", "embd experts", when=is_mixed),
    Row("exp_probs_b.bias", "experts", when=is_mixed),
    Row("ffn_down_exps.weight", "expert_ff embd experts", when=is_mixed),
    Row("ffn_gate_exps.weight", "embd expert_ff experts", when=is_mixed),
    Row("ffn_up_exps.weight", "embd expert_ff experts", when=is_mixed),
    optional("ffn_gate_shexp.weight", "embd expert_ff*shared_or_one", is_mixed),
    Row("ffn_down_shexp.weight", "expert_ff*shared_or_one embd", when=is_mixed),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared_or_one", when=is_mixed),
)  # fmt: skip
"""Layers of a delta rule, whose number of key-value heads is 0, and layers of latent attention."""
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
BERT = (
    Row("attn_qkv", "embd embd kv kv"), Row("attn_output.weight", "embd embd"), optional("attn_output.bias", "embd"),
    Row("attn_output_norm.weight", "embd"), Row("attn_output_norm.bias", "embd"), Row("ffn_up.weight", "embd ff"),
    optional("ffn_up.bias", "ff"), Row("ffn_down.weight", "ff embd"), optional("ffn_down.bias", "embd"),
    Row("layer_output_norm.weight", "embd"), Row("layer_output_norm.bias", "embd"),
)  # fmt: skip
BERT_TOP = (
    Row("token_embd.weight", "embd vocab"), optional("token_types.weight", "embd types"),
    Row("token_embd_norm.weight", "embd"), Row("token_embd_norm.bias", "embd"),
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
    *(Row(row.name, row.sizes, when=is_leading) for row in GATED),
    *(Row(row.name, row.sizes, when=is_mixed) for row in EXPERTS), Row("exp_probs_b.bias", "experts", when=is_mixed),
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared", when=has_shared),
    Row("ffn_down_shexp.weight", "expert_ff*shared embd", when=has_shared),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared", when=has_shared), *NEXT,
)  # fmt: skip
LEADING = tuple(Row(row.name, row.sizes, when=is_leading) for row in GATED)
MIXED = (
    *(Row(row.name, row.sizes, when=is_mixed) for row in EXPERTS), optional("exp_probs_b.bias", "experts", is_mixed),
)  # fmt: skip
SHARED = (
    Row("ffn_gate_shexp.weight", "embd expert_ff*shared", when=is_mixed),
    Row("ffn_down_shexp.weight", "expert_ff*shared embd", when=is_mixed),
    Row("ffn_up_shexp.weight", "embd expert_ff*shared", when=is_mixed),
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
GEMMA3N = (
    *GEMMA2, *HEAD_NORMS, Row("inp_gate.weight", "embd 256"), Row("proj.weight", "256 embd"),
    Row("post_norm.weight", "embd"), Row("altup_correct_coef.weight", "4 4"), Row("altup_correct_scale.weight", "embd"),
    Row("altup_predict_coef.weight", "4 16"), Row("altup_router.weight", "embd 4"),
    Row("altup_router_norm.weight", "embd"), Row("laurel_l.weight", "embd 64"), Row("laurel_r.weight", "64 embd"),
    Row("laurel_post_norm.weight", "embd"),
)  # fmt: skip
WIDE_SHARED = (
    Row("ffn_gate_shexp.weight", "embd shared_ff"), Row("ffn_down_shexp.weight", "shared_ff embd"),
    Row("ffn_up_shexp.weight", "embd shared_ff"),
)  # fmt: skip
SHARED_EXPERT = (Row("ffn_gate_inp_shexp.weight", "embd"), *WIDE_SHARED)


def delta(*gates: Row) -> tuple[Row, ...]:
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
    Row("ssm_dt.bias", "inner"), Row("ssm_a", "state inner"), Row("ssm_d", "inner"),
    Row("ssm_out.weight", "inner embd"),
)  # fmt: skip
LAYER_ATTENTION = (
    Row("attn_qkv", "embd q layer_k layer_v"), Row("attn_output.weight", "q embd"),
    optional("attn_output.bias", "embd"),
)  # fmt: skip
GRANITE_HYBRID = (
    Row("attn_norm.weight", "embd"), *_where(_convolves, MAMBA2), *_where(_attends, LAYER_ATTENTION), *LLAMA[4:],
    optional("rope_freqs.weight", "half_rot"),
)  # fmt: skip
NEMOTRON_H = (
    Row("attn_norm.weight", "embd"),
    *_where(_scans, MAMBA2),
    *_where(_attends_alone, LAYER_ATTENTION),
    Row("ffn_down.weight", "layer_ff embd", when=_feeds_alone),
    Row("ffn_up.weight", "embd layer_ff", when=_feeds_alone),
    optional("ffn_down.bias", "embd", _feeds_alone), optional("ffn_up.bias", "layer_ff", _feeds_alone),
    Row("ffn_gate_inp.weight", "embd experts", when=_mixes), Row("exp_probs_b.bias", "experts", when=_mixes),
    optional("ffn_latent_down.weight", "embd latent", _mixes), optional("ffn_latent_up.weight", "latent embd", _mixes),
    Row("ffn_down_exps.weight", "expert_ff latent experts", when=_mixes),
    Row("ffn_up_exps.weight", "latent expert_ff experts", when=_mixes),
    Row("ffn_down_shexp.weight", "shared_ff embd", when=_mixes),
    Row("ffn_up_shexp.weight", "embd shared_ff", when=_mixes),
    Row("post_attention_norm.weight", "embd", when=predicts), *NEXT,
)  # fmt: skip
FALCON_H1 = (
    Row("attn_norm.weight", "embd"), *(row for row in MAMBA2 if row.name != "ssm_norm.weight"),
    optional("ssm_norm.weight", "group_inner state_keys"), *LAYER_ATTENTION, Row("ffn_norm", "embd"),
    optional("rope_freqs.weight", "half_rot"), *PLAIN_GATED, optional("ffn_gate.bias", "ff"),
    optional("ffn_down.bias", "embd"), optional("ffn_up.bias", "ff"),
)  # fmt: skip
JAMBA = (
    Row("attn_norm.weight", "embd"), *_where(_convolves, MAMBA),
    Row("ssm_dt_norm.weight", "state_values", when=_convolves),
    Row("ssm_b_norm.weight", "state", when=_convolves), Row("ssm_c_norm.weight", "state", when=_convolves),
    Row("attn_qkv", "embd embd layer_k layer_v", when=_attends), Row("attn_output.weight", "embd embd", when=_attends),
    Row("ffn_norm.weight", "embd"), *PLAIN_GATED,
)  # fmt: skip
CONVOLUTION = "taps 2*state*state_keys+state*state_values"
DELTA = delta(Row("ssm_beta.weight", "embd state_values"), Row("ssm_alpha.weight", "embd state_values"))
