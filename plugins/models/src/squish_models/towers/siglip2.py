"""LFM2-VL's tower, which is SigLIP 2: images of any size, whose patches are rows of pixels.

Source: llama.cpp, `LFM2VLModel` in conversion/lfm2.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model, Tile

from squish_core.api import ErrorCode, FormatError, Typed

from ..config.keys import Key, check_settings
from ..settings import CONFIG
from ..tables import Row
from .siglip import HIDDEN, PATCHES, PROJECTOR, SIGLIP, TEXT_LAYERS, embeddings, layers, saved
from .tower import PREPROCESSORS, VISION, Tower

TOWER, CONNECTOR = f"model.{SIGLIP}", f"model.{PROJECTOR}"
FACTOR, WIDTH, NORMED = "downsample_factor", "projector_hidden_size", "projector_use_layernorm"
TEXT = "text_hidden_size"
COLORS_LAST = Tile("", groups="pixels", parts=("one", "one", "one"), columns=True)
"""A patch's pixels have their colors side by side; GGUF has the first color of all pixels, then the second."""
UNKEYED = (Key("num_patches", ""), Key(WIDTH, ""), Key(NORMED, "", "bool", required=False))
"""Settings without a key in GGUF, where the tensors' shapes state them."""
RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Number that Pillow has for a method -> llama.cpp's name."""


def _embeddings() -> tuple[Row, ...]:
    patches, *others = embeddings(TOWER)
    return (evolve(patches, shape=(HIDDEN, "values"), tile=COLORS_LAST, gguf_shape=PATCHES), *others)


class Lfm2Vision(Tower):
    """LFM2-VL's tower: squares of patches become one token, joined."""

    id = "lfm2_vl.vision"
    projector = "lfm2"
    prefixes: ClassVar = {
        SIGLIP: TOWER,
        PROJECTOR: CONNECTOR,
        **{
            prefix: f"model.{own}" for start in ("", "model.") for prefix, own in saved(f"{start}vision_tower.").items()
        },
    }
    other_modalities = TEXT_LAYERS
    leftovers = tuple(f"{prefix}head.*" for prefix in (TOWER, SIGLIP, "vision_tower.", "model.vision_tower."))
    outer = (FACTOR, WIDTH, NORMED)
    fixed: ClassVar = {"projector_bias": True, "projector_hidden_act": "gelu", "vision_feature_layer": -1}
    unstated: ClassVar = {
        "layer_norm_eps": 1e-6, HIDDEN: 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "patch_size": 16, "num_patches": 256, FACTOR: 2, WIDTH: 2560,
    }  # fmt: skip
    keys = (*Tower.keys, Key(FACTOR, "projector.scale_factor"))
    rows = (
        *_embeddings(),
        *layers(TOWER),
        Row(f"{CONNECTOR}layer_norm", "mm.input_norm", ("merged",), biased=True, top=True),
        Row(f"{CONNECTOR}linear_1", "mm.1", (WIDTH, "merged"), biased=True, top=True),
        Row(f"{CONNECTOR}linear_2", "mm.2", (TEXT, WIDTH), biased=True, top=True),
    )

    def spelled(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        vision = config.get("vision_config")
        return {**config, "vision_config": {**vision, "image_size": 256}} if isinstance(vision, dict) else config

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if model.layout != "gguf":
            check_settings(UNKEYED, settings, CONFIG)
            return settings
        places, projection = model.tensors.get("v.position_embd.weight"), model.tensors.get("mm.1.weight")
        normed = "mm.input_norm.weight" in model.tensors
        counts = {"num_patches": places.shape[0] if places else 0, WIDTH: projection.shape[0] if projection else 0}
        return {**settings, **counts, NORMED: normed}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        pixels, width = settings["patch_size"] ** 2, settings[HIDDEN] * settings[FACTOR] ** 2
        own = {"patches": settings["num_patches"], WIDTH: settings[WIDTH], "merged": width}
        return {**super().sizes(settings), **own, "one": 1, "pixels": pixels, "values": 3 * pixels}

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        normed = settings.get(NORMED, True)
        return () if normed else (f"{CONNECTOR}layer_norm.weight", f"{CONNECTOR}layer_norm.bias")

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        number = images.get("resample")
        if number is None:
            return {}
        if type(number) is not int or number not in RESAMPLING:
            raise FormatError(
                "is not a method with which llama.cpp resizes images",
                part=f"{PREPROCESSORS[0]} resample",
                code=ErrorCode.CONFIG,
                expected=" or ".join(f"{each} ({name})" for each, name in RESAMPLING.items()),
                found=repr(number)[:60],
            )
        return {f"{VISION}.image_resize_algo": Typed("str", RESAMPLING[number])}
