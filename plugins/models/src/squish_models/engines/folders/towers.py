"""Vision towers, which Transformers loads with the text model: their tensors, and the shapes that settings imply."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from .transformers_settings import VISION, settings_of

BLOCK = "visual.blocks.{n}."
PATCH = "in_channels temporal_patch_size patch_size patch_size"
MERGED = "spatial_merge_size*spatial_merge_size*"


@frozen
class Tower:
    """The setting with the number of layers, and shapes by tensor name, as products of settings and numbers."""

    layers: str
    shapes: Mapping[str, str]


def _both(name: str, rows: str, columns: str = "") -> dict[str, str]:
    return {f"{name}.weight": f"{rows} {columns}".strip(), f"{name}.bias": rows}


TOWERS: Mapping[str, Tower] = {
    "qwen2_5_vl": Tower(
        "depth",
        {
            "visual.patch_embed.proj.weight": f"hidden_size {PATCH}",
            **dict.fromkeys((f"{BLOCK}norm1.weight", f"{BLOCK}norm2.weight"), "hidden_size"),
            **_both(f"{BLOCK}attn.qkv", "3*hidden_size", "hidden_size"),
            **_both(f"{BLOCK}attn.proj", "hidden_size", "hidden_size"),
            **_both(f"{BLOCK}mlp.gate_proj", "intermediate_size", "hidden_size"),
            **_both(f"{BLOCK}mlp.up_proj", "intermediate_size", "hidden_size"),
            **_both(f"{BLOCK}mlp.down_proj", "hidden_size", "intermediate_size"),
            "visual.merger.ln_q.weight": "hidden_size",
            **_both("visual.merger.mlp.0", f"{MERGED}hidden_size", f"{MERGED}hidden_size"),
            **_both("visual.merger.mlp.2", "out_hidden_size", f"{MERGED}hidden_size"),
        },
    ),
    "qwen2_vl": Tower(
        "depth",
        {
            "visual.patch_embed.proj.weight": f"embed_dim {PATCH}",
            **_both(f"{BLOCK}norm1", "embed_dim"),
            **_both(f"{BLOCK}norm2", "embed_dim"),
            **_both(f"{BLOCK}attn.qkv", "3*embed_dim", "embed_dim"),
            **_both(f"{BLOCK}attn.proj", "embed_dim", "embed_dim"),
            **_both(f"{BLOCK}mlp.fc1", "mlp_ratio*embed_dim", "embed_dim"),
            **_both(f"{BLOCK}mlp.fc2", "embed_dim", "mlp_ratio*embed_dim"),
            **_both("visual.merger.ln_q", "embed_dim"),
            **_both("visual.merger.mlp.0", f"{MERGED}embed_dim", f"{MERGED}embed_dim"),
            **_both("visual.merger.mlp.2", "hidden_size", f"{MERGED}embed_dim"),
        },
    ),
}
MOST_LAYERS = 1000


def tower_problems(
    config: Mapping[str, Any], model_type: str, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, str]]:
    """Yield the first tensor of a tower that is missing or has another shape, and what is wrong with it.

    `shapes`: the tensors of the folder.
    """
    tower, part = TOWERS.get(model_type), config.get(VISION)
    if tower is None or (part is not None and not isinstance(part, Mapping)):
        return
    defaults = settings_of(model_type, VISION) or {}
    settings = {name: setting.default for name, setting in defaults.items()} | {
        name: value for name, value in (part or {}).items() if name in defaults
    }
    layers = settings.get(tower.layers)
    if type(layers) is not int:
        return
    for name in ("patch_size", "temporal_patch_size"):
        if isinstance(settings.get(name), list):
            yield f"{VISION}.{name}", "is a list, and Transformers makes one size of it"
            return
    heads, width = settings.get("num_heads"), settings.get("embed_dim", settings.get("hidden_size"))
    if type(heads) is int and type(width) is int and (heads == 0 or heads > width):
        yield f"{VISION}.num_heads", f"is {heads}, and the heads share {width} numbers"
        return
    for template, sizes in tower.shapes.items():
        for number in range(min(layers, MOST_LAYERS)) if "{n}" in template else (0,):
            name = template.replace("{n}", str(number))
            shape = shapes.get(name, shapes.get(f"model.{name}"))
            if shape is None:
                yield name, "is missing, and the model in Transformers has it"
                return
            expected = tuple(_size(each, settings) for each in sizes.split())
            if None not in expected and shape != expected:
                yield name, f"has the shape {list(shape)}, and {VISION} asks for {list(expected)}"
                return


def _size(text: str, settings: Mapping[str, Any]) -> int | None:
    factors: list[Any] = [int(each) if each.isdigit() else settings.get(each) for each in text.split("*")]
    return math.prod(factors) if all(type(each) is int for each in factors) else None
