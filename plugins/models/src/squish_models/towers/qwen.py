"""The towers of Qwen's vision models: rotary positions, and a merger that makes one token of each square of patches.

Source: llama.cpp, `Qwen2VLVisionModel` in conversion/qwenvl.py and `Qwen3VLVisionModel` in conversion/qwen3vl.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Family, Interleave, Join, Model, Rule, Whole

from squish_core.api import ErrorCode, FormatError

from ..config.keys import SIZES_LIST, SWITCHES_LIST, Key, check_settings
from ..families.qwen import Qwen3VLMoeBesideTower
from ..tables import Row
from .siglip import HIDDEN, INNER, PATCHES, TEXT_LAYERS
from .tower import VISION, VISION_CONFIG, Tower

VISUAL, MODEL_VISUAL = "visual.", "model.visual."
"""Prefixes of a tower's names, in published models before Qwen 3 and since."""
BLOCK, TEXT, MERGED = "v.blk.{n}.", "text_hidden_size", "merged"
MERGE = "spatial_merge_size"
MOST_LAYERS = 4096
HEADS = "num_attention_heads"
NAMES = {"num_hidden_layers": "depth", HEADS: "num_heads"}


def patches(prefix: str, *, biased: bool) -> tuple[Row, Row]:
    """The convolution that makes embeddings of patches: of two images of a video, which are two weights in GGUF."""
    module = f"{prefix}patch_embed.proj"
    first = Row(module, "v.patch_embd", PATCHES, f32=True, top=True, suffix=".weight.0", biased=biased)
    return first, evolve(first, suffix=".weight.1", gguf_suffix=".weight.1", biased=False)


def two_images(prefix: str) -> Rule:
    """The rule of the convolution in a folder."""
    weight = f"{prefix}patch_embed.proj.weight"
    return Rule(weight, Interleave(((f"{weight}.0", "one"), (f"{weight}.1", "one")), axis=2, axes=0))


def layers(prefix: str, *rows: Row) -> tuple[Row, ...]:
    """Rows in the layers of a tower."""
    return tuple(evolve(row, layer=f"{prefix}blocks.{{n}}.", block=BLOCK) for row in rows)


