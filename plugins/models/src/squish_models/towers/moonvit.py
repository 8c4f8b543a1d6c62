"""MoonViT, the tower of Kimi-VL, whose files fuse queries, keys and values.

Source: llama.cpp, `KimiVLModel` in conversion/kimivl.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Join, Model, Rule

from ..config.keys import Key, check_settings
from ..settings import CONFIG
from ..tables import Row
from .siglip import HIDDEN, INNER, PATCHES, PROJECTOR, TEXT_LAYERS
from .tower import Tower

TOWER, BLOCK = "vision_tower.", "v.blk.{n}."
LAYER = f"{TOWER}encoder.blocks.{{n}}."
QKV = ("q", "k", "v")
HEIGHT, WIDTH, FACTOR = "init_pos_emb_height", "init_pos_emb_width", "scale_factor"
UNKEYED = (Key(HEIGHT, ""), Key(WIDTH, ""))
"""Settings without a key in GGUF, where the shape of the positions states them."""


def _tower_rows() -> Iterator[Row]:
    places, embeddings = (HEIGHT, WIDTH, HIDDEN), f"{TOWER}patch_embed."
    yield Row(f"{embeddings}proj", "v.patch_embd", PATCHES, biased=True, f32=True)
    yield Row(f"{embeddings}pos_emb", "v.position_embd", places, gguf_shape=("places", HIDDEN), f32=True)
    yield Row(f"{TOWER}encoder.final_layernorm", "v.post_ln", (HIDDEN,), biased=True)


def _projector_rows() -> Iterator[Row]:
    yield Row(f"{PROJECTOR}pre_norm", "mm.input_norm", (HIDDEN,), biased=True)
    yield Row(f"{PROJECTOR}linear_1", "mm.1", ("merged", "merged"), biased=True)
    yield Row(f"{PROJECTOR}linear_2", "mm.2", ("text_hidden_size", "merged"), biased=True)


def _layer_rows() -> Iterator[Row]:
    for number in (0, 1):
        yield Row(f"norm{number}", f"ln{number + 1}", (HIDDEN,), biased=True)
    for name in QKV:
        yield Row(f"w{name}", f"attn_{name}", (HIDDEN, HIDDEN), biased=True)
    yield Row("wo", "attn_out", (HIDDEN, HIDDEN), biased=True)
    yield Row("mlp.fc0", "ffn_up", (INNER, HIDDEN), biased=True)
    yield Row("mlp.fc1", "ffn_down", (HIDDEN, INNER), biased=True)


class KimiVision(Tower):
    """Kimi-VL's tower: rotary positions beside those of a square, and squares of patches that become one token."""

    id = "kimi_vl.vision"
    projector = "kimivl"
    other_modalities = TEXT_LAYERS
    fixed: ClassVar = {"merge_kernel_size": [2, 2]}
    unstated: ClassVar = {
        "layer_norm_eps": 1e-5, HIDDEN: 1152, INNER: 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
        "patch_size": 14, HEIGHT: 64, WIDTH: 64, FACTOR: 2,
    }  # fmt: skip
    more: ClassVar = {
        "hf": tuple(
            Rule(f"{LAYER}wqkv{suffix}", Join(tuple((f"{LAYER}w{name}{suffix}", HIDDEN) for name in QKV)))
            for suffix in (".weight", ".bias")
        )
    }
    keys = (*Tower.keys, Key(FACTOR, "projector.scale_factor"))
    rows = (
        *(evolve(row, top=True) for row in (*_tower_rows(), *_projector_rows())),
        *(evolve(row, layer=LAYER, block=BLOCK) for row in _layer_rows()),
    )

    def spelled(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        vision = config.get("vision_config")
        return {**config, "vision_config": {**vision, "image_size": 64 * 14}} if isinstance(vision, dict) else config

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if model.layout == "gguf":
            places = model.tensors.get("v.position_embd.weight")
            side = isqrt(places.shape[0]) if places else 0
            return {**settings, HEIGHT: side, WIDTH: side}
        check_settings(UNKEYED, settings, f"{CONFIG} vision_config")
        self.check_fixed(settings, {WIDTH: settings[HEIGHT]})
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        height, width = settings[HEIGHT], settings[WIDTH]
        own = {HEIGHT: height, WIDTH: width, "places": height * width}
        return {**super().sizes(settings), **own, "merged": settings[HIDDEN] * settings[FACTOR] ** 2}
