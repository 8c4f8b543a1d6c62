"""Kimi Linear: layers of a delta rule with a decay for each channel, and a few of latent attention without positions.

The family needs more than a table: config.json numbers the layers of both kinds from 1, in an object with the sizes of
the delta rule, or lists their kinds as Transformers 5 does; both kinds have queries and outputs of their own sizes
under the same names, and mlx-lm has names of its own for convolutions and experts.

Source: llama.cpp, `KimiLinearModel` in conversion/kimi_linear.py and src/models/kimi-linear.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Join, Model, Reshape, Rule, Stack, Transpose

from squish_core.api import ErrorCode, FormatError, UsageError

from ..config.keys import SIZES, SIZES_LIST, VOCABULARY, Key, check_settings
from ..config.spelling import FULL
from ..declared import Leading
from ..settings import CONFIG, ELSEWHERE, MOST_BLOCKS
from ..tables import BLOCK, LAYER, SWITCH, Row, embeddings, experts, gated_mlp, norm, router
from .deepseek import ATTENTION, DENSE, EXPERTS, FUSED, FUSED_RULE, KEYS, LATENT, SIGMOID, VALUES, Deepseek

LINEAR = "linear_attention"
HEADS, SIZE, TAPS = "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"
PART = "linear_attn_config"
OWN = {HEADS: "num_heads", SIZE: "head_dim", TAPS: "short_conv_kernel_size"}
"""Sizes of the delta rule, as Transformers 5 and as the object in published configs name them."""
NUMBERED = {FULL: "full_attn_layers", LINEAR: "kda_layers"}
"""Kind of layers -> the list of their numbers, from 1, in that object."""
ALIASES = {
    "max_position_embeddings": ("model_max_length",), "n_routed_experts": ("num_experts", "num_local_experts"),
    "num_experts_per_tok": ("num_experts_per_token",), "n_shared_experts": ("num_shared_experts",),
    "norm_topk_prob": ("moe_renormalize",), "n_group": ("num_expert_group",),
    "scoring_func": ("moe_router_activation_func",),
}  # fmt: skip
COUNTED = (*(name for names in ALIASES.values() for name in names if name.startswith(("num_", "model_"))),)
"""Settings under the family's own names that are sizes."""
OF_LAYERS = ("layer_queries", "layer_values")
"""Sizes that differ between layers."""
COUNTS = ("num_hidden_layers", "first_k_dense_replace", "head_dim")
MIXED = "block_sparse_moe"
MATRICES = ("w1", "w3", "w2")
UNADAPTED = (
    *(f"{each}_proj" for each in ("q", "k", "v", "o", "q_a", "q_b", "f_a", "f_b", "b", "g_a", "g_b")),
    "kv_a_proj_with_mqa", "lm_head",
)  # fmt: skip
"""llama.cpp applies adapters to no projection of the delta rule, and to the output alone of latent attention."""
SAVED = tuple(Rule(f"{LAYER}{MIXED}.{part}.weight", f"{LAYER}mlp.{part}.weight", reading=True) for part in SWITCH)
"""Dense layers as Transformers 5 saves them."""


def _of(kind: str, *rows: Row) -> tuple[Row, ...]:
    return tuple(evolve(row, kind=kind) for row in rows)