class VideoTower(Tower):
    """A tower that takes two images of a video at once: a single image, twice.

    `rope`: what the rotation of the text layers states besides their sections, in a config.json that is written for two
    GGUFs.
    """

    activations: ClassVar[Mapping[str, str]] = {"silu": "clip.use_silu"}
    own_names: ClassVar[Mapping[str, str]] = NAMES
    fixed: ClassVar[Mapping[str, Any]] = {MERGE: 2, "temporal_patch_size": 2}
    tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
    }  # fmt: skip
    processor_type = "Qwen2VLImageProcessor"
    rope: ClassVar[Mapping[str, Any]] = {}
    other_modalities = (*TEXT_LAYERS, "model.layers.*", "model.embed_tokens.*", "model.norm.*", "mtp.*")

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        heads, width = settings[HEADS], settings[HIDDEN]
        if not heads or width % heads:
            raise FormatError(
                "is not a number of heads of equal size",
                part=f"{VISION}.attention.head_count" if model.layout == "gguf" else f"{VISION_CONFIG} num_heads",
                code=ErrorCode.CONTRADICTION,
                expected=f"a divisor of {width}, the width of the tower",
                found=heads,
            )
        return settings

    def vision_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        computed = ("image_size", "is_deepstack_layers", "layer_norm_eps", "n_wa_pattern")
        stated = {name: value for name, value in super().vision_settings(settings).items() if name not in computed}
        return {**self.fixed, **stated, "out_hidden_size": settings[TEXT]}

    def text_changes(self, text: Family, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        _, model_type, _ = self.types(text)
        changes = {"model_type": f"{model_type}_text"}
        if "rope_parameters" in config or "mrope_section" not in settings:
            return changes
        rope = config.get("rope_scaling") or {"rope_type": "default"}
        return {**changes, "rope_scaling": {**rope, **self.rope, "mrope_section": settings["mrope_section"][:3]}}

    def processor(self, model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
        images = super().processor(model, settings)
        sizes = {"patch_size": settings["patch_size"], "merge_size": settings.get(MERGE, 2), "temporal_patch_size": 2}
        return {**{name: value for name, value in images.items() if name != "size"}, **sizes}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        merged = settings[HIDDEN] * settings.get(MERGE, 2) ** 2
        return {**super().sizes(settings), "one": 1, MERGED: merged}


class Qwen2Vision(VideoTower):
    """The tower of Qwen 2 VL, whose config calls the width of the text model `hidden_size`."""

    id = "qwen2vl.vision"
    projector = "qwen2vl_merger"
    class_name, model_type, vision_type = "Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl"
    text_names: ClassVar = {}
    prefixes: ClassVar = {MODEL_VISUAL: VISUAL}
    activations: ClassVar = {"quick_gelu": ""}
    own_names: ClassVar = {**NAMES, HIDDEN: "embed_dim", INNER: HIDDEN}
    unstated: ClassVar = {
        "depth": 32, "embed_dim": 1280, HIDDEN: 3584, "image_size": 560, "layer_norm_eps": 1e-6, "mlp_ratio": 4,
        "num_heads": 16, "patch_size": 14,
    }  # fmt: skip
    rows = (
        *patches(VISUAL, biased=False),
        *layers(
            VISUAL,
            Row("norm1", "ln1", (HIDDEN,), biased=True),
            Row("norm2", "ln2", (HIDDEN,), biased=True),
            *(Row(f"attn.{name}", f"attn_{name}", (HIDDEN, HIDDEN), biased=True) for name in "qkv"),
            Row("attn.proj", "attn_out", (HIDDEN, HIDDEN), biased=True),
            Row("mlp.fc1", "ffn_up", ("mlp_rows", HIDDEN), biased=True),
            Row("mlp.fc2", "ffn_down", (HIDDEN, "mlp_rows"), biased=True),
        ),
        Row(f"{VISUAL}merger.ln_q", "v.post_ln", (HIDDEN,), biased=True, top=True),
        Row(f"{VISUAL}merger.mlp.0", "mm.0", (MERGED, MERGED), biased=True, top=True),
        Row(f"{VISUAL}merger.mlp.2", "mm.2", (TEXT, MERGED), biased=True, top=True),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "hf": (
            two_images(VISUAL),
            *(
                Rule(
                    f"{VISUAL}blocks.{{n}}.attn.qkv{suffix}",
                    Join(tuple((f"{VISUAL}blocks.{{n}}.attn.{name}{suffix}", HIDDEN) for name in "qkv")),
                )
                for suffix in (".weight", ".bias")
            ),
        )
    }

    def settings(self, model: Model) -> dict[str, Any]:
        settings = {"mlp_ratio": 4, **super().settings(model)}
        check_settings((Key("mlp_ratio", "", "f32"),), settings, VISION_CONFIG)
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return {**super().sizes(settings), "mlp_rows": int(settings[HIDDEN] * settings["mlp_ratio"])}

    def vision_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        stated = {**super().vision_settings(settings), "mlp_ratio": settings["mlp_ratio"]}
        return {name: value for name, value in stated.items() if name != "out_hidden_size"}


class Qwen25Vision(VideoTower):
    """The tower of Qwen 2.5 VL: gated layers, most of which attend within windows."""

    id = "qwen25vl.vision"
    projector = "qwen2.5vl_merger"
    class_name, model_type, vision_type = "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2_5_vl"
    text_names: ClassVar = {}
    prefixes: ClassVar = {MODEL_VISUAL: VISUAL}
    fixed: ClassVar = {**VideoTower.fixed, "window_size": 112}
    unstated: ClassVar = {
        "depth": 32, HIDDEN: 3584, INNER: 3420, "fullatt_block_indexes": [7, 15, 23, 31], "image_size": 560,
        "layer_norm_eps": 1e-6, "num_heads": 16, "patch_size": 14,
    }  # fmt: skip
    keys = (*Tower.keys, Key("n_wa_pattern", "n_wa_pattern"))
    rows = (
        *patches(VISUAL, biased=False),
        *layers(
            VISUAL,
            Row("norm1", "ln1", (HIDDEN,)),
            Row("norm2", "ln2", (HIDDEN,)),
            *(Row(f"attn.{name}", f"attn_{name}", (HIDDEN, HIDDEN), biased=True) for name in "qkv"),
            Row("attn.proj", "attn_out", (HIDDEN, HIDDEN), biased=True),
            Row("mlp.gate_proj", "ffn_gate", (INNER, HIDDEN), biased=True),
            Row("mlp.up_proj", "ffn_up", (INNER, HIDDEN), biased=True),
            Row("mlp.down_proj", "ffn_down", (HIDDEN, INNER), biased=True),
        ),
        Row(f"{VISUAL}merger.ln_q", "v.post_ln", (HIDDEN,), top=True),
        *Qwen2Vision.rows[-2:],
    )
    more: ClassVar = Qwen2Vision.more

    def derived(self, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        check_settings((Key("fullatt_block_indexes", "", SIZES_LIST),), settings, VISION_CONFIG)
        count, indexes = settings["depth"], settings["fullatt_block_indexes"]
        step = indexes[0] + 1 if indexes else 0
        if not step or [number for number in indexes if number < count] != [*range(step - 1, count, step)]:
            raise FormatError(
                "are not those of every n-th layer, which llama.cpp computes",
                part=f"{VISION_CONFIG} fullatt_block_indexes",
                code=ErrorCode.CONFIG,
                expected=f"numbers such as 7, 15, 23 below {count}",
                found=str(indexes)[:60],
            )
        return {"n_wa_pattern": step}

    def vision_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        step = max(settings["n_wa_pattern"], 1)  # with 0, llama.cpp has no windows
        indexes = [*range(step - 1, min(settings["num_hidden_layers"], MOST_LAYERS), step)]
        return {**super().vision_settings(settings), "fullatt_block_indexes": indexes}


TYPES = {
    "qwen3vl": ("Qwen3VLForConditionalGeneration", "qwen3_vl"),
    "qwen3vlmoe": ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe"),
    "qwen35": ("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    "qwen35moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
}
"""Family of the text layers -> class and type of the whole model."""


class Qwen3Vision(VideoTower):
    """The tower of Qwen 3 VL and Qwen 3.5, with or without experts in the text layers: learned positions, too.

    The output of some layers, which `deepstack_visual_indexes` lists, goes through a merger of its own into the first
    text layers. Here, such a merger is in the tower's layer, as in GGUF; folders count the mergers.
    """

    id = "qwen3vl.vision"
    projector = "qwen3vl_merger"
    rope: ClassVar = {"mrope_interleaved": True}
    prefixes: ClassVar = {VISUAL: MODEL_VISUAL}
    activations: ClassVar = {"gelu_pytorch_tanh": "clip.use_gelu"}
    fixed: ClassVar = {"temporal_patch_size": 2}
    unstated: ClassVar = {
        "depth": 27, HIDDEN: 1152, INNER: 4304, "layer_norm_eps": 1e-6, "num_heads": 16,
        "num_position_embeddings": 2304, "patch_size": 16, MERGE: 2,
    }  # fmt: skip
    keys = (
        *Tower.keys,
        Key(MERGE, MERGE),
        Key("is_deepstack_layers", "is_deepstack_layers", SWITCHES_LIST, required=False),
    )
    mergers = tuple(
        evolve(row, layer=f"{MODEL_VISUAL}blocks.{{n}}.deepstack_merger.", block="v.deepstack.{n}.", biased=True)
        for row in (
            Row("norm", "norm", (MERGED,)),
            Row("linear_fc1", "fc1", (MERGED, MERGED)),
            Row("linear_fc2", "fc2", (TEXT, MERGED)),
        )
    )
    rows = (
        *patches(MODEL_VISUAL, biased=True),
        Row(f"{MODEL_VISUAL}pos_embed", "v.position_embd", ("patches", HIDDEN), f32=True, top=True),
        *layers(
            MODEL_VISUAL,
            Row("norm1", "ln1", (HIDDEN,), biased=True),
            Row("norm2", "ln2", (HIDDEN,), biased=True),
            Row("attn.qkv", "attn_qkv", ("three_hidden", HIDDEN), biased=True),
            Row("attn.proj", "attn_out", (HIDDEN, HIDDEN), biased=True),
            Row("mlp.linear_fc1", "ffn_up", (INNER, HIDDEN), biased=True),
            Row("mlp.linear_fc2", "ffn_down", (HIDDEN, INNER), biased=True),
        ),
        *mergers,
        Row(f"{MODEL_VISUAL}merger.norm", "v.post_ln", (HIDDEN,), biased=True, top=True),
        Row(f"{MODEL_VISUAL}merger.linear_fc1", "mm.0", (MERGED, MERGED), biased=True, top=True),
        Row(f"{MODEL_VISUAL}merger.linear_fc2", "mm.2", (TEXT, MERGED), biased=True, top=True),
    )
    more: ClassVar = {"hf": (two_images(MODEL_VISUAL),)}

    def derived(self, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        indexes = [8, 16, 24] if config.get("model_type") in ("qwen3_vl", "qwen3_vl_moe") else []
        whole = {"deepstack_visual_indexes": indexes, **settings}
        names = ("num_position_embeddings", "patch_size")
        keys = (*(Key(name, "") for name in names), Key("deepstack_visual_indexes", "", SIZES_LIST))
        check_settings(keys, whole, VISION_CONFIG)
        positions, patch_size = (whole[name] for name in names)
        count = whole["depth"]
        indexes = whole["deepstack_visual_indexes"]
        if len({*indexes}) < len(indexes) or any(number >= count for number in indexes):
            raise FormatError(
                "are not numbers of layers, each once",
                part=f"{VISION_CONFIG} deepstack_visual_indexes",
                code=ErrorCode.CONFIG,
                expected=f"numbers below {count}",
                found=str(indexes)[:60],
            )
        text = config.get("text_config")
        stated = {"layer_norm_eps": text["rms_norm_eps"]} if isinstance(text, dict) and "rms_norm_eps" in text else {}
        return {
            "image_size": int(positions**0.5 * patch_size),
            **settings,
            **stated,
            "deepstack_visual_indexes": indexes,
            "is_deepstack_layers": [number in indexes for number in range(min(count, MOST_LAYERS))],
        }

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        sizes = super().sizes(settings)
        side = sizes["image_size"] // max(sizes["patch_size"], 1)
        positions = settings.get("num_position_embeddings", side**2)
        return {**sizes, "patches": positions, "three_hidden": 3 * sizes[HIDDEN]}

    def beside(self, model: Model, text: Family, text_model: Model) -> Whole:
        whole = super().beside(model, text, text_model)
        return evolve(whole, text=Qwen3VLMoeBesideTower()) if text.id == Qwen3VLMoeBesideTower.id else whole

    def types(self, text: Family) -> tuple[str, str, str]:
        class_name, model_type = TYPES.get(text.id, ("", ""))
        return class_name, model_type, model_type

    def vision_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        positions = {"num_position_embeddings": self.sizes(settings)["patches"]}
        return {**super().vision_settings(settings), **positions, "deepstack_visual_indexes": [*_merging(settings)]}

    def moved(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        return {
            f"{MODEL_VISUAL}deepstack_merger_list.{number}.": f"{MODEL_VISUAL}blocks.{layer}.deepstack_merger."
            for number, layer in enumerate(_merging(settings))
        }

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        others = {*range(min(settings["num_hidden_layers"], MOST_LAYERS))} - {*_merging(settings)}
        names = [tensor.name for row in self.mergers for tensor in row.tensors()]
        return [name.replace("{n}", str(layer)) for layer in others for name in names]


def _merging(settings: Mapping[str, Any]) -> Sequence[int]:
    """Return the numbers of the layers with mergers of their own."""
    flags = settings.get("is_deepstack_layers", ())
    return settings.get("deepstack_visual_indexes", [number for number, flag in enumerate(flags) if flag])
