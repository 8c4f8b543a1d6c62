"""Laguna: gated attention, and experts after dense layers.

Longer than a table, because the number of heads and the rotation differ between layers with a window and the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from ..config.keys import COMMON, SIZES_LIST, SWITCHES_LIST, VOCABULARY, Key
from ..config.spelling import FULL, SLIDING, text_config
from ..declared import Declared, Leading, Switches
from ..rules import fused_experts, fused_gguf_experts, stacked_experts
from ..settings import CONFIG
from ..tables import SWITCH, Row, embeddings, experts, gated_mlp, head_norms, norm, router

DENSE, MIXED, PER_ELEMENT = "dense", "mixed", "per-element"
ROPE, FACTOR = "rope_parameters", "partial_rotary_factor"


def _of_kind(kind: str, *rows: Row) -> tuple[Row, ...]:
    return tuple(evolve(row, kind=kind) for row in rows)


class Laguna(Declared):
    """Laguna XS.2 and M.1."""

    model_type, architecture, class_name = "laguna", "laguna", "LagunaForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        Row("self_attn.q_proj", "attn_q", ("*", "hidden_size")),
        Row("self_attn.k_proj", "attn_k", ("kv_rows", "hidden_size")),
        Row("self_attn.v_proj", "attn_v", ("kv_rows", "hidden_size")),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", "*")),
        Row("self_attn.g_proj", "attn_gate", ("*", "hidden_size")),
        *head_norms(),
        norm("post_attention_layernorm", "ffn_norm"),
        *_of_kind(DENSE, *gated_mlp()),
        *_of_kind(
            MIXED,
            router("mlp.gate"),
            Row("mlp.experts.e_score_correction_bias", "exp_probs_b", ("experts",), suffix="", gguf_suffix=".bias"),
            *experts("mlp", *SWITCH, "moe_intermediate_size"),
            Row("mlp.shared_expert.gate_proj", "ffn_gate_shexp", ("shared_expert_intermediate_size", "hidden_size")),
            Row("mlp.shared_expert.up_proj", "ffn_up_shexp", ("shared_expert_intermediate_size", "hidden_size")),
            Row("mlp.shared_expert.down_proj", "ffn_down_shexp", ("hidden_size", "shared_expert_intermediate_size")),
        ),
    )
    more: ClassVar = {
        "gguf": fused_gguf_experts("mlp", *SWITCH[:2], "moe_intermediate_size"),
        "hf": fused_experts("mlp", *SWITCH, "moe_intermediate_size"),
        "mlx": stacked_experts("mlp", "switch_mlp", zip(SWITCH, SWITCH), reading=False),
        "uqff": stacked_experts("mlp", "experts", zip(SWITCH, SWITCH), reading=False),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf != "num_attention_heads"),
        Key("num_attention_heads_per_layer", "attention.head_count", SIZES_LIST),
        Key("num_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        Key("moe_routed_scaling_factor", "expert_weights_scale", "f32", required=False),
        Key("weights_norm", "expert_weights_norm", "bool", required=False),
        Key("gating_function", "expert_gating_func", required=False),
        Key("dense_layers", "leading_dense_block_count"),
        Key("sliding_window", "attention.sliding_window", required=False),
        Key("windows", "attention.sliding_window_pattern", SWITCHES_LIST, required=False),
        Key("rope_local_base_freq", "rope.freq_base_swa", "f32", required=False),
        Key("rotary_dim_swa", "rope.dimension_count_swa", required=False),
        VOCABULARY,
    )
    fixed: ClassVar = {
        "hidden_act": "silu",
        "attention_bias": False,
        "moe_router_logit_softcapping": 0.0,
        "moe_apply_router_weight_on_input": False,
    }
    derived = (
        *Declared.derived,
        "weights_norm",
        "gating_function",
        "dense_layers",
        "windows",
        "rotary_dim_swa",
        "rope_theta",
        "rope_scaling",
        "rope_local_base_freq",
        FACTOR,
    )
    own_lists = ("layer_types",)
    patterns: ClassVar = {"mlp_layer_types": Leading("dense_layers", "dense", "sparse")}
    switches: ClassVar = {"windows": Switches("layer_types", SLIDING, FULL)}
    windowless = ()

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        layers, first = settings["num_hidden_layers"], settings["dense_layers"]
        return range(min(first, layers)) if kind == DENSE else range(first, layers)

    def usual(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        own = super().usual(settings)
        heads = own.get("num_attention_heads_per_layer")
        if "num_attention_heads" not in own and isinstance(heads, list) and heads:
            own["num_attention_heads"] = heads[0]
        return own

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        stated = text_config(config)
        layers = stated.get("num_hidden_layers")
        count = layers if type(layers) is int and 0 <= layers < 1 << 12 else 0
        kinds, rope = stated.get("mlp_layer_types"), stated.get(ROPE)
        dense = [each == "dense" for each in kinds] if isinstance(kinds, list) else [True]
        own = {
            "layer_types": [FULL] * count,
            "num_attention_heads_per_layer": [stated.get("num_attention_heads")] * count,
            "gating": True,
            **{name: value for name, value in stated.items() if value is not None or name == "sliding_window"},
            "dense_layers": dense.index(False) if False in dense else len(dense),
        }
        settings = {**super().spelled(own), "weights_norm": True, "gating_function": 2}
        local = rope.get(SLIDING) if isinstance(rope, dict) else None
        if isinstance(local, dict) and isinstance(settings.get("head_dim"), int):
            factor = local.get(FACTOR, 1.0)
            if not isinstance(factor, (int, float)) or not 0 < factor <= 1:
                raise FormatError(
                    "is not a share of a head",
                    part=f"{CONFIG} {ROPE} {SLIDING} {FACTOR}",
                    code=ErrorCode.ROPE,
                    expected="more than 0 and at most 1",
                    found=repr(factor)[:60],
                )
            settings["rotary_dim_swa"] = int(settings["head_dim"] * factor)
        return settings | ({ROPE: rope} if rope is not None else {})

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        heads, layers, size = (
            settings["num_attention_heads_per_layer"],
            settings["num_hidden_layers"],
            settings["head_dim"],
        )
        groups, wide = settings["num_key_value_heads"], settings.get("gating") == PER_ELEMENT
        name = "blk.{}.attn_{}.weight" if model.layout == "gguf" else "model.layers.{}.self_attn.{}_proj.weight"
        if len(heads) != layers or any(each < 1 or each % groups for each in heads):
            raise FormatError(
                "is not a multiple of the key-value heads for each layer",
                part=f"{CONFIG} num_attention_heads_per_layer",
                code=ErrorCode.CONFIG,
                expected=f"{layers} multiples of {groups}",
                found=str(heads)[:60],
            )
        for layer, each in enumerate(heads):
            for part, rows in (("q", each * size), ("g", each * size if wide else each)):
                tensor = model.tensors.get(
                    name.format(layer, "gate" if part == "g" and model.layout == "gguf" else part)
                )
                if tensor is not None and tensor.shape[:1] != (rows,):
                    raise FormatError(
                        "has a shape that contradicts the settings",
                        part=tensor.name,
                        code=ErrorCode.CONTRADICTION,
                        expected=f"{rows} rows",
                        found=list(tensor.shape),
                    )
        return settings

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        gates = settings.get("gating_types")
        same = PER_ELEMENT if settings.get("gating") == PER_ELEMENT else "per-head"
        own = {"gating_types": [same.replace("-", "_")] * len(gates)} if isinstance(gates, list) else {}
        return {**super().implied(settings), **own}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        heads, gate = settings["num_attention_heads_per_layer"], model.tensors.get("blk.0.attn_gate.weight")
        if len(heads) == 1:
            heads = settings["num_attention_heads_per_layer"] = heads * settings["num_hidden_layers"]
        if not settings.get("sliding_window"):
            settings["layer_types"] = [FULL] * settings["num_hidden_layers"]
        wide = gate is not None and gate.shape[:1] == (heads[0] * settings["head_dim"],) != (heads[0],)
        size = settings["head_dim"] or 1
        whole = {"rope_type": "default", **(settings.get("rope_scaling") or {}), "rope_theta": settings["rope_theta"]}
        local = {"rope_type": "default", "rope_theta": settings.get("rope_local_base_freq", settings["rope_theta"])}
        rope = {
            FULL: {**whole, FACTOR: settings["rotary_dim"] / size},
            SLIDING: {**local, FACTOR: settings.get("rotary_dim_swa", settings["rotary_dim"]) / size},
        }
        return {**settings, ROPE: rope, "gating": PER_ELEMENT if wide else True}
