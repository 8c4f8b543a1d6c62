"""Qwen 3.5 and 3.6, and Qwen3-Next: layers with a gated delta rule, and after a few of them one with gated attention.

These families need more than a table: the sizes of the delta rule are sums, the kinds of layers are a list in
config.json and an interval or a list in GGUF, and Qwen3-Next fuses its projections by groups of heads.

Source: llama.cpp, `Qwen3NextModel` and the classes for Qwen 3.5 in conversion/qwen.py, and their src/models/*.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Join, Model, Rule, Tile

from squish_core.api import ErrorCode, FormatError, Options

from ..config.keys import COMMON, MIXTURE, SWITCHES_LIST, Key, check_settings
from ..config.spelling import BEHIND, FULL
from ..declared import Declared
from ..rules import fused_experts, fused_gguf_experts, stacked_experts
from ..settings import BARE, CONFIG, MOST_BLOCKS
from ..tables import (
    LAYER,
    SWITCH,
    Row,
    attention,
    embeddings,
    experts,
    gated_mlp,
    head_norms,
    norm,
    prediction,
    router,
)
from .qwen import Qwen2VL

LINEAR = "linear_attention"
KEY_HEADS, VALUE_HEADS = "linear_num_key_heads", "linear_num_value_heads"
KEY_SIZE, VALUE_SIZE, TAPS = "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"
STATES = (
    Key(TAPS, "ssm.conv_kernel"),
    Key(KEY_SIZE, "ssm.state_size"),
    Key(KEY_HEADS, "ssm.group_count"),
    Key(VALUE_HEADS, "ssm.time_step_rank"),
    Key("inner_size", "ssm.inner_size"),
    Key("full_attention_interval", "full_attention_interval", required=False),
    Key("recurrent_layers", "attention.recurrent_layers", SWITCHES_LIST, required=False),
)
"""Sizes of the delta rule, and which layers have it."""
TILED = Tile("", KEY_HEADS, VALUE_HEADS)
"""llama.cpp repeats keys for all their values at once: it has the first values of every key, then the second ones."""
AFTER_KEYS = evolve(TILED, after="qk_rows")
SECTIONS = [11, 11, 10]
"""Shares of a pair of positions in Qwen 3.5, if config.json does not state them."""


def _delta(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(f"linear_attn.{hf}", gguf, shape, kind=LINEAR, **fields)


def _rows(fused: Sequence[Row], mlp: Sequence[Row], tile: Tile | None, after_keys: Tile | None) -> tuple[Row, ...]:
    """The rows of a family with these projections of the delta rule, and the order of its heads of values."""
    queries, *others = attention(bias=False)
    attentive = (evolve(queries, shape=("gated_rows", "hidden_size")), *others, *head_norms(1.0))
    return (
        *embeddings(1.0),
        norm("input_layernorm", "attn_norm", add=1.0),
        *(evolve(row, kind=FULL) for row in attentive),
        _delta("in_proj_qkv", "attn_qkv", "conv_rows", "hidden_size", tile=after_keys),
        _delta("in_proj_z", "attn_gate", "value_rows", "hidden_size", tile=tile),
        *fused,
        _delta(
            "conv1d", "ssm_conv1d", "conv_rows", "one", TAPS, tile=after_keys, gguf_shape=("conv_rows", TAPS), f32=True
        ),
        _delta("dt_bias", "ssm_dt", VALUE_HEADS, suffix="", gguf_suffix=".bias", tile=tile),
        _delta("A_log", "ssm_a", VALUE_HEADS, suffix="", gguf_suffix="", neg_exp=True, tile=tile),
        _delta("norm", "ssm_norm", VALUE_SIZE),
        _delta("out_proj", "ssm_out", "hidden_size", "value_rows", tile=tile and evolve(tile, columns=True)),
        norm("post_attention_layernorm", "post_attention_norm", add=1.0),
        *mlp,
        *prediction(1.0),
    )


SHARED = "shared_expert_intermediate_size"
MOE = (
    router("mlp.gate"),
    *experts("mlp", *SWITCH, "moe_intermediate_size"),
    Row("mlp.shared_expert.gate_proj", "ffn_gate_shexp", (SHARED, "hidden_size")),
    Row("mlp.shared_expert.up_proj", "ffn_up_shexp", (SHARED, "hidden_size")),
    Row("mlp.shared_expert.down_proj", "ffn_down_shexp", ("hidden_size", SHARED)),
    Row("mlp.shared_expert_gate", "ffn_gate_inp_shexp", ("one", "hidden_size"), f32=True),
)
EXPERTS = (
    *MIXTURE["num_experts"],
    Key("moe_intermediate_size", "expert_feed_forward_length"),
    Key(SHARED, "expert_shared_feed_forward_length"),
)
STACKED: Mapping[str, Sequence[Rule]] = {
    "gguf": fused_gguf_experts("mlp", *SWITCH[:2], "moe_intermediate_size"),
    "hf": fused_experts("mlp", *SWITCH, "moe_intermediate_size"),
    "mlx": stacked_experts("mlp", "switch_mlp", zip(SWITCH, SWITCH), reading=False),
    "uqff": stacked_experts("mlp", "experts", zip(SWITCH, SWITCH), reading=False),
}
GATES = (_delta("in_proj_b", "ssm_beta", VALUE_HEADS, "hidden_size", tile=TILED),
         _delta("in_proj_a", "ssm_alpha", VALUE_HEADS, "hidden_size", tile=TILED))  # fmt: skip


class DeltaNet(Declared):
    """What the families with a gated delta rule share."""

    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False}
    unstated: ClassVar[Mapping[str, Any]] = {}
    derived = ("rotary_dim", "mrope_section", "inner_size", "recurrent_layers", "mlp_bias", "layers_behind")
    rotated_by_default = 0.25
    predicting = "mtp_num_hidden_layers"
    moves: ClassVar = {
        "mtp.layers.{m}.": "model.layers.{layers+m}.", "mtp.fc.": "model.layers.{layers}.eh_proj.",
        "mtp.pre_fc_norm_embedding.": "model.layers.{layers}.enorm.",
        "mtp.pre_fc_norm_hidden.": "model.layers.{layers}.hnorm.",
        "mtp.norm.": "model.layers.{layers}.shared_head.norm.",
    }  # fmt: skip
    other_modalities: ClassVar[Sequence[str]] = ("mtp.*", "model.mtp.*", "visual.*", "model.visual.*")
    prefixes: ClassVar = {
        **BARE,
        "model.mtp.": "mtp.",
        "model.language_model.": "model.",
        "language_model.model.": "model.",
    }

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        check_settings([*(key for key in STATES if key.required and key.hf != "inner_size"), COUNT], settings, CONFIG)
        check_settings([Key(VALUE_SIZE, "")], settings, CONFIG)
        count, interval = settings["num_hidden_layers"], settings.get("full_attention_interval") or 4
        kinds = settings.get("layer_types")
        if kinds is None and count <= MOST_BLOCKS and type(interval) is int:
            kinds = [LINEAR if (layer + 1) % interval else FULL for layer in range(count)]
        if not isinstance(kinds, list) or len(kinds) != count or not all(kind in (LINEAR, FULL) for kind in kinds):
            raise FormatError(
                "does not give a kind for each layer",
                part=f"{CONFIG} layer_types",
                code=ErrorCode.CONFIG,
                expected=f"{count} (num_hidden_layers) of {LINEAR} and {FULL}",
                found=str(kinds)[:60],
            )
        inner = settings[VALUE_HEADS] * settings[VALUE_SIZE]
        if FULL in kinds:  # mlx-lm reads only the interval
            settings.setdefault("full_attention_interval", kinds.index(FULL) + 1)
        settings |= {"inner_size": inner, "layer_types": kinds, "recurrent_layers": [kind == LINEAR for kind in kinds]}
        return settings | self._rope_parameters(settings)

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        groups, heads = settings[KEY_HEADS], settings[VALUE_HEADS]
        if groups < 1 or heads % groups or not heads:
            raise FormatError(
                "has a number of value heads that is not a multiple of the key heads",
                part=f"{CONFIG} {VALUE_HEADS}" if model.layout != "gguf" else f"{self.architecture}.ssm.time_step_rank",
                code=ErrorCode.CONFIG,
                expected=f"a multiple of the {KEY_HEADS}, {groups}, at least 1",
                found=heads,
            )
        return settings

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = super()._from_config(model)
        return {**settings, "recurrent_layers": [*settings["recurrent_layers"], *[False] * settings[BEHIND]]}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        keys, values = 2 * settings[KEY_HEADS] * settings[KEY_SIZE], settings[VALUE_HEADS] * settings[VALUE_SIZE]
        rows = {"qk_rows": keys, "value_rows": values, "conv_rows": keys + values, "one": 1}
        rows["group_rows"] = values // settings[KEY_HEADS]
        heads = settings["num_attention_heads"] * settings["head_dim"]
        own = {name: settings[name] for name in (KEY_HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE, TAPS)}
        return super().sizes({**settings, **rows, "gated_rows": 2 * heads}) | rows | own

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        return [*settings["layer_types"], *[FULL] * (settings.get(BEHIND) or 0)]

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        if settings[KEY_SIZE] != settings[VALUE_SIZE]:
            raise FormatError(
                f"has a {VALUE_SIZE} that differs from {KEY_SIZE}, and llama.cpp has one size for both",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected=settings[KEY_SIZE],
                found=settings[VALUE_SIZE],
            )

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        inner, heads, count = settings["inner_size"], settings[VALUE_HEADS], settings["num_hidden_layers"]
        interval = settings.setdefault("full_attention_interval", 4)
        recurrent = settings.get("recurrent_layers") or [(layer + 1) % (interval or 4) > 0 for layer in range(count)]
        if len(recurrent) < count or not heads or inner % heads:
            raise FormatError(
                "contradicts the number of layers or of heads",
                part=f"{self.architecture}.{'ssm.inner_size' if len(recurrent) >= count else RECURRENT}",
                code=ErrorCode.CONTRADICTION,
                expected=f"a multiple of {heads}" if len(recurrent) >= count else f"{count} values",
                found=inner if len(recurrent) >= count else len(recurrent),
            )
        kinds = [LINEAR if each else FULL for each in recurrent[:count]]
        whole = [*recurrent[:count], *[False] * settings[BEHIND]]
        settings |= {VALUE_SIZE: inner // heads, "layer_types": kinds, "recurrent_layers": whole}
        return settings | self._rope_parameters(settings)

    def _rope_parameters(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The rotation as Transformers and mlx-lm read it for these families."""
        scaling, sections = settings.get("rope_scaling"), settings.get("mrope_section")
        rope = {"rope_type": "default", **(scaling if isinstance(scaling, dict) else {})}
        rope |= {"rope_theta": settings.get("rope_theta", 10000.0)}
        rope |= {"partial_rotary_factor": settings.get("partial_rotary_factor", self.rotated_by_default)}
        if isinstance(sections, list):
            rope |= {"mrope_section": sections[:3], "mrope_interleaved": True}
        return {"rope_parameters": rope, "partial_rotary_factor": rope["partial_rotary_factor"]}


