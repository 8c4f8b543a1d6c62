"""Towers of SigLIP's layers, with the projectors of the models that use them.

Source: llama.cpp, `Gemma3VisionModel` in conversion/gemma.py, and `MODEL_TENSOR.V_*` in gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, ClassVar

from attrs import evolve

from squish_core.api import Typed

from ..tables import Row
from .tower import VISION, Tower

SIGLIP, PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."
TEXT_LAYERS = ("language_model.*", "model.language_model.*", "lm_head.*")
ENCODER, BLOCK = "encoder.layers.{n}.", "v.blk.{n}."
HIDDEN, INNER = "hidden_size", "intermediate_size"
PATCHES = (HIDDEN, "channels", "patch_size", "patch_size")


def saved(prefix: str) -> dict[str, str]:
    """The names that Transformers 5 writes with a prefix -> published ones, which have `vision_model` in between."""
    return {f"{prefix}{part}": f"{SIGLIP}{part}" for part in ("embeddings.", "encoder.", "post_layernorm.")}


def layers(prefix: str) -> tuple[Row, ...]:
    """The rows of an encoder's layers, whose names begin with a prefix."""
    rows = [
        *(Row(f"layer_norm{number}", f"ln{number}", (HIDDEN,), biased=True) for number in (1, 2)),
        *(Row(f"self_attn.{name}_proj", f"attn_{name}", (HIDDEN, HIDDEN), biased=True) for name in ("q", "k", "v")),
        Row("self_attn.out_proj", "attn_out", (HIDDEN, HIDDEN), biased=True),
        Row("mlp.fc1", "ffn_up", (INNER, HIDDEN), biased=True),
        Row("mlp.fc2", "ffn_down", (HIDDEN, INNER), biased=True),
    ]
    return tuple(evolve(row, layer=f"{prefix}{ENCODER}", block=BLOCK) for row in rows)


class Gemma3Vision(Tower):
    """Gemma 3's tower: each square of patches becomes one token, their mean."""

    id = "gemma3.vision"
    projector = "gemma3"
    prefixes: ClassVar[Mapping[str, str]] = {
        f"model.{SIGLIP}": SIGLIP,
        **saved("vision_tower."),
        **saved("model.vision_tower."),
        f"model.{PROJECTOR}": PROJECTOR,
    }
    other_modalities = TEXT_LAYERS
    leftovers = tuple(f"{prefix}head.*" for prefix in (SIGLIP, "vision_tower.", "model.vision_tower."))
    unstated: ClassVar = {"layer_norm_eps": 1e-6}
    rows = (
        Row(f"{SIGLIP}embeddings.patch_embedding", "v.patch_embd", PATCHES, biased=True, f32=True, top=True),
        Row(f"{SIGLIP}embeddings.position_embedding", "v.position_embd", ("patches", HIDDEN), f32=True, top=True),
        *layers(SIGLIP),
        Row(f"{SIGLIP}post_layernorm", "v.post_ln", (HIDDEN,), biased=True, top=True),
        Row(f"{PROJECTOR}mm_input_projection_weight", "mm.input_projection", (HIDDEN, "text_hidden_size"),
            top=True, suffix=""),
        Row(f"{PROJECTOR}mm_soft_emb_norm", "mm.soft_emb_norm", (HIDDEN,), add=1.0, top=True),
    )  # fmt: skip

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = super().sizes(settings)
        return {**sizes, "patches": (sizes["image_size"] // max(sizes["patch_size"], 1)) ** 2}

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        side = isqrt(images.get("image_seq_length", 256))
        merged = settings["image_size"] // settings["patch_size"] // max(side, 1)
        return {} if merged in (0, 4) else {f"{VISION}.projector.scale_factor": Typed("u32", merged)}
