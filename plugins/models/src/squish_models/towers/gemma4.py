"""Gemma 4's tower: rotary positions in two dimensions, norms around each part of a layer, perhaps clipped matrices.

Source: llama.cpp, `Gemma4VisionAudioModel` in conversion/gemma.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model

from ..config.keys import Key, check_settings
from ..settings import CONFIG
from ..tables import Row
from .siglip import PATCHES, TEXT_LAYERS
from .siglip2 import COLORS_LAST
from .tower import VISION, Tower

TOWER, EMBEDDER = "model.vision_tower.", "model.embed_vision."
LAYER, BLOCK = f"{TOWER}encoder.layers.{{n}}.", "v.blk.{n}."
HIDDEN, INNER, HEADS, HEAD = "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"
POSITIONS, CLIPPED, STANDARDIZED = "position_embedding_size", "use_clipped_linears", "standardize"
MATRICES = {
    **{f"self_attn.{name}_proj": (f"attn_{name}", (HIDDEN, HIDDEN)) for name in ("q", "k", "v")},
    "self_attn.o_proj": ("attn_out", (HIDDEN, HIDDEN)),
    "mlp.gate_proj": ("ffn_gate", (INNER, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (INNER, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, INNER)),
}
NORMS = {
    "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm", "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
}  # fmt: skip
BOUNDS = ("input_max", "input_min", "output_max", "output_min")
"""Numbers between which the inputs and outputs of a clipped matrix stay."""
UNKEYED = (Key(POSITIONS, ""), Key(CLIPPED, "", "bool"), Key(STANDARDIZED, "", "bool"), Key(HEAD, ""))
"""Settings without a key in GGUF, where the tensors state them."""
MOST_LAYERS = 4096


def _top_rows() -> Iterator[Row]:
    patches, table = f"{TOWER}patch_embedder.input_proj", f"{TOWER}patch_embedder.position_embedding_table"
    yield Row(patches, "v.patch_embd", (HIDDEN, "values"), tile=COLORS_LAST, gguf_shape=PATCHES, f32=True)
    yield Row(table, "v.position_embd", ("two", POSITIONS, HIDDEN), f32=True, suffix="")
    for name in ("std_bias", "std_scale"):
        yield Row(f"{TOWER}{name}", f"v.{name}", (HIDDEN,), suffix="", gguf_suffix="")
    yield Row(f"{EMBEDDER}embedding_projection", "mm.input_projection", ("text_hidden_size", HIDDEN))


def _layer_rows() -> Iterator[Row]:
    for name, gguf in NORMS.items():
        yield Row(name, gguf, (HIDDEN,))
    for each in ("q", "k"):
        yield Row(f"self_attn.{each}_norm", f"attn_{each}_norm", (HEAD,))
    for name, (gguf, shape) in MATRICES.items():
        yield Row(f"{name}.linear", gguf, shape)
        for bound in BOUNDS:
            number = Row(f"{name}.{bound}", f"{gguf}.{bound}", (), gguf_shape=("one",), f32=True)
            yield evolve(number, suffix="", gguf_suffix="")


class Gemma4Vision(Tower):
    """Gemma 4's tower: each square of patches becomes one token, their mean."""

    id = "gemma4.vision"
    projector, projector_key = "gemma4v", f"{VISION}.projector_type"
    prefixes: ClassVar = {each.removeprefix("model."): each for each in (TOWER, EMBEDDER)}
    other_modalities = (
        *TEXT_LAYERS, *(f"{outer}{part}.*" for outer in ("model.", "") for part in ("audio_tower", "embed_audio")),
    )  # fmt: skip
    own_names: ClassVar = {"layer_norm_eps": "rms_norm_eps", "hidden_act": "hidden_activation"}
    # llama.cpp's converter writes no key, and llama.cpp then computes another GELU than the model
    fixed: ClassVar = {"rope_theta": 100.0, "pooling_kernel_size": 3, "attention_bias": False}
    unstated: ClassVar = {
        "rms_norm_eps": 1e-6, HIDDEN: 768, INNER: 3072, "num_hidden_layers": 16, HEADS: 12, HEAD: 64, "patch_size": 16,
        POSITIONS: 10240, CLIPPED: False, STANDARDIZED: False,
    }  # fmt: skip
    rows = (
        *(evolve(row, top=True) for row in _top_rows()),
        *(evolve(row, layer=LAYER, block=BLOCK) for row in _layer_rows()),
    )

    def spelled(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        vision = config.get("vision_config")
        if not isinstance(vision, dict):
            return config
        rope = vision.get("rope_parameters")
        return {**config, "vision_config": {**vision, **(rope if isinstance(rope, dict) else {}), "image_size": 224}}

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if model.layout == "gguf":
            table = model.tensors.get("v.position_embd.weight")
            return {
                **settings,
                POSITIONS: table.shape[1] if table and len(table.shape) == 3 else 0,
                CLIPPED: f"v.blk.0.attn_q.{BOUNDS[0]}" in model.tensors,
                STANDARDIZED: "v.std_bias" in model.tensors,
                HEAD: settings[HIDDEN] // max(settings[HEADS], 1),
            }
        check_settings(UNKEYED, settings, CONFIG)
        self.check_fixed(
            settings, {HEAD: settings[HIDDEN] // max(settings[HEADS], 1), "num_key_value_heads": settings[HEADS]}
        )
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        pixels = settings["patch_size"] ** 2
        own = {name: settings[name] for name in (POSITIONS, HEAD)}
        return {**super().sizes(settings), **own, "one": 1, "two": 2, "pixels": pixels, "values": 3 * pixels}

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        top = () if settings[STANDARDIZED] else (f"{TOWER}std_bias", f"{TOWER}std_scale")
        layers = range(0 if settings[CLIPPED] else min(settings["num_hidden_layers"], MOST_LAYERS))
        numbers = [f"{name}.{bound}" for name in MATRICES for bound in BOUNDS]
        return {*top, *(LAYER.replace("{n}", str(layer)) + name for layer in layers for name in numbers)}
