"""Step 3.5: gated attention with more heads in layers with a window, experts in stacks, and activations with limits.

Longer than a table, because config.json has settings for each layer (bases and shares of the rotation, limits, heads)
and Transformers, which has the model as the text part of Step 3.7, spells them otherwise; and because mlx-lm's names
of the experts mean that 1 is added to the norms.

Source: llama.cpp, `Step35Model` in conversion/step3.py and src/models/step35.cpp; mlx-lm, models/step3p5.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Add, Carried, Model, Rule, Stack

from squish_core.api import LazyAssets, Options

from ..config.keys import COMMON, LAYER_SIZES, NUMBERS_LIST, SWITCHES_LIST, Key, check_settings
from ..config.rope import ROTATED, rope_kind
from ..config.spelling import BEHIND, FULL, SLIDING, text_config
from ..config_file import dump_json
from ..declared import OTHERS, WINDOW_LAYERS, Declared, Layers, Switches, layer_types
from ..keep import restored_files
from ..rules import fused_gguf_experts
from ..settings import CONFIG, INEXPRESSIBLE, WINDOWS
from ..tables import LAYER, SWITCH, Row, embeddings, experts, gated_mlp, head_norms, norm, router
from .mimo import check, is_positive

DENSE, MIXED = "dense", "mixed"
ROPE, SCALING, SHARE, SHARES = "rope_parameters", "rope_scaling", "partial_rotary_factor", "partial_rotary_factors"
BASE, LOCAL_BASE, SCALED_KINDS = "rope_theta", "rope_local_base_freq", "yarn_only_types"
OTHER, LOCAL_HEADS, LOCAL_GROUPS = "attention_other_setting", "window_heads", "window_groups"
KINDS, EXPERT_LAYERS, LIMITS = "mlp_layer_types", "moe_layers_enum", ("swiglu_limits", "swiglu_limits_shared")
ROTATED_SHARES = {FULL: 0.5, SLIDING: 1.0}
"""The share of a head that llama.cpp rotates in layers without a window, and in those with one."""
SPELLED = {
    "num_key_value_heads": "num_attention_groups", "n_routed_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_top_k",
}  # fmt: skip
"""Transformers' name of a setting -> the published one."""
OF_LAYERS = "per_layer_config"
OWN_OF_TRANSFORMERS = ("num_sliding_attention_heads", OF_LAYERS, "mtp_layer_types", "mtp_mlp_layer_types")
"""Settings that Transformers saves besides the published ones."""
WITH_ONE = "norms_with_one"
"""Among the settings: whether a folder is mlx-lm's, whose norms have 1 added."""
SIGMOID = 2
MLX_NORMS = "of_mlx."
"""What precedes the names of norms with 1 added."""
NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")


def _of_kind(kind: str, *rows: Row) -> tuple[Row, ...]:
    return tuple(evolve(row, kind=kind) for row in rows)


def _mlx() -> tuple[Rule, ...]:
    """mlx-lm's names; those of the norms stand for the same tensors in its own folders, where 1 is added."""
    names = ["model.norm.weight", *(f"{LAYER}{each}.weight" for each in NORMS)]
    moved = {
        "mlp.gate.gate.weight": "moe.gate.weight",
        "mlp.gate.router_bias": "moe.router_bias",
        **{f"mlp.share_expert.{each}.weight": f"share_expert.{each}.weight" for each in SWITCH},
    }
    return (
        *(Rule(name, Add(name, 1.0)) for name in names),
        *(Rule(f"{MLX_NORMS}{name}", Add(name, 1.0), reading=True) for name in names),
        *(Rule(f"{LAYER}{name}", f"{LAYER}{own}") for name, own in moved.items()),
        *_stacks("mlp.switch_mlp."),
        *(evolve(rule, reading=True) for rule in _stacks("moe.")),  # it also reads the published names
    )


def _stacks(module: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(f"{LAYER}{module}{each}.weight", Stack(f"{LAYER}moe.experts.{{e}}.{each}.weight")) for each in SWITCH
    )


