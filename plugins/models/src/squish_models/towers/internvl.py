"""InternVL's tower, in the spelling of Transformers and in that of its authors (`internvl_chat`).

Source: llama.cpp, `InternVisionModel` in conversion/internvl.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Join, Model, Rule

from squish_core.api import ErrorCode, FormatError, Typed

from ..config.keys import Key
from ..settings import CONFIG
from ..tables import Row
from .siglip import PROJECTOR, TEXT_LAYERS
from .tower import VISION, Tower

TOWER, LAYER, BLOCK = "vision_tower.", "vision_tower.encoder.layer.{n}.", "v.blk.{n}."
HIDDEN, INNER, TEXT, FACTOR = "hidden_size", "intermediate_size", "text_hidden_size", "scale_factor"
HEAD_NORM = "use_qk_norm"
QKV = tuple(f"attention.{name}_proj" for name in ("q", "k", "v"))
NORMS = ("layernorm_before", "layernorm_after")
HEAD_NORMS = ("attention.q_norm", "attention.k_norm")
LARGE = (3200, 45)
"""Width and layers of InternViT-6B, the only tower whose norms llama.cpp takes for RMS norms."""
CHAT, CHAT_LAYER, CHAT_MLP = "vision_model.", "vision_model.encoder.layers.{n}.", "mlp1."
CHAT_ROWS = {
    "embeddings.class_embedding": "embeddings.cls_token",
    "embeddings.position_embedding": "embeddings.position_embeddings",
    "embeddings.patch_embedding.": "embeddings.patch_embeddings.projection.",
}
CHAT_LAYERS = {
    "norm1.": "layernorm_before.", "norm2.": "layernorm_after.", "attn.proj.": "attention.projection_layer.",
    "attn.q_norm.": "attention.q_norm.", "attn.k_norm.": "attention.k_norm.", "mlp.fc1.": "mlp.fc1.",
    "mlp.fc2.": "mlp.fc2.", "ls1": "lambda_1", "ls2": "lambda_2",
}  # fmt: skip
CHAT_PROJECTOR = {"0.": "layer_norm.", "1.": "linear_1.", "3.": "linear_2."}
"""Names of the authors -> those of Transformers, each after its prefix."""
TILES = {"min_dynamic_patch": "preproc_min_tiles", "max_dynamic_patch": "preproc_max_tiles"}
MOST_LAYERS = 4096


def _layer_rows() -> Iterator[Row]:
    for number, name in enumerate(NORMS, 1):
        yield Row(name, f"ln{number}", (HIDDEN,), biased=True)
    for name, own in zip(("q", "k", "v"), QKV):
        yield Row(own, f"attn_{name}", (HIDDEN, HIDDEN), biased=True)
    for name, own in zip(("q", "k"), HEAD_NORMS):
        yield Row(own, f"attn_{name}_norm", (HIDDEN,))
    yield Row("attention.projection_layer", "attn_out", (HIDDEN, HIDDEN), biased=True)
    yield Row("mlp.fc1", "ffn_up", (INNER, HIDDEN), biased=True)
    yield Row("mlp.fc2", "ffn_down", (HIDDEN, INNER), biased=True)
    for number in (1, 2):
        yield Row(f"lambda_{number}", f"ls{number}", (HIDDEN,), suffix="")


def _top_rows() -> Iterator[Row]:
    patches = (HIDDEN, "channels", "patch_size", "patch_size")
    places = ("one", "positions", HIDDEN)
    embeddings = f"{TOWER}embeddings."
    yield Row(f"{embeddings}cls_token", "v.class_embd", ("one", "one", HIDDEN), f32=True, suffix="", gguf_suffix="")
    yield Row(f"{embeddings}position_embeddings", "v.position_embd", places, f32=True, suffix="")
    yield Row(f"{embeddings}patch_embeddings.projection", "v.patch_embd", patches, biased=True, f32=True)
    yield Row(f"{PROJECTOR}layer_norm", "mm.model.mlp.0", ("merged",), biased=True)
    yield Row(f"{PROJECTOR}linear_1", "mm.model.mlp.1", (TEXT, "merged"), biased=True)
    yield Row(f"{PROJECTOR}linear_2", "mm.model.mlp.3", (TEXT, TEXT), biased=True)


def _chat_rules(rows: Sequence[Row]) -> Iterator[Rule]:
    """The names of the authors, who fuse queries, keys and values."""
    tables = ((CHAT, TOWER, CHAT_ROWS), (CHAT_LAYER, LAYER, CHAT_LAYERS), (CHAT_MLP, PROJECTOR, CHAT_PROJECTOR))
    names = [tensor.name for row in rows for tensor in row.tensors()]
    for prefix, own_prefix, table in tables:
        for chat, own in table.items():
            start = f"{own_prefix}{own}"
            found = (name for name in names if name.startswith(start))
            yield from (Rule(f"{prefix}{chat}{name.removeprefix(start)}", name, reading=True) for name in found)
    for suffix in (".weight", ".bias"):
        parts = tuple((f"{LAYER}{name}{suffix}", HIDDEN) for name in QKV)
        yield Rule(f"{CHAT_LAYER}attn.qkv{suffix}", Join(parts), reading=True)


class InternVLVision(Tower):
    """InternVL's tower: a class token, layers with scales, and squares of patches that become one token, joined."""

    id = "internvl.vision"
    projector = "internvl"
    prefixes: ClassVar = {f"model.{TOWER}": TOWER, f"model.{PROJECTOR}": PROJECTOR}
    other_modalities = TEXT_LAYERS
    leftovers = ("*.mask_token",)
    outer = (FACTOR, *TILES)
    own_names: ClassVar = {"attention_bias": "qkv_bias", HEAD_NORM: "qk_normalization"}
    activations: ClassVar = {"gelu": "clip.use_gelu", "silu": "clip.use_silu"}
    fixed: ClassVar = {
        "use_mean_pooling": True, "use_absolute_position_embeddings": True, "vision_feature_layer": -1,
        "select_layer": -1, "ps_version": "v2", "projector_hidden_act": "gelu",
    }  # fmt: skip
    unstated: ClassVar = {
        "layer_norm_eps": 1e-6, FACTOR: 2, HIDDEN: 1024, INNER: 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": 448, "patch_size": 14,
    }  # fmt: skip
    notes = ("llama.cpp adds to each patch the position of the one before, and to the first that of the class token",)
    keys = (*Tower.keys, Key(FACTOR, "projector.scale_factor"))
    rows = (
        *(evolve(row, top=True) for row in _top_rows()),
        *(evolve(row, layer=LAYER, block=BLOCK) for row in _layer_rows()),
    )

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        return {**super().names, "hf": tuple(_chat_rules(self.rows))}

    def spelled(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        spelled = {"text_config": config.get("llm_config", {}), **config}
        vision = config.get("vision_config")
        if isinstance(vision, dict):
            sizes = {name: vision[name][0] for name in ("image_size", "patch_size") if _is_square(vision.get(name))}
            spelled["vision_config"] = {**vision, **sizes}
        if "downsample_ratio" in config:
            spelled[FACTOR] = _factor(config["downsample_ratio"])
        return spelled

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if model.layout == "gguf":
            layers = [name for name in model.tensors if name.startswith("v.blk.0.")]
            is_large = "v.blk.0.ln1.bias" not in layers
            biased, normed = "v.blk.0.attn_q.bias" in layers, "v.blk.0.attn_q_norm.weight" in layers
            settings |= {"norm_type": "rms_norm" if is_large else "layer_norm"}
            return settings | {"attention_bias": biased, HEAD_NORM: normed}
        is_large = (settings[HIDDEN], settings["num_hidden_layers"]) == LARGE
        self.check_fixed(
            settings, {"norm_type": "rms_norm"} if is_large else {"norm_type": "layer_norm", HEAD_NORM: False}
        )
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = super().sizes(settings)
        positions = (sizes["image_size"] // max(sizes["patch_size"], 1)) ** 2 + 1
        return {**sizes, "one": 1, "positions": positions, "merged": settings[HIDDEN] * settings[FACTOR] ** 2}

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        absent: list[str] = []
        if settings.get("norm_type") == "rms_norm":
            absent += [f"{name}.bias" for name in NORMS]
        if not settings.get("attention_bias", False):
            absent += [f"{name}.bias" for name in QKV]
        if not settings.get(HEAD_NORM, False):
            absent += [f"{name}.weight" for name in HEAD_NORMS]
        layers = range(min(settings["num_hidden_layers"], MOST_LAYERS))
        return {f"{LAYER}{name}".replace("{n}", str(layer)) for layer in layers for name in absent}

    def other_keys(self, settings: Mapping[str, Any], images: Mapping[str, Any]) -> Mapping[str, Typed]:
        tiles = {key: settings.get(name, 0) for name, key in TILES.items()}
        return {f"{VISION}.{key}": Typed("u32", count) for key, count in tiles.items() if _is_count(count)}


def _is_square(size: Any) -> bool:
    return isinstance(size, list) and len(size) == 2 and size[0] == size[1]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _factor(ratio: Any) -> int:
    """Return how many patches on a side become one token; FormatError if the ratio is not one of two numbers."""
    if type(ratio) not in (int, float) or not 0 < ratio <= 1 or not (1 / ratio).is_integer():
        raise FormatError(
            "is not the part of a side that is left",
            part=f"{CONFIG} downsample_ratio",
            code=ErrorCode.CONFIG,
            expected="1 divided by an integer",
            found=repr(ratio)[:60],
        )
    return int(1 / ratio)
