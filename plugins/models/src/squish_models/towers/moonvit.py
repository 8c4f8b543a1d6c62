"""MoonViT, the tower of Kimi-VL and of Kimi K2.5, whose files fuse queries, keys and values.

Source: llama.cpp, `KimiVLModel` and `KimiK25Model` in conversion/kimivl.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import isqrt, prod
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Join, Model, Rule, Tile

from squish_core.api import Typed

from ..config.keys import Key, check_settings
from ..settings import CONFIG
from ..tables import Row
from .siglip import HIDDEN, INNER, PATCHES, PROJECTOR, TEXT_LAYERS
from .tower import VISION, Tower, image_number

TOWER, BLOCK = "vision_tower.", "v.blk.{n}."
LAYER = f"{TOWER}encoder.blocks.{{n}}."
QKV = ("q", "k", "v")
HEADS = "num_attention_heads"
HEIGHT, WIDTH, FACTOR = "init_pos_emb_height", "init_pos_emb_width", "scale_factor"


def _top_rows(projector: str, linear: tuple[str, str]) -> Iterator[Row]:
    embeddings = f"{TOWER}patch_embed."
    yield Row(f"{embeddings}proj", "v.patch_embd", PATCHES, biased=True, f32=True)
    yield Row(f"{embeddings}pos_emb", "v.position_embd", (HEIGHT, WIDTH, HIDDEN), f32=True)
    yield Row(f"{TOWER}encoder.final_layernorm", "v.post_ln", (HIDDEN,), biased=True)
    yield Row(f"{projector}pre_norm", "mm.input_norm", (HIDDEN,), biased=True)
    for number, (name, rows) in enumerate(zip(linear, ("merged", "text_hidden_size")), 1):
        yield Row(f"{projector}{name}", f"mm.{number}", (rows, "merged"), biased=True)


def _layer_rows() -> Iterator[Row]:
    for number in (0, 1):
        yield Row(f"norm{number}", f"ln{number + 1}", (HIDDEN,), biased=True)
    for name in QKV:
        yield Row(f"w{name}", f"attn_{name}", (HIDDEN, HIDDEN), biased=True)
    yield Row("wo", "attn_out", (HIDDEN, HIDDEN), biased=True)
    yield Row("mlp.fc0", "ffn_up", (INNER, HIDDEN), biased=True)
    yield Row("mlp.fc1", "ffn_down", (HIDDEN, INNER), biased=True)


def _rows(projector: str, linear: tuple[str, str]) -> tuple[Row, ...]:
    top = (evolve(row, top=True) for row in _top_rows(projector, linear))
    return (*top, *(evolve(row, layer=LAYER, block=BLOCK) for row in _layer_rows()))


def _fused(name: str, tile: Tile | None = None) -> tuple[Rule, ...]:
    """The rules for queries, keys and values as one tensor, perhaps with another order of the rows of both first."""
    rules = []
    for suffix in (".weight", ".bias"):
        *rotated, values = (f"{LAYER}w{each}{suffix}" for each in QKV)
        parts = [each if tile is None else evolve(tile, of=each) for each in rotated]
        dtype = "f32" if tile is not None and suffix == ".bias" else None
        rules.append(Rule(f"{name}{suffix}", Join(tuple((part, HIDDEN) for part in (*parts, values))), dtype))
    return tuple(rules)


class KimiVision(Tower):
    """Kimi-VL's tower: rotary positions beside those of a square, and squares of patches that become one token.

    `unkeyed`: settings without a key in GGUF, where the shape of the positions states them.
    """

    id = "kimi_vl.vision"
    projector = "kimivl"
    other_modalities: ClassVar[Sequence[str]] = TEXT_LAYERS
    fixed: ClassVar = {"merge_kernel_size": [2, 2]}
    notes: ClassVar[Sequence[str]] = (
        "llama.cpp rotates other rows of queries and keys than the model, so embeddings of images differ",
    )
    unstated: ClassVar = {
        "layer_norm_eps": 1e-5, HIDDEN: 1152, INNER: 4304, "num_hidden_layers": 27, HEADS: 16,
        "patch_size": 14, HEIGHT: 64, WIDTH: 64, FACTOR: 2,
    }  # fmt: skip
    more: ClassVar = {"hf": _fused(f"{LAYER}wqkv")}
    unkeyed: ClassVar[Sequence[Key]] = (Key(HEIGHT, ""), Key(WIDTH, ""))
    keys = (*Tower.keys, Key(FACTOR, "projector.scale_factor"))
    rows = tuple(
        evolve(row, gguf_shape=("places", HIDDEN)) if row.gguf == "v.position_embd" else row
        for row in _rows(PROJECTOR, ("linear_1", "linear_2"))
    )

    def spelled(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        vision = config.get("vision_config")
        if not isinstance(vision, dict):
            return config
        return {**config, "vision_config": {**vision, "image_size": self.image_size(vision)}}

    def image_size(self, vision: Mapping[str, Any]) -> int:
        """The size of an image in GGUF, which llama.cpp does not depend on."""
        return 64 * 14

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if model.layout == "gguf":
            places = model.tensors.get("v.position_embd.weight")
            side = isqrt(prod(places.shape[:-1])) if places else 0
            return {**settings, HEIGHT: side, WIDTH: side}
        check_settings(self.unkeyed, settings, f"{CONFIG} vision_config")
        self.check_fixed(settings, {WIDTH: settings[HEIGHT]})
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        height, width = settings[HEIGHT], settings[WIDTH]
        own = {HEIGHT: height, WIDTH: width, "places": height * width}
        return {**super().sizes(settings), **own, "merged": settings[HIDDEN] * settings[FACTOR] ** 2}


ROTATED = Tile("", groups="rotations", parts=("two", "two"), heads=HEADS)
"""Of four rows, two turn with the column of a patch and two with its row; GGUF has the former of a head first."""
GRID = {name: f"init_pos_emb_{name}" for name in ("height", "width", "time")}
FEWEST, MOST = 8, 16384
"""Patches of an image, where the processor states no limit."""


class KimiK25Vision(KimiVision):
    """The tower of Kimi K2.5: that of Kimi-VL under other names, with the rows of queries and keys in another order."""

    id = "kimi_k25.vision"
    projector = "kimik25"
    notes = ()
    other_modalities = (*TEXT_LAYERS, "model.layers.*", "model.embed_tokens.*", "model.norm.*")
    leftovers = (f"{TOWER}patch_embed.pos_emb.time_weight",)
    own_names: ClassVar = {
        HIDDEN: "vt_hidden_size", INNER: "vt_intermediate_size", HEADS: "vt_num_attention_heads",
        "num_hidden_layers": "vt_num_hidden_layers", "layer_norm_eps": "projector_ln_eps",
    }  # fmt: skip
    fixed: ClassVar = {"projector_hidden_act": "gelu", "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool"}
    unstated: ClassVar = {
        **{own: KimiVision.unstated[name] for name, own in own_names.items()}, "patch_size": 14, HEIGHT: 64, WIDTH: 64,
        GRID["time"]: 4, FACTOR: 2,
    }  # fmt: skip
    unkeyed = (*KimiVision.unkeyed, Key(GRID["time"], ""))
    rows = _rows("mm_projector.", ("proj.0", "proj.2"))

    def image_size(self, vision: Mapping[str, Any]) -> int:
        side, patch = vision.get(HEIGHT, 64), vision.get("patch_size", 14)
        return side * patch if type(side) is int and type(patch) is int else 0

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        names = super().names
        apart = tuple(f"{BLOCK}attn_{name}." for name in QKV)
        others = (rule for rule in names["gguf"] if not rule.name.startswith(apart))
        return {**names, "gguf": (*others, *_fused(f"{BLOCK}attn_qkv", ROTATED))}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        head = settings[HIDDEN] // max(settings[HEADS], 1)
        return {**super().sizes(settings), "two": 2, "rotations": head // 4}

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        most, pixels = image_number(images, "in_patch_limit", MOST), settings["patch_size"] ** 2
        return {
            **{f"vision.pos_emb_{name}": Typed("u32", settings[own]) for name, own in GRID.items()},
            f"{VISION}.image_min_pixels": Typed("u32", FEWEST * pixels),
            f"{VISION}.image_max_pixels": Typed("u32", most * pixels),
        }