class Step35(Declared):
    """Step 3.5 Flash, and the text part of Step 3.7 Flash."""

    model_type, architecture, class_name = "step3p5", "step35", "Step3p5ForCausalLM"
    rows = (
        *embeddings(1.0),
        norm("input_layernorm", "attn_norm", add=1.0),
        Row("self_attn.q_proj", "attn_q", ("q_rows", "hidden_size")),
        Row("self_attn.k_proj", "attn_k", ("kv_rows", "hidden_size")),
        Row("self_attn.v_proj", "attn_v", ("kv_rows", "hidden_size")),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", "q_rows")),
        Row("self_attn.g_proj", "attn_gate", ("heads", "hidden_size")),
        *head_norms(1.0),
        norm("post_attention_layernorm", "ffn_norm", add=1.0),
        *_of_kind(DENSE, *gated_mlp()),
        *_of_kind(
            MIXED,
            router("moe.gate"),
            Row("moe.router_bias", "exp_probs_b", ("experts",), suffix="", gguf_suffix=".bias"),
            *experts("moe", *SWITCH, "moe_intermediate_size"),
            Row("share_expert.gate_proj", "ffn_gate_shexp", ("share_expert_dim", "hidden_size")),
            Row("share_expert.up_proj", "ffn_up_shexp", ("share_expert_dim", "hidden_size")),
            Row("share_expert.down_proj", "ffn_down_shexp", ("hidden_size", "share_expert_dim")),
        ),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "gguf": fused_gguf_experts("moe", *SWITCH[:2], "moe_intermediate_size"),
        "hf": _stacks("moe."),
        "mlx": _mlx(),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf not in ("num_attention_heads", "num_key_value_heads")),
        Key("heads", "attention.head_count", LAYER_SIZES),
        Key("kv_heads", "attention.head_count_kv", LAYER_SIZES),
        Key("sliding_window", "attention.sliding_window"),
        Key(WINDOW_LAYERS, WINDOWS, SWITCHES_LIST),
        Key(LOCAL_BASE, "rope.freq_base_swa", "f32"),
        Key("moe_num_experts", "expert_count"),
        Key("moe_top_k", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("share_expert_dim", "expert_shared_feed_forward_length"),
        Key("moe_router_scaling_factor", "expert_weights_scale", "f32", required=False),
        Key("norm_expert_weight", "expert_weights_norm", "bool", required=False),
        Key("gating_function", "expert_gating_func", required=False),
        Key("dense_layers", "leading_dense_block_count", required=False),
        Key("moe_every_n_layer", "moe_every_n_layers", required=False),
        Key(LIMITS[0], "swiglu_clamp_exp", NUMBERS_LIST, required=False),
        Key(LIMITS[1], "swiglu_clamp_shexp", NUMBERS_LIST, required=False),
    )
    fixed: ClassVar = {
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_head_wise_attn_gate": True,
        "use_moe": True, "use_moe_router_bias": True, "moe_router_activation": "sigmoid", "zero_centered": True,
    }  # fmt: skip
    unstated: ClassVar = {
        "moe_router_scaling_factor": 1.0, "norm_expert_weight": True, "rms_norm_eps": 1e-5, "moe_every_n_layer": 1,
    }  # fmt: skip
    own_names: ClassVar = {name: own for name, own in SPELLED.items() if name != "n_routed_experts"}
    kinds: ClassVar = {
        DENSE: Layers(setting=KINDS, values=("dense",)),
        MIXED: Layers(setting=KINDS, values=("sparse",)),
    }
    by_kind: ClassVar = {
        "heads": {FULL: "num_attention_heads", OTHERS: LOCAL_HEADS},
        "kv_heads": {FULL: "num_attention_groups", OTHERS: LOCAL_GROUPS},
    }
    products: ClassVar = {"q_rows": ("heads", "head_dim"), "kv_rows": ("kv_heads", "head_dim")}
    derived = (
        *Declared.derived, *own_names, WINDOW_LAYERS, "heads", "num_nextn_predict_layers", BEHIND, WITH_ONE,
        KINDS, LOCAL_HEADS, LOCAL_GROUPS, "gating_function", "dense_layers", SHARE, ROTATED, *OWN_OF_TRANSFORMERS,
    )  # fmt: skip
    constants: ClassVar[Sequence[str]] = ("rope_freqs.weight",)
    predicting = "num_nextn_predict_layers"
    other_modalities: ClassVar[Sequence[str]] = ("vision_model.*", "vit_large_projector.*")
    windowless = ()

    def usual(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        own = super().usual(settings)
        for name, of_layers in (("num_attention_heads", "heads"), ("num_key_value_heads", "kv_heads")):
            stated = own.get(of_layers)
            if name not in own and stated:
                own[name] = stated[0] if isinstance(stated, list) else stated
        return own | ({ROTATED: own["head_dim"] // 2} if type(own.get("head_dim")) is int else {})

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        stated = {name: value for name, value in text_config(config).items() if value is not None}
        check_settings(
            [
                *(Key(name, "") for name in ("num_hidden_layers", "num_attention_heads", "head_dim")),
                Key(self.predicting, "", required=False),
            ],
            stated,
            CONFIG,
        )
        own = _trunk({**{new: stated.pop(old) for old, new in SPELLED.items() if old in stated}, **stated})
        kinds = layer_types(own)
        settings = super().spelled({**own, **_rotation(own, kinds), **_heads(own)})
        count = settings["num_hidden_layers"]
        settings |= {name: _listed(settings[name], count) for name in self.by_kind}
        sparse = _expert_layers(settings, count)
        for name in LIMITS:
            if name in settings:
                settings[name] = [0.0 if each is None else each for each in _of_layers(settings[name], count, name)]
                check_settings([Key(name, "", NUMBERS_LIST)], settings, CONFIG)
                check(min(settings[name], default=0) >= 0, name, settings[name], "limits from 0 on")
        settings[KINDS] = ["sparse" if layer in sparse else "dense" for layer in range(count)]
        return {**settings, "dense_layers": min(sparse, default=0), "gating_function": SIGMOID}

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        heads, groups = settings[LOCAL_HEADS], settings[LOCAL_GROUPS]
        legal = type(heads) is int and type(groups) is int and 0 < groups <= heads and heads % groups == 0
        place = OTHER if model.layout != "gguf" else f"{self.architecture}.attention.head_count"
        check(legal, place, heads, f"a multiple of the {groups} key-value heads", model.layout)
        return settings

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        check(
            SLIDING in settings["layer_types"], "layer_types", FULL, "a layer with a window, which llama.cpp requires"
        )

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().implied(settings), "query_pre_attn_scalar": settings["head_dim"]}

    def moved(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        if not settings.get(WITH_ONE):
            return super().moved(settings)
        layers = range(settings["num_hidden_layers"])
        names = ["model.norm.", *(f"model.layers.{layer}.{each}." for layer in layers for each in NORMS)]
        return {name: f"{MLX_NORMS}{name}" for name in names}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        if layout == "gguf":
            return carried
        kept = restored_files(model.meta)[0] if model.layout == "gguf" else model.assets
        assets, source = carried.assets, kept.get(CONFIG)
        return evolve(
            carried,
            assets=LazyAssets(
                assets, lambda name: _published(assets[name], source) if name == CONFIG else assets[name]
            ),
        )

    def _rotary(self, settings: Mapping[str, Any]) -> int:
        return int(settings["head_dim"])

    def _from_config(self, model: Model) -> dict[str, Any]:
        is_mlx = any(".mlp.switch_mlp." in name for name in model.tensors)
        return super()._from_config(model) | ({WITH_ONE: True} if is_mlx else {})

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        count, size = settings["num_hidden_layers"], settings["head_dim"]
        settings.setdefault("moe_every_n_layer", 1)
        for name in LIMITS:
            if isinstance(settings.get(name), list):
                settings[name] = settings[name][:count]
        settings |= {name: _listed(settings[name], count) for name in self.by_kind}
        for name in [name for name in LIMITS if name in settings and not any(settings[name])]:
            del settings[name]
        settings.setdefault(LOCAL_HEADS, settings["num_attention_heads"])
        settings.setdefault(LOCAL_GROUPS, settings["num_key_value_heads"])
        sparse = [layer for layer in range(count) if f"blk.{layer}.ffn_gate_inp.weight" in model.tensors]
        kinds = settings["layer_types"]
        settings |= {
            KINDS: ["sparse" if layer in sparse else "dense" for layer in range(count)],
            EXPERT_LAYERS: ",".join(map(str, sparse)),
            "dense_layers": min(sparse, default=0),
            SHARES: [ROTATED_SHARES[kind] for kind in kinds],
            OTHER: _other(settings[LOCAL_HEADS], settings[LOCAL_GROUPS], size),
            "moe_router_scaling_factor": settings.get("moe_router_scaling_factor") or 1.0,
            "norm_expert_weight": settings.get("norm_expert_weight", False),
        }
        if settings.get(SCALING):
            settings[SCALED_KINDS] = [FULL]
        if settings["rotary_dim"] != size:
            settings[INEXPRESSIBLE] = self._inexpressible("rope.dimension_count", expected=size)
        if settings.setdefault("gating_function", SIGMOID) != SIGMOID:
            settings[INEXPRESSIBLE] = self._inexpressible("expert_gating_func", expected=SIGMOID)
        return settings


def _trunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, their lists without the values of layers that predict more tokens, as Transformers reads them."""
    count, behind = config["num_hidden_layers"], config.get("num_nextn_predict_layers", 0)
    padded = count + behind if type(behind) is int else count
    names = ("layer_types", KINDS, BASE, SHARES, *LIMITS)
    cut = {name: config[name][:count] for name in names if _length(config.get(name)) == padded}
    return {**config, **cut}


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None


def _listed(sizes: Any, count: int) -> list[Any]:
    """The size of each layer: llama.cpp's converter lists them even if they are equal."""
    return sizes if isinstance(sizes, list) else [sizes] * count


def _of_layers(values: Any, count: int, name: str) -> list[Any]:
    check(_length(values) == count, name, values, f"a list of {count}, one for each layer")
    return list(values)


def _by_kind(values: Any, kinds: Sequence[str], name: str) -> dict[str, Any]:
    """The one value of all layers of each kind; that of the other kind if there is no such layer."""
    listed = _of_layers(values, len(kinds), name) if isinstance(values, list) else [values] * len(kinds)
    found: dict[str, Any] = {}
    for kind, value in zip(kinds, listed):
        check(found.setdefault(kind, value) == value, name, values, f"one value for all layers with {kind}")
    return {kind: found.get(kind, listed[0] if listed else None) for kind in (FULL, SLIDING)}


def _rotation(config: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
    """The bases of both kinds of layers, and the scaling of those without a window, from either spelling."""
    rope, scaling = config.get(ROPE), config.get(SCALING)
    check(scaling is None or isinstance(scaling, Mapping), SCALING, scaling, "an object")
    if isinstance(rope, Mapping) and any(kind in rope for kind in (FULL, SLIDING)):
        each = {kind: rope.get(kind, {}) for kind in (FULL, SLIDING)}
        for kind, values in each.items():
            check(isinstance(values, Mapping), f"{ROPE} {kind}", values, "an object")
        bases = {kind: values.get(BASE, 10000.0) for kind, values in each.items()}
        shares = {kind: values.get(SHARE, 1.0) for kind, values in each.items()}
        check(not rope_kind(each[SLIDING]), f"{ROPE} {SLIDING}", rope_kind(each[SLIDING]), "no scaling")
        scaling = {name: value for name, value in each[FULL].items() if name not in (BASE, SHARE)}
    else:
        bases = _by_kind(config.get(BASE, 10000.0), kinds, BASE)
        if LOCAL_BASE in config and not isinstance(config[BASE], list):
            bases[SLIDING] = config[LOCAL_BASE]
        shares = _by_kind(config.get(SHARES, 1.0), kinds, SHARES)
        scaled = config.get(SCALED_KINDS)
        is_said = not rope_kind(scaling if isinstance(scaling, dict) else None) or scaled == [FULL]
        check(is_said, SCALED_KINDS, scaled, f"{[FULL]}: only these layers are scaled")
    for kind in dict.fromkeys(kinds):
        check(shares[kind] == ROTATED_SHARES[kind], SHARES, shares[kind], f"{ROTATED_SHARES[kind]} with {kind}")
        check(is_positive(bases[kind]), BASE, bases[kind], "positive numbers")
    kind = rope_kind(scaling if isinstance(scaling, dict) else None)
    check(kind in ("", "llama3"), SCALING, kind, "none, or llama3")
    own = {SCALING: scaling, SCALED_KINDS: [FULL]} if kind else {SCALING: None}
    return {
        ROPE: None, BASE: bases[FULL], LOCAL_BASE: bases[SLIDING], SHARES: [ROTATED_SHARES[each] for each in kinds],
        **own,
    }  # fmt: skip


def _heads(config: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of heads in layers with a window."""
    other, size = config.get(OTHER, {}), config["head_dim"]
    check(isinstance(other, dict), OTHER, other, "an object")
    groups = config.get("num_attention_groups", config["num_attention_heads"])
    heads = other.get("num_attention_heads", config.get("num_sliding_attention_heads", config["num_attention_heads"]))
    other = {**_other(heads, other.get("num_attention_groups", groups), size), **other}
    check(other["head_dim"] == size, f"{OTHER} head_dim", other["head_dim"], f"{size}, as in other layers")
    for name in ("num_attention_heads", "num_attention_groups"):
        check(type(other[name]) is int and other[name] > 0, f"{OTHER} {name}", other[name], "a positive integer")
    stated = config.get(OF_LAYERS, {})
    check(isinstance(stated, dict), OF_LAYERS, stated, "an object")
    same = all(each == {"num_attention_heads": heads} for each in stated.values())
    check(same, OF_LAYERS, stated, f"num_attention_heads of {heads}, as in {OTHER}")
    own = {LOCAL_HEADS: heads, LOCAL_GROUPS: other["num_attention_groups"]}
    return {"num_attention_groups": groups, OTHER: other, **own}


def _other(heads: object, groups: object, size: object) -> dict[str, Any]:
    return {
        "attention_type": SLIDING, "num_attention_heads": heads, "num_attention_groups": groups, "head_dim": size,
        "true_head_dim": size,
    }  # fmt: skip


def _expert_layers(settings: dict[str, Any], count: int) -> set[int]:
    """The layers with experts, which config.json gets as a text of numbers."""
    kinds, stated = settings.get(KINDS), settings.get(EXPERT_LAYERS)
    if stated is None:
        listed = Switches(KINDS, "sparse", "dense").of(kinds, count)
        stated = [layer for layer, each in enumerate(listed) if each]
    numbers = [each for each in stated.split(",") if each.strip()] if isinstance(stated, str) else stated
    legal = isinstance(numbers, list) and all(str(each).strip().isdecimal() for each in numbers)
    check(legal, EXPERT_LAYERS, stated, "numbers of layers, separated by commas")
    sparse = {int(each) for each in numbers if int(each) < count}
    if not isinstance(stated, str):
        settings[EXPERT_LAYERS] = ",".join(map(str, sorted(sparse)))
    return sparse


def _published(data: bytes, source: bytes | None) -> bytes:
    """A config.json with a base for each layer, as published; the source's own bytes if they say the same."""
    config = json.loads(data)
    local = config.pop(LOCAL_BASE, None)
    if local is not None and not isinstance(config[BASE], list):
        config[BASE] = [local if kind == SLIDING else config[BASE] for kind in config["layer_types"]]
    return source if source is not None and json.loads(source) == config else dump_json(config)
