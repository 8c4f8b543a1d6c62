"""Llama 4: chunks of attention, layers without rotary positions, and experts whose matrices are transposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_convert.api import Interleave, Rule, Transpose

from ..config.keys import COMMON, MIXTURE, VOCABULARY, Key
from ..config.spelling import FULL
from ..family import TextModel
from ..settings import BARE
from ..tables import LAYER, SWITCH, Row, attention, pre_norm_model
from .llama import SCALED_ROPE

DENSE, MIXED, CHUNKED = "dense", "mixed", "chunked_attention"
STEP = "interleave_moe_layer_step"
WITHOUT_NORMS = 128
"""The number of experts of the model that does not normalize queries and keys: llama.cpp knows it by that."""
_EXPERTS = f"{LAYER}feed_forward.experts."


def _projections(module: str, suffix: str, kind: str, size: str, *axes: str) -> tuple[Row, ...]:
    """Gate, up and down; `axes` come before the rows of each."""
    shapes = ((size, "hidden_size"), (size, "hidden_size"), ("hidden_size", size))
    return tuple(
        Row(f"feed_forward.{module}{name}", f"ffn_{name.removesuffix('_proj')}{suffix}", (*axes, *shape), kind=kind)
        for name, shape in zip(SWITCH, shapes)
    )


class Llama4(TextModel):
    """The text part of Llama 4. Experts are stacks in Hugging Face, gate and up side by side in one, all [in, out]."""

    model_type, architecture, class_name = "llama4_text", "llama4", "Llama4ForCausalLM"
    mlx_type, mlx_part = "llama4", "language_model."
    rows = pre_norm_model(
        attention(bias=False),
        (
            *_projections("", "", DENSE, "intermediate_size_mlp"),
            Row("feed_forward.router", "ffn_gate_inp", ("experts", "hidden_size"), f32=True, kind=MIXED),
            *_projections("experts.", "_exps", MIXED, "intermediate_size", "experts"),
            *_projections("shared_expert.", "_shexp", MIXED, "intermediate_size"),
        ),
    )
    more: ClassVar = {
        "hf": (
            Rule(
                f"{_EXPERTS}gate_up_proj",
                Transpose(
                    Interleave(tuple((f"{_EXPERTS}{name}.weight", "intermediate_size") for name in SWITCH[:2]), axis=1)
                ),
            ),
            Rule(f"{_EXPERTS}down_proj", Transpose(f"{_EXPERTS}down_proj.weight")),
        )
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf != "intermediate_size"),
        Key("intermediate_size_mlp", "feed_forward_length"),
        Key("intermediate_size", "expert_feed_forward_length"),
        *MIXTURE["num_local_experts"],
        Key(STEP, "interleave_moe_layer_step"),
        VOCABULARY,
    )
    constants = SCALED_ROPE
    fixed: ClassVar = {
        "hidden_act": "silu", "attention_bias": False, "attention_chunk_size": 8192, "attn_temperature_tuning": True,
        "floor_scale": 8192, "attn_scale": 0.1,
    }  # fmt: skip
    unstated: ClassVar = {"use_qk_norm": True}
    windowless = ()
    other_modalities = (
        "vision_model.*", "multi_modal_projector.*", "model.vision_model.*", "model.multi_modal_projector.*",
    )  # fmt: skip
    prefixes: ClassVar = {
        **BARE, "language_model.model.": "model.", "language_model.lm_head.": "lm_head.",
        "model.language_model.": "model.",
    }  # fmt: skip

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = {STEP: 1, **super().spelled(config)}
        if isinstance(settings.get("attn_temperature_tuning"), int):  # 4 in the published models
            settings["attn_temperature_tuning"] = bool(settings["attn_temperature_tuning"])
        if not settings.get("no_rope_layers"):  # an empty list means the usual layers
            settings.pop("no_rope_layers", None)
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return {**super().sizes(settings), "intermediate_size_mlp": settings["intermediate_size_mlp"]}

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        step = settings[STEP]
        return [MIXED if step and (layer + 1) % step == 0 else DENSE for layer in range(settings["num_hidden_layers"])]

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        layers = range(settings["num_hidden_layers"])
        rotated = [int((layer + 1) % 4 != 0) for layer in layers]
        mixed = [layer for layer, kind in enumerate(self.layer_kinds(settings)) if kind == MIXED]
        return {
            **self.fixed,
            "use_qk_norm": settings["num_local_experts"] != WITHOUT_NORMS,
            "no_rope_layers": rotated,
            "layer_types": [CHUNKED if each else FULL for each in rotated],
            "moe_layers": mixed,
        }
