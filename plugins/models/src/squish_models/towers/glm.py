"""The tower of GLM 4.1V, 4.5V and 4.6V: rotary and learned positions, gated layers, and a gated merger.

Source: llama.cpp, `Glm4VVisionModel` in conversion/qwen3vl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..tables import Row
from .qwen import MODEL_VISUAL, NAMES, TEXT, VISUAL, VideoTower, layers, patches, two_images
from .siglip import HIDDEN, INNER

POSITIONS = "embeddings.position_embedding"
MERGER = (TEXT, HIDDEN, "merge", "merge")


class Glm4Vision(VideoTower):
    """GLM's tower, whose layers have the width of the text model inside; `intermediate_size` is that of the merger."""

    id = "glm4v.vision"
    projector = "glm4v"
    prefixes: ClassVar = {VISUAL: MODEL_VISUAL}
    activations: ClassVar = {"silu": "clip.use_silu", "gelu": "clip.use_gelu"}
    own_names: ClassVar = {**NAMES, "layer_norm_eps": "rms_norm_eps"}
    unstated: ClassVar = {
        "depth": 24, HIDDEN: 1536, "image_size": 336, INNER: 13696, "num_heads": 12, "patch_size": 14,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    rows = (
        *patches(MODEL_VISUAL, biased=True),
        Row(f"{MODEL_VISUAL}{POSITIONS}", "v.position_embd", ("patches", HIDDEN), f32=True, top=True),
        Row(f"{MODEL_VISUAL}post_conv_layernorm", "v.norm_embd", (HIDDEN,), top=True),
        *layers(
            MODEL_VISUAL,
            Row("norm1", "ln1", (HIDDEN,)),
            Row("norm2", "ln2", (HIDDEN,)),
            Row("attn.qkv", "attn_qkv", ("three_hidden", HIDDEN), bias=True),
            Row("attn.proj", "attn_out", (HIDDEN, HIDDEN)),
            Row("mlp.gate_proj", "ffn_gate", (TEXT, HIDDEN)),
            Row("mlp.up_proj", "ffn_up", (TEXT, HIDDEN)),
            Row("mlp.down_proj", "ffn_down", (HIDDEN, TEXT)),
        ),
        Row(f"{MODEL_VISUAL}post_layernorm", "v.post_ln", (HIDDEN,), top=True),
        Row(f"{MODEL_VISUAL}downsample", "mm.patch_merger", MERGER, biased=True, f32=True, top=True),
        Row(f"{MODEL_VISUAL}merger.proj", "mm.model.fc", (TEXT, TEXT), top=True),
        Row(f"{MODEL_VISUAL}merger.post_projection_norm", "mm.post_norm", (TEXT,), biased=True, top=True),
        Row(f"{MODEL_VISUAL}merger.gate_proj", "mm.gate", (INNER, TEXT), top=True),
        Row(f"{MODEL_VISUAL}merger.up_proj", "mm.up", (INNER, TEXT), top=True),
        Row(f"{MODEL_VISUAL}merger.down_proj", "mm.down", (TEXT, INNER), top=True),
    )
    more: ClassVar = {"hf": (two_images(MODEL_VISUAL),)}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = super().sizes(settings)
        side = sizes["image_size"] // max(sizes["patch_size"], 1)
        return {**sizes, "patches": side**2, "three_hidden": 3 * sizes[HIDDEN], "merge": 2}