RECURRENT = "attention.recurrent_layers"
COUNT = Key("num_hidden_layers", "block_count")


class Qwen35(DeltaNet, Qwen2VL):
    """Qwen 3.5 and 3.6, their text part; the layers that predict more tokens are left out."""

    other_modalities = DeltaNet.other_modalities

    model_type, architecture, class_name, mlx_type = "qwen3_5_text", "qwen35", "Qwen3_5ForCausalLM", "qwen3_5"
    rows = _rows(GATES, gated_mlp(), TILED, AFTER_KEYS)
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    keys: ClassVar[Sequence[Key]] = (*Qwen2VL.keys, *STATES)
    fixed: ClassVar = {**DeltaNet.fixed, "attn_output_gate": True}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        settings["mrope_section"] = settings["mrope_section"] or [*SECTIONS, 0]
        return settings | self._rope_parameters(settings)


class Qwen35Moe(Qwen35):
    """Qwen 3.5 and 3.6 with experts, which are stacked in files, and a shared one with a gate."""

    model_type, architecture, class_name = "qwen3_5_moe_text", "qwen35moe", "Qwen3_5MoeForCausalLM"
    mlx_type = "qwen3_5_moe"
    rows = _rows(GATES, MOE, TILED, AFTER_KEYS)
    more: ClassVar[Mapping[str, Sequence[Rule]]] = STACKED
    keys: ClassVar[Sequence[Key]] = (*Qwen35.keys, *EXPERTS)
    fixed: ClassVar = {**Qwen35.fixed, "norm_topk_prob": True}
    unstated: ClassVar = {"norm_topk_prob": True}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        check_settings(EXPERTS, settings, CONFIG)
        return {"intermediate_size": settings["moe_intermediate_size"], **settings}  # no layer is dense

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        return {**settings, "intermediate_size": settings["intermediate_size"] or settings["moe_intermediate_size"]}


