"""MiMo V2: windows with sinks in most layers, which have more key-value heads, and values smaller than keys.

Longer than a table, because the published config.json has lists of 0 and 1 and names of its own for layers with a
window, and Transformers has others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Join, Model, Rule

from squish_core.api import ErrorCode, FormatError, Options, UsageError

from ..config.keys import COMMON, LAYER_SIZES, MAX_F32, SWITCHES_LIST, Key, check_settings
from ..config.rope import rope_kind
from ..config.spelling import BEHIND, FULL, SLIDING, text_config
from ..config_file import dump_json
from ..declared import OTHERS, WINDOW_LAYERS, Declared, Layers, Switches
from ..rules import fused_experts, fused_gguf_experts, stacked_experts
from ..settings import CONFIG, ELSEWHERE, INEXPRESSIBLE, MOST_BLOCKS, WINDOWS
from ..tables import BLOCK, LAYER, SWITCH, Row, embeddings, experts, gated_mlp, norm, router

WINDOWED, DENSE, MIXED = "windowed", "dense", "mixed"
ROPE, FACTOR, SHARE, SCALE = "rope_parameters", "partial_rotary_factor", 0.334, "attention_value_scale"
GROUPS, LOCAL_GROUPS = "num_key_value_heads", "swa_num_key_value_heads"
LISTS = {
    "layer_types": ("hybrid_layer_pattern", (FULL, SLIDING)),
    "mlp_layer_types": ("moe_layer_freq", ("dense", "sparse")),
}
"""Transformers' list of the kinds of layers -> the published one of 0 and 1, and the kinds."""
DEFAULTS = {"head_dim": 192, "v_head_dim": 128, SCALE: 0.707}
"""Transformers' defaults beside those of every family."""
PREVIOUS = "sliding_window_size"
"""The window in the published config.json."""
SINKS = "self_attn.attention_sink_bias"


def _of_kind(kind: str, *rows: Row) -> tuple[Row, ...]:
    return tuple(evolve(row, kind=kind) for row in rows)


