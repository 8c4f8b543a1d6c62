"""Towers of SigLIP's layers, with the projectors of the models that use them.

Source: llama.cpp, `Gemma3VisionModel` in conversion/gemma.py, `SmolVLMModel` in conversion/smolvlm.py, and
`MODEL_TENSOR.V_*` in gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model

from squish_core.api import Typed

from ..config.keys import Key
from ..tables import Row
from .tower import VISION, Tower, image_number

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


def embeddings(prefix: str) -> tuple[Row, ...]:
    """The rows of a tower outside its layers, whose names begin with a prefix."""
    return (
        Row(f"{prefix}embeddings.patch_embedding", "v.patch_embd", PATCHES, biased=True, f32=True, top=True),
        Row(f"{prefix}embeddings.position_embedding", "v.position_embd", ("patches", HIDDEN), f32=True, top=True),
        Row(f"{prefix}post_layernorm", "v.post_ln", (HIDDEN,), biased=True, top=True),
    )


class Siglip(Tower):
    """What towers of SigLIP's layers share: a position for each patch of an image."""

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = super().sizes(settings)
        return {**sizes, "patches": (sizes["image_size"] // max(sizes["patch_size"], 1)) ** 2}


class Gemma3Vision(Siglip):
    """Gemma 3's tower: each square of patches becomes one token, their mean."""

    id = "gemma3.vision"
    projector = "gemma3"
    class_name, model_type = "Gemma3ForConditionalGeneration", "gemma3"
    vision_type, processor_type = "siglip_vision_model", "Gemma3ImageProcessor"
    written: ClassVar = {"vision_use_head": False}
    tokens: ClassVar = {
        "boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>",
        "image_token_index": "<image_soft_token>",
    }  # fmt: skip
    text_names: ClassVar = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
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
        *embeddings(SIGLIP),
        *layers(SIGLIP),
        Row(f"{PROJECTOR}mm_input_projection_weight", "mm.input_projection", (HIDDEN, "text_hidden_size"),
            top=True, suffix=""),
        Row(f"{PROJECTOR}mm_soft_emb_norm", "mm.soft_emb_norm", (HIDDEN,), add=1.0, top=True),
    )  # fmt: skip

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        side = isqrt(image_number(images, "image_seq_length", 256))
        merged = settings["image_size"] // settings["patch_size"] // max(side, 1)
        return {} if merged in (0, 4) else {f"{VISION}.projector.scale_factor": Typed("u32", merged)}

    def outer_settings(self, model: Model, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        merged = model.value(f"{VISION}.projector.scale_factor", 4)
        return {"mm_tokens_per_image": (settings["image_size"] // settings["patch_size"] // max(merged, 1)) ** 2}

    def processor(self, model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
        [tokens] = self.outer_settings(model, settings).values()
        return {**super().processor(model, settings), "image_seq_length": tokens}


class Idefics3Vision(Siglip):
    """The tower of SmolVLM and Idefics 3: squares of patches become one token, joined."""

    id = "smolvlm.vision"
    projector = "idefics3"
    class_name, model_type = "SmolVLMForConditionalGeneration", "smolvlm"
    vision_type, processor_type = "smolvlm_vision", "SmolVLMImageProcessor"
    tokens: ClassVar = {"image_token_id": "<image>"}
    text_names: ClassVar = {"model.": "model.text_model."}
    other_modalities = ("model.text_model.*", "lm_head.*")
    outer = ("scale_factor",)
    unstated: ClassVar = {
        "layer_norm_eps": 1e-6, "scale_factor": 2, "hidden_size": 1152, "num_attention_heads": 16,
        "intermediate_size": 3072, "num_hidden_layers": 12,
    }  # fmt: skip
    keys = (*Siglip.keys, Key("scale_factor", "projector.scale_factor"))
    rows = (
        *embeddings("model.vision_model."),
        *layers("model.vision_model."),
        Row("model.connector.modality_projection.proj", "mm.model.fc", ("text_hidden_size", "merged"), top=True),
    )

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return {**super().sizes(settings), "merged": settings[HIDDEN] * settings["scale_factor"] ** 2}

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        size = images.get("size")
        edge = image_number(size if isinstance(size, dict) else {}, "longest_edge", settings["image_size"])
        return {f"{VISION}.preproc_image_size": Typed("u32", edge)}

    def processor(self, model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
        edge = model.value(f"{VISION}.preproc_image_size", settings["image_size"])
        sizes = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": settings["image_size"]}}
        return {**super().processor(model, settings), **sizes}