def _delta(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(f"self_attn.{hf}", gguf, shape, kind=LINEAR, **fields)


class KimiLinear(Deepseek):
    """Kimi Linear 48B-A3B."""

    model_type, architecture, class_name = "kimi_linear", "kimi-linear", "KimiLinearForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        Row("self_attn.q_proj", "attn_q", (OF_LAYERS[0], "hidden_size")),
        *(_delta(f"{each}_proj", f"attn_{each}", "inner", "hidden_size") for each in "kv"),
        *(
            _delta(
                f"{each}_conv1d", f"ssm_conv1d_{each}", "inner", "one", TAPS,
                gguf_shape=("one", "inner", "one", TAPS), either_shape=True, f32=True,
            )
            for each in "qkv"
        ),
        _delta("f_a_proj", "ssm_f_a", SIZE, "hidden_size"),
        _delta("f_b_proj", "ssm_f_b", "inner", SIZE),
        _delta("b_proj", "ssm_beta", HEADS, "hidden_size"),
        _delta(
            "A_log", "ssm_a", "one", "one", HEADS, "one", suffix="", gguf_suffix="", gguf_shape=(HEADS, "one"),
            either_shape=True, neg_exp=True, f32=True,
        ),
        _delta("dt_bias", "ssm_dt", "inner", suffix="", gguf_suffix=".bias"),
        _delta("g_a_proj", "ssm_g_a", SIZE, "hidden_size"),
        _delta("g_b_proj", "ssm_g_b", "inner", SIZE),
        _delta("o_norm", "ssm_norm", SIZE),
        *(
            evolve(row, kind=FULL)
            for row in Deepseek.rows
            if row.hf.startswith("self_attn.") and row.hf not in ("self_attn.q_proj", "self_attn.o_proj")
        ),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", OF_LAYERS[1])),
        norm("post_attention_layernorm", "ffn_norm"),
        *_of(DENSE, *gated_mlp()),
        *_of(
            EXPERTS,
            router(f"{MIXED}.gate"),
            Row(f"{MIXED}.gate.e_score_correction_bias", "exp_probs_b", ("experts",), suffix="", gguf_suffix=".bias"),
            *experts(MIXED, *MATRICES, "moe_intermediate_size"),
            Row(f"{MIXED}.shared_experts.gate_proj", "ffn_gate_shexp", ("shared_size", "hidden_size")),
            Row(f"{MIXED}.shared_experts.up_proj", "ffn_up_shexp", ("shared_size", "hidden_size")),
            Row(f"{MIXED}.shared_experts.down_proj", "ffn_down_shexp", ("hidden_size", "shared_size")),
        ),
    )  # fmt: skip
    predicting = ""
    more: ClassVar = {
        "gguf": (
            Rule(f"{BLOCK}attn_kv_b.weight", FUSED, reading=True),
            Rule(
                f"{BLOCK}attn_qkv.weight",
                Join(tuple((f"{ATTENTION}{each}_proj.weight", "inner") for each in "qkv")),
                reading=True,
            ),
        ),
        "hf": (*FUSED_RULE, *SAVED),
        "mlx": (
            *FUSED_RULE,
            *SAVED,
            Rule(f"{ATTENTION}embed_q.weight", Transpose(KEYS), reading=True),
            Rule(f"{ATTENTION}unembed_out.weight", VALUES, reading=True),
            *(
                Rule(
                    f"{ATTENTION}{each}_conv.conv.weight",
                    Reshape(f"{ATTENTION}{each}_conv1d.weight", ("inner", TAPS, "one")),
                )
                for each in "qkv"
            ),
            Rule(f"{LAYER}mlp.gate.weight", f"{LAYER}{MIXED}.gate.weight"),
            Rule(f"{LAYER}mlp.e_score_correction_bias", f"{LAYER}{MIXED}.gate.e_score_correction_bias"),
            *(
                Rule(f"{LAYER}mlp.switch_mlp.{part}.weight", Stack(f"{LAYER}{MIXED}.experts.{{e}}.{own}.weight"))
                for part, own in zip(SWITCH, MATRICES)
            ),
            *(
                Rule(f"{LAYER}mlp.shared_experts.{part}.weight", f"{LAYER}{MIXED}.shared_experts.{part}.weight")
                for part in SWITCH
            ),
        ),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in SIZES if key.hf not in ("num_key_value_heads", "head_dim", "is_causal")),
        Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", "f32"),
        Key("latent_heads", "attention.head_count_kv", SIZES_LIST),
        Key("value_size", "attention.value_length", required=False),
        *(key for key in LATENT if key.hf not in ("latent_heads", "latent_value_size")),
        Key(TAPS, "ssm.conv_kernel"),
        Key(SIZE, "kda.head_dim"),
        Key("first_k_dense_replace", "leading_dense_block_count", required=False),
        Key("n_routed_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("n_shared_experts", "expert_shared_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("routed_scaling_factor", "expert_weights_scale", "f32", required=False),
        Key("gating_function", "expert_gating_func"),
        Key("groups", "expert_group_count", required=False),
        Key("topk_group", "expert_group_used_count", required=False),
        VOCABULARY,
    )
    fixed: ClassVar = {
        "hidden_act": "silu", "moe_layer_freq": 1, "attention_bias": False, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "mla_use_nope": True, "num_nextn_predict_layers": 0,
        "rope_scaling": None,
    }  # fmt: skip
    unstated: ClassVar = {
        "n_shared_experts": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.446, "norm_topk_prob": True,
        "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "mla_use_nope": True,
    }  # fmt: skip
    aliases: ClassVar = ALIASES
    rotary_setting = "qk_rope_head_dim"
    derived = (
        *(name for name in Deepseek.derived if name != "head_dim"), *ALIASES, HEADS, SIZE, TAPS, "value_size", "groups",
        "linear_kinds",
    )  # fmt: skip
    unadapted: ClassVar[Sequence[str]] = UNADAPTED

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        return settings["linear_kinds"]

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        dense, count = settings["first_k_dense_replace"] or 0, settings["num_hidden_layers"]
        if kind in (DENSE, EXPERTS):
            return range(min(dense, count)) if kind == DENSE else range(dense, count)
        return super().layers_of(kind, settings)

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        ranked = bool(settings.get("q_lora_rank"))
        names = ("q_proj",) if ranked else ("q_a_proj", "q_a_layernorm", "q_b_proj")
        attentive = self.layers_of(FULL, settings)
        unranked = {f"model.layers.{layer}.self_attn.{name}.weight" for layer in attentive for name in names}
        return {*super(Deepseek, self).absent(settings), *unranked}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        inner, heads = settings[HEADS] * settings[SIZE], settings["num_attention_heads"]
        keys, values = settings["whole_key_size"], settings["v_head_dim"]
        kinds = settings["linear_kinds"]
        own: dict[str, Any] = {
            "inner": inner, "one": 1, **{name: settings[name] for name in OWN},
            OF_LAYERS[0]: [heads * keys if kind == FULL else inner for kind in kinds],
            OF_LAYERS[1]: [heads * values if kind == FULL else inner for kind in kinds],
        }  # fmt: skip
        return super().sizes({**settings, **own}) | own

    def _factor(self, settings: Mapping[str, Any], name: str) -> int | list[int]:
        own: int | list[int] = settings[name] if name in OF_LAYERS else super()._factor(settings, name)
        return own

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        kinds, part = config.get("mlp_layer_types"), _part(config)
        dense = config.get("first_k_dense_replace")
        if dense is None:
            dense = [*kinds, "sparse"].index("sparse") if isinstance(kinds, list) else 1
        own = {name: part[inner] for name, inner in OWN.items() if inner in part}
        settings = super().spelled({**config, **own, "first_k_dense_replace": dense})
        check_settings([Key(name, "", required=False) for name in COUNTED], config, CONFIG)
        settings["head_dim"] = settings["qk_rope_head_dim"] if config.get("head_dim") is None else config["head_dim"]
        check_settings([Key(name, "") for name in (*OWN, *COUNTS)], settings, CONFIG)
        count = settings["num_hidden_layers"]
        if count <= MOST_BLOCKS and isinstance(kinds, list):
            expected = Leading("first_k_dense_replace", "dense", "sparse").of(settings)
            if kinds != expected:
                raise FormatError(
                    "has dense layers elsewhere than at the start",
                    part=f"{CONFIG} mlp_layer_types",
                    code=ErrorCode.CONTRADICTION,
                    expected=f"{dense} dense, as first_k_dense_replace says, then sparse",
                    found=str(kinds)[:60],
                )
        settings |= {"gating_function": SIGMOID, "query_rank": settings.get("q_lora_rank") or None}
        return settings | _derived(settings, _kinds(config, part, count))

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        if settings[HEADS] != settings["num_attention_heads"]:
            raise FormatError(
                "differs from num_attention_heads, and llama.cpp has one number for both",
                part=f"{CONFIG} {PART} num_heads",
                code=ErrorCode.CONFIG,
                expected=settings["num_attention_heads"],
                found=settings[HEADS],
            )

    def check_engine(self, layout: str, settings: Mapping[str, Any]) -> None:
        super().check_engine(layout, settings)
        if layout == "mlx" and settings.get("q_lora_rank"):
            raise UsageError(
                "splits the matrices of queries, which mlx-lm does not run",
                part=f"{CONFIG} q_lora_rank",
                code=ErrorCode.ENGINE,
                expected="null",
                hint=ELSEWHERE,
            )

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        stated, count = settings["latent_heads"], settings["num_hidden_layers"]
        stated = stated * count if len(stated) == 1 else stated
        if len(stated) < count or not {*stated[:count]} <= {0, 1}:
            raise FormatError(
                "does not say of each layer whether it has latent attention",
                part=f"{self.architecture}.attention.head_count_kv",
                code=ErrorCode.CONTRADICTION,
                expected=f"0 or 1 for each of {count} layers",
                found=str(stated)[:60],
            )
        if settings["gating_function"] != SIGMOID:
            raise FormatError(
                "is another function than the sigmoid of every Kimi Linear",
                part=f"{self.architecture}.expert_gating_func",
                code=ErrorCode.CONFIG,
                expected=SIGMOID,
                found=settings["gating_function"],
            )
        del settings["topk_method"]
        settings |= {
            HEADS: settings["num_attention_heads"], "n_group": settings.get("groups") or 1, "norm_topk_prob": True,
            "head_dim": settings.get("value_size") or settings["qk_rope_head_dim"], "use_grouped_topk": True,
        }  # fmt: skip
        settings |= {names[0]: settings[name] for name, names in ALIASES.items() if name in settings}
        return settings | _derived(settings, [FULL if each else LINEAR for each in stated[:count]])


