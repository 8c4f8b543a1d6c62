"""Tiny models with the towers of Qwen's and GLM's vision models."""

from __future__ import annotations

from typing import Any

SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
IDS = {"image_token_id": 600, "video_token_id": 601, "vision_start_token_id": 602, "vision_end_token_id": 603}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TEXT = {**SIZE, **TOKENS, "head_dim": 16, "rope_parameters": ROPE}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
DELTA = {
    "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 16,
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True},
}  # fmt: skip
COLORS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
IMAGES = {**COLORS, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
QWEN = {"depth": 4, "hidden_size": 32, "num_heads": 2, "patch_size": 14, "intermediate_size": 64}
QWEN3 = {**QWEN, "patch_size": 16, "num_position_embeddings": 16, "out_hidden_size": 64}
GLM = {**QWEN, "image_size": 56, "out_hidden_size": 64, "intermediate_size": 96}
VISUAL = {"model.visual.": "visual.", "model.language_model.": "model."}


def qwen(text: dict[str, Any], vision: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A model from the settings of its parts."""
    return {"config": {**IDS, "text_config": text, "vision_config": vision}, "images": IMAGES, **others}


MODELS: dict[str, dict[str, Any]] = {
    "qwen3_vl": qwen(TEXT, {**QWEN3, "deepstack_visual_indexes": [0, 2]}),
    "qwen3_vl_moe": qwen({**TEXT, **EXPERTS}, {**QWEN3, "deepstack_visual_indexes": [1]}),
    "qwen2_5_vl": qwen(
        TEXT, {**QWEN, "fullatt_block_indexes": [1, 3], "out_hidden_size": 64, "window_size": 112}, published=VISUAL
    ),
    "qwen2_vl": qwen(TEXT, {**QWEN, "embed_dim": 32, "hidden_size": 64}, published=VISUAL),
    "glm4v": qwen(TEXT, GLM),
    "glm4v_moe": qwen({**TEXT, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, GLM),
    "qwen3_5": qwen({**TEXT, **DELTA}, QWEN3),
    "qwen3_5_moe": qwen({**TEXT, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 32}, QWEN3),
}
"""As in `towers`."""
ENCODED = {
    "qwen3_vl": ((128, 96), 2e-3),
    "qwen2_5_vl": ((168, 140), 2e-3),
    "qwen2_vl": ((112, 84), 3e-3),
    "qwen3_5": ((128, 96), 2e-3),
    "glm4v": ((112, 84), 5e-3),
}
"""Name -> height and width of an image, and the largest difference of an embedding."""
