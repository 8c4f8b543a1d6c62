"""Settings that several published configs share, with small sizes."""

from __future__ import annotations

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512,
}  # fmt: skip
WINDOWS = {"layer_types": [*["sliding_attention"] * 3, "full_attention"]}
QWEN3_VL = {
    **SIZES, "model_type": "qwen3_vl_text", "head_dim": 16, "attention_bias": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
}  # fmt: skip