def _part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with the sizes of the delta rule; empty if there is none."""
    part = config.get(PART)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise FormatError(
            "is not an object",
            part=f"{CONFIG} {PART}",
            code=ErrorCode.CONFIG,
            expected="an object",
            found=repr(part)[:60],
        )
    check_settings([Key(own, "", required=False) for own in OWN.values()], part, f"{CONFIG} {PART}")
    for name, own in OWN.items():
        if own in part and config.get(name, part[own]) != part[own]:
            raise FormatError(
                f"contradicts {name}",
                part=f"{CONFIG} {PART} {own}",
                code=ErrorCode.CONTRADICTION,
                expected=config[name],
                found=part[own],
            )
    return part


def _kinds(config: Mapping[str, Any], part: Mapping[str, Any], count: int) -> list[str]:
    """The kind of each layer: a list, or the numbers of the layers of either kind."""
    found = []
    if count <= MOST_BLOCKS and any(name in part for name in NUMBERED.values()):
        numbers = {kind: part.get(name) for kind, name in NUMBERED.items()}
        both = [each for stated in numbers.values() if isinstance(stated, list) for each in stated]
        if not all(type(each) is int for each in both) or sorted(both) != [*range(1, count + 1)]:
            raise FormatError(
                "does not name each layer once, counted from 1",
                part=f"{CONFIG} {PART}",
                code=ErrorCode.CONFIG,
                expected=f"the numbers 1 to {count} in {' and '.join(NUMBERED.values())}",
                found=str(numbers)[:60],
            )
        found.append([FULL if layer in (numbers[FULL] or ()) else LINEAR for layer in range(1, count + 1)])
    if (stated := config.get("layer_types")) is not None or not found:
        if not isinstance(stated, list) or len(stated) != count or not all(each in (FULL, LINEAR) for each in stated):
            raise FormatError(
                "does not give a kind for each layer",
                part=f"{CONFIG} layer_types",
                code=ErrorCode.CONFIG,
                expected=f"{count} (num_hidden_layers) of {LINEAR} and {FULL}",
                found=str(stated)[:60],
            )
        found.append(stated)
    if found[0] != found[-1]:
        raise FormatError(
            f"contradicts {PART}",
            part=f"{CONFIG} layer_types",
            code=ErrorCode.CONTRADICTION,
            expected=str(found[0])[:60],
            found=str(found[-1])[:60],
        )
    return found[0]


def _derived(settings: Mapping[str, Any], kinds: list[str]) -> dict[str, Any]:
    """What follows from the kinds of layers and the sizes: the object of config.json, and what GGUF stores."""
    numbers = {name: [layer for layer, each in enumerate(kinds, 1) if each == kind] for kind, name in NUMBERED.items()}
    groups = settings.get("n_group")
    return {
        "linear_kinds": kinds, "latent_heads": [int(kind == FULL) for kind in kinds],
        "groups": groups if groups != 1 else None, "value_size": settings["head_dim"],
        PART: {**numbers, **{own: settings[name] for name, own in OWN.items()}},
    }  # fmt: skip