class MimoV2(Declared):
    """MiMo V2 Flash."""

    model_type, architecture, class_name = "mimo_v2_flash", "mimo2", "MiMoV2FlashForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        Row("self_attn.q_proj", "attn_q", ("q_rows", "hidden_size")),
        Row("self_attn.k_proj", "attn_k", ("kv_rows", "hidden_size")),
        Row("self_attn.v_proj", "attn_v", ("v_rows", "hidden_size")),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", "o_columns")),
        Row(SINKS, "attn_sinks", ("num_attention_heads",), suffix="", kind=WINDOWED),
        norm("post_attention_layernorm", "ffn_norm"),
        *_of_kind(DENSE, *gated_mlp()),
        *_of_kind(
            MIXED,
            router("mlp.gate"),
            Row("mlp.gate.e_score_correction_bias", "exp_probs_b", ("experts",), suffix="", gguf_suffix=".bias"),
            *experts("mlp", *SWITCH, "moe_intermediate_size"),
        ),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "gguf": (
            *fused_gguf_experts("mlp", *SWITCH[:2], "moe_intermediate_size"),
            Rule(
                f"{BLOCK}attn_qkv.weight",
                Join(
                    tuple(
                        (f"{LAYER}self_attn.{part}_proj.weight", rows)
                        for part, rows in (("q", "q_rows"), ("k", "kv_rows"), ("v", "v_rows"))
                    )
                ),
                reading=True,
            ),
        ),
        "hf": (
            *fused_experts("mlp", *SWITCH, "moe_intermediate_size"),
            Rule(f"{LAYER}self_attn.sinks", f"{LAYER}{SINKS}", reading=True),
        ),
        "mlx": stacked_experts("mlp", "switch_mlp", zip(SWITCH, SWITCH), reading=False),
        "uqff": stacked_experts("mlp", "experts", zip(SWITCH, SWITCH), reading=False),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf != GROUPS and key.gguf != "attention.value_length"),
        Key("kv_heads", "attention.head_count_kv", LAYER_SIZES),
        Key("v_head_dim", "attention.value_length"),
        Key(SCALE, "attention.value_scale", "f32", required=False),
        Key("sliding_window", "attention.sliding_window"),
        Key(WINDOW_LAYERS, WINDOWS, SWITCHES_LIST),
        Key("rope_local_base_freq", "rope.freq_base_swa", "f32"),
        Key("n_routed_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
    )
    fixed: ClassVar = {
        "hidden_act": "silu", "attention_bias": False, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "n_shared_experts": None, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
    }  # fmt: skip
    unstated: ClassVar = {
        "rope_theta": 5000000.0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    }  # fmt: skip
    kinds: ClassVar = {
        WINDOWED: Layers(setting="layer_types", values=(SLIDING,)),
        DENSE: Layers(setting="mlp_layer_types", values=("dense",)),
        MIXED: Layers(setting="mlp_layer_types", values=("sparse",)),
    }
    by_kind: ClassVar = {"kv_heads": {FULL: GROUPS, OTHERS: LOCAL_GROUPS}}
    products: ClassVar = {
        "kv_rows": ("kv_heads", "head_dim"),
        "v_rows": ("kv_heads", "v_head_dim"),
        "o_columns": ("num_attention_heads", "v_head_dim"),
    }
    derived = (
        *Declared.derived,
        WINDOW_LAYERS,
        "rope_scaling",
        "rope_local_base_freq",
        "num_nextn_predict_layers",
        BEHIND,
    )
    own_lists = tuple(LISTS)
    predicting = "num_nextn_predict_layers"
    more_left_out = ("model.mtp.*",)
    rotated_by_default = SHARE
    windowless = ()

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        stated = {name: value for name, value in text_config(config).items() if value is not None or name == SCALE}
        check_settings([Key("num_hidden_layers", "block_count"), Key(LOCAL_GROUPS, "", required=False)], stated, CONFIG)
        count = stated["num_hidden_layers"]
        own = {**DEFAULTS, **_usual_kinds(count), **stated, **_rotation(stated)}
        for name, (flags, (off, on)) in LISTS.items():
            if flags in stated:
                switches = Switches(flags, 1, 0).of(stated[flags], count)
                own[name] = [on if each else off for each in switches]
                check(stated.get(name, own[name]) == own[name], name, stated.get(name), f"{own[name]}, as {flags} says")
        base = stated.get("swa_rope_theta", 1)
        check(is_positive(base), "swa_rope_theta", base, "a positive number")
        for usual, published in (("rms_norm_eps", "layernorm_epsilon"), ("sliding_window", PREVIOUS)):
            value = stated.get(published, 1)
            check(is_positive(value), published, value, "a positive number")
            if published in stated:
                own.setdefault(usual, value + 1 if published == PREVIOUS else value)  # with the token itself
        if type(own.get(GROUPS)) is int:
            own.setdefault(LOCAL_GROUPS, 2 * own[GROUPS])
        own[SCALE] = 1.0 if own[SCALE] is None else own[SCALE]
        settings = super().spelled({"rms_norm_eps": 1e-5, **own})
        Switches("mlp_layer_types", "sparse", "dense").of(settings["mlp_layer_types"], settings["num_hidden_layers"])
        return settings

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        heads, groups = settings["num_attention_heads"], settings[LOCAL_GROUPS]
        legal = type(groups) is int and groups > 0 and heads % groups == 0
        place = LOCAL_GROUPS if model.layout != "gguf" else f"{self.architecture}.attention.head_count_kv"
        check(legal, place, groups, f"a number that divides the {heads} heads", model.layout)
        return settings

    def _rope_of_kinds(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        theta, share = settings.get("rope_theta"), settings.get(FACTOR)
        bases = {FULL: theta, SLIDING: settings.get("rope_local_base_freq")}
        return {
            ROPE: {kind: {"rope_type": "default", "rope_theta": base, FACTOR: share} for kind, base in bases.items()},
            "swa_rope_theta": bases[SLIDING],
        }

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        same = {f"swa_{name}": settings.get(name) for name in ("num_attention_heads", "head_dim", "v_head_dim")}
        return {**super().implied(settings), **same}

    def check_engine(self, layout: str, settings: Mapping[str, Any]) -> None:
        super().check_engine(layout, settings)
        if layout == "mlx" and {*settings["layer_types"]} != {FULL, SLIDING}:
            raise UsageError(
                "has no layers of one kind, and mlx-lm runs only models with both",
                part=f"{CONFIG} layer_types",
                code=ErrorCode.ENGINE,
                expected=f"{FULL} and {SLIDING}",
                hint=ELSEWHERE,
            )

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        config = model.config()
        is_for_mlx = any(".switch_mlp." in name for name in model.tensors) or "quantization" in config
        if is_for_mlx and layout != "mlx" and PREVIOUS in config:  # to which Transformers adds one, and mlx-lm does not
            config.setdefault("sliding_window", config.pop(PREVIOUS))
            model = evolve(model, assets={**model.assets, CONFIG: dump_json(config)})
        return super().carry(model, settings, layout, options)

    def ignored(self, settings: Mapping[str, Any], layout: str) -> tuple[str, ...]:
        window, previous = settings["sliding_window"], settings.get(PREVIOUS)
        notes = super().ignored(settings, layout)
        if layout != "gguf" or previous != window:
            return notes
        return (*notes, f"llama.cpp has windows of {window} tokens, and Transformers of {window + 1}")

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        count = settings["num_hidden_layers"]
        mixed = [f"blk.{layer}.ffn_gate_inp.weight" in model.tensors for layer in range(count)]
        settings["mlp_layer_types"] = ["sparse" if each else "dense" for each in mixed]
        settings[SCALE] = settings.get(SCALE) or 1.0
        if GROUPS not in settings or SLIDING not in settings["layer_types"]:
            settings.setdefault(GROUPS, settings[LOCAL_GROUPS] // 2)
            settings[LOCAL_GROUPS] = 2 * settings[GROUPS]
        if settings[LOCAL_GROUPS] != 2 * settings[GROUPS]:
            settings[INEXPRESSIBLE] = self._inexpressible(
                "attention.head_count_kv", expected="twice as many with a window"
            )
        if settings.get("rope_scaling") is not None:
            settings[INEXPRESSIBLE] = self._inexpressible("rope.scaling.type", expected="no scaling")
        return settings


def _usual_kinds(count: int) -> dict[str, list[str]]:
    """The kinds of layers that Transformers takes if config.json does not state them."""
    layers = range(min(count, MOST_BLOCKS))
    return {
        "layer_types": [FULL if layer == 0 or (layer + 1) % 6 == 0 else SLIDING for layer in layers],
        "mlp_layer_types": ["sparse" if layer else "dense" for layer in layers],
    }


def _rotation(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The bases and the share of rotated values, which is one for all layers; FormatError for any scaling."""
    rope = stated.get(ROPE)
    if not isinstance(rope, Mapping) or FULL not in rope:
        kind = rope_kind(stated.get("rope_scaling") if isinstance(stated.get("rope_scaling"), dict) else None)
        check(not kind, "rope_scaling", kind, "no scaling")
        return {"rope_local_base_freq": stated.get("swa_rope_theta", 10000.0), FACTOR: stated.get(FACTOR, SHARE)}
    shares = []
    for kind in (FULL, SLIDING):
        each: Any = rope.get(kind)
        check(isinstance(each, Mapping), f"{ROPE} {kind}", each, "an object with rope_theta")
        check(not rope_kind(each), f"{ROPE} {kind}", rope_kind(each), "no scaling")
        shares.append(each.get(FACTOR, SHARE))
        legal = type(shares[-1]) in (int, float) and 0 < shares[-1] <= 1
        check(legal, f"{ROPE} {kind} {FACTOR}", shares[-1], "more than 0 and at most 1")
    check(shares[0] == shares[1], f"{ROPE} {SLIDING} {FACTOR}", shares[1], f"{shares[0]}, as in other layers")
    return {FACTOR: shares[0]}


def is_positive(value: Any) -> bool:
    """Return whether a value is a positive number that f32 has."""
    return type(value) in (int, float) and 0 < value <= MAX_F32


def check(legal: bool, place: str, value: Any, expected: str, layout: str = "hf") -> None:
    """Raise FormatError for a setting that the engines compute differently."""
    if not legal:
        raise FormatError(
            "is not what the engines compute with",
            part=place if layout == "gguf" else f"{CONFIG} {place}",
            code=ErrorCode.CONFIG,
            expected=expected,
            found=repr(value)[:60],
        )
