"""Types of settings as mistral.rs, whose structures are typed, reads them from a config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SIZES = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "num_experts_per_tok",
    "num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
    "v_head_dim", "query_pre_attn_scalar", "first_k_dense_replace", "max_window_layers", "decoder_sparse_step",
    "conv_L_cache", "block_multiple_of", "n_group", "topk_group",
)  # fmt: skip
OPTIONAL = ("sliding_window", "q_lora_rank", "original_max_position_embeddings", "head_dim")
NUMBERS = ("rms_norm_eps", "norm_eps", "norm_epsilon", "rope_theta", "routed_scaling_factor", "rope_local_base_freq")
SWITCHES = ("tie_word_embeddings", "attention_bias", "use_sliding_window", "norm_topk_prob", "use_bias", "conv_bias")


def refused_settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that mistral.rs does not parse, and what it expects."""
    for name, value in config.items():
        if name in OPTIONAL and value is None:
            continue
        if name in (*SIZES, *OPTIONAL) and not (type(value) is int and value >= 0):
            yield name, "a size"
        elif name in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield name, "a number"
        elif name in SWITCHES and not isinstance(value, bool):
            yield name, "true or false"