class Qwen3Next(DeltaNet):
    """Qwen3-Next and Qwen3-Coder-Next: in Hugging Face, the rows of each key head follow each other in one matrix."""

    model_type, architecture, class_name = "qwen3_next", "qwen3next", "Qwen3NextForCausalLM"
    rows = _rows((_delta("in_proj_ba", "ssm_ba", "gate_rows", "hidden_size"),), MOE, None, None)
    _linear = f"{LAYER}linear_attn.in_proj_"
    _fused = Rule(
        f"{_linear}qkvz.weight",
        Tile(
            Join(((f"{_linear}qkv.weight", "conv_rows"), (f"{_linear}z.weight", "value_rows"))),
            KEY_HEADS,
            (KEY_SIZE, KEY_SIZE, "group_rows", "group_rows"),
            inverse=True,
        ),
    )
    more: ClassVar = {
        "gguf": STACKED["gguf"],
        "hf": (*STACKED["hf"], _fused),
        "mlx": (_fused,),  # mlx-lm adds 1 to the norms only where it stacks the experts itself
        "uqff": (*STACKED["uqff"], _fused),
    }
    keys: ClassVar[Sequence[Key]] = (*COMMON, *STATES, *EXPERTS)
    fixed: ClassVar = {**DeltaNet.fixed, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    unstated: ClassVar = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return super().sizes({**settings, "gate_rows": 2 * settings[VALUE_HEADS]})

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        return evolve(carried, dense_only=(r"\.mlp\.experts\.\d+\.",)) if layout == "mlx" else carried
