"""`config.json` of published encoders that are like decoders, with small sizes: the spelling is the models' own."""

from __future__ import annotations

from typing import Any

from published_parts import SIZES

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddinggemma-300m": ("embeddinggemma", {
        **SIZES, "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "dtype": "bfloat16", "eos_token_id": 1,
        "final_logit_softcapping": None, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02, "layer_types": ["sliding_attention"] * 4, "model_type": "gemma3_text",
        "num_key_value_heads": 1, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 64,
        "transformers_version": "4.57.0.dev0", "use_bidirectional_attention": True, "use_cache": True,
    }),
}  # fmt: skip
"""Model -> its family, and its config."""
