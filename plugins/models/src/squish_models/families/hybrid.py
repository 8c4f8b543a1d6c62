"""Layers of Mamba 2, and Granite 4, which has them beside layers of attention.

Source: llama.cpp, `Mamba2Model` in conversion/mamba.py and `GraniteHybridModel` in conversion/granite.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Join, Model, Rule

from squish_core.api import ErrorCode, FormatError

from ..config.keys import SIZES_LIST, Key, check_settings
from ..declared import KINDS, Declared
from ..layer_kinds import LayerKinds
from ..settings import CONFIG
from ..tables import LAYER, SWITCH, Row, attention, embeddings, norm
from .llama import Granite, GraniteMoe

MAMBA, ATTENTION = "mamba", "attention"
HEADS, HEAD_SIZE, GROUPS, STATE, TAPS = (f"ssm_{name}" for name in ("heads", "head_size", "groups", "state", "taps"))
INNER, GROUP_SIZE, ROWS, FUSED, ONE = "ssm_inner", "ssm_group_size", "ssm_rows", "ssm_fused_rows", "one"
USUAL = (HEADS, HEAD_SIZE, GROUPS, STATE, TAPS, INNER)
"""Usual names of the settings of Mamba 2; each family has names of its own for the first five."""
ENDLESS = (None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}])
"""Limits of a time step that is not limited, the last as Transformers 5 writes it."""


def mamba2(module: str, kind: str = MAMBA, *, normed: str | tuple[str, ...] | None = None) -> tuple[Row, ...]:
    """The tensors of a layer of Mamba 2; `normed` is the kind of the layers that have its norm, if not all do."""

    def row(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
        return Row(f"{module}.{hf}", gguf, shape, **{"kind": kind, **fields})

    alone = {"suffix": "", "gguf_suffix": "", "gguf_shape": (HEADS, ONE), "f32": True}
    return (
        row("in_proj", "ssm_in", FUSED, "hidden_size"),
        row("conv1d", "ssm_conv1d", ROWS, ONE, TAPS, gguf_shape=(ROWS, TAPS), f32=True, biased=True),
        row("dt_bias", "ssm_dt", HEADS, suffix="", gguf_suffix=".bias"),
        row("A_log", "ssm_a", HEADS, neg_exp=True, **alone),
        row("D", "ssm_d", HEADS, **alone),
        row("norm", "ssm_norm", INNER, gguf_shape=(GROUPS, GROUP_SIZE), f32=True, kind=normed or kind),
        row("out_proj", "ssm_out", "hidden_size", INNER),
    )


def state_keys(names: Mapping[str, str]) -> tuple[Key, ...]:
    """GGUF's keys for the settings of Mamba 2, by their usual names."""
    return (
        Key(names[TAPS], "ssm.conv_kernel"),
        Key(names[STATE], "ssm.state_size"),
        Key(names[GROUPS], "ssm.group_count"),
        Key(names[HEADS], "ssm.time_step_rank"),
        Key(INNER, "ssm.inner_size"),
    )


class Mamba2Layers(Declared):
    """What families with layers of Mamba 2 share; `own_names` has their names of the `USUAL` settings.

    Attributes
    ----------
    expanded
        The setting with the quotient of the inner size and the hidden size, if the family states it.
    """

    expanded: ClassVar[str] = ""

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = self.usual(super().spelled(config))
        required = [Key(self.own_names[name], "") for name in USUAL[:-1]]
        check_settings(required, settings, CONFIG)
        if settings.get("time_step_limit") in ENDLESS:  # what engines assume, and not all read infinity
            settings.pop("time_step_limit", None)
        return {**settings, INNER: settings[HEADS] * settings[HEAD_SIZE]}

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        groups, heads = settings[GROUPS], settings[HEADS]
        if groups < 1 or heads < 1 or heads % groups:
            raise FormatError(
                "has a number of heads that is not a multiple of the groups",
                part=f"{CONFIG} {self.own_names[HEADS]}"
                if model.layout != "gguf"
                else f"{self.architecture}.ssm.time_step_rank",
                code=ErrorCode.CONFIG,
                expected=f"a multiple of {groups}",
                found=heads,
            )
        return settings

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        if "time_step_limit" in settings:
            raise FormatError(
                "has a time_step_limit, for which GGUF has no key",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected="no limit",
                found=str(settings["time_step_limit"])[:60],
                hint="The written file would describe a different model.",
            )

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        own = {name: settings[name] for name in USUAL} | {ONE: 1, GROUP_SIZE: settings[INNER] // settings[GROUPS]}
        own[ROWS] = own[INNER] + 2 * own[GROUPS] * own[STATE]
        own[FUSED] = own[INNER] + own[ROWS] + own[HEADS]
        return super().sizes({**settings, **own}) | own

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = self.usual(super()._from_keys(model))
        inner, heads = settings[INNER], settings[HEADS]
        if not heads or inner % heads or not inner:
            raise FormatError(
                "is not a multiple of the number of heads",
                part=f"{self.architecture}.ssm.inner_size",
                code=ErrorCode.CONTRADICTION,
                expected=f"a multiple of {heads}",
                found=inner,
            )
        expanded = {self.expanded: inner // settings["hidden_size"]} if self.expanded else {}
        return {**settings, **expanded, HEAD_SIZE: inner // heads, self.own_names[HEAD_SIZE]: inner // heads}


GRANITE = {
    HEADS: "mamba_n_heads", HEAD_SIZE: "mamba_d_head", GROUPS: "mamba_n_groups", STATE: "mamba_d_state",
    TAPS: "mamba_d_conv",
}  # fmt: skip
SHARED = "shared_intermediate_size"


def _shared(*names: str) -> tuple[Row, ...]:
    """The MLP of every layer, under these names of GGUF."""
    shapes = ((SHARED, "hidden_size"), (SHARED, "hidden_size"), ("hidden_size", SHARED))
    return tuple(Row(f"shared_mlp.{part}", name, shape) for part, name, shape in zip(SWITCH, names, shapes))


def _rows(*mlp: Row) -> tuple[Row, ...]:
    return (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *(evolve(row, kind=ATTENTION) for row in attention(permute=True, bias=False)),
        *mamba2("mamba"),
        norm("post_attention_layernorm", "ffn_norm"),
        *mlp,
    )


_GATE, _UP, _DOWN = (f"{LAYER}shared_mlp.{part}.weight" for part in SWITCH)
_FUSED = Rule(f"{LAYER}shared_mlp.input_linear.weight", Join(((_GATE, SHARED), (_UP, SHARED))))
_HF = (_FUSED, Rule(f"{LAYER}shared_mlp.output_linear.weight", _DOWN))
_MLX = tuple(Rule(f"{LAYER}mlp.{part}.weight", name) for part, name in zip(SWITCH, (_GATE, _UP, _DOWN)))


class GraniteHybrid(Mamba2Layers, Granite):
    """Granite 4 without experts: each layer has Mamba 2 or attention, and one MLP."""

    model_type, architecture, class_name = "granitemoehybrid", "granitehybrid", "GraniteMoeHybridForCausalLM"
    rows = _rows(*_shared("ffn_gate", "ffn_up", "ffn_down"))
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {"hf": _HF, "mlx": _MLX, "uqff": _HF}
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in Granite.keys if key.hf not in ("intermediate_size", "num_key_value_heads")),
        Key(SHARED, "feed_forward_length"),
        Key(SHARED, "expert_shared_feed_forward_length", required=False),
        Key("kv_heads", "attention.head_count_kv", SIZES_LIST),
        Key("rotated", "rope.scaling.finetuned", "bool"),
        *state_keys(GRANITE),
    )
    own_names: ClassVar = GRANITE
    expanded = "mamba_expand"
    fixed: ClassVar = {
        **Granite.fixed, "mamba_conv_bias": True, "mamba_proj_bias": False, "normalization_function": "rmsnorm",
    }  # fmt: skip
    unstated: ClassVar = {"position_embedding_type": None}
    derived = (*Granite.derived, *USUAL, KINDS, "rotated")
    by_layer = LayerKinds(
        names={MAMBA: (MAMBA, "linear_attention"), ATTENTION: (ATTENTION, "full_attention")},
        setting="layer_types",
        counts={"kv_heads": ("num_key_value_heads", ATTENTION)},
    )

    def fits(self, config: Mapping[str, Any]) -> bool:
        return not config.get("num_local_experts") and not self._attends(config)

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        if settings[GROUPS] != 1 and MAMBA in settings[KINDS]:
            raise FormatError(
                "has several mamba_n_groups, each of which llama.cpp norms alone",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected=1,
                found=settings[GROUPS],
            )

    def _attends(self, config: Mapping[str, Any]) -> bool:
        """Return whether all layers have attention."""
        kinds = config.get("layer_types")
        return isinstance(kinds, list) and {*map(str, kinds)} <= {*self.by_layer.names[ATTENTION]}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        settings["rotated"] = settings["position_embedding_type"] == "rope"
        settings["position_embedding_type"] = "rope" if settings["rotated"] else "nope"  # mlx-lm rotates without it
        return self._dense(settings)

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        settings["position_embedding_type"] = "rope" if settings["rotated"] else "nope"
        return self._dense(settings)

    def _dense(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings with the size that mlx-lm reads, and no experts."""
        return {**settings, "intermediate_size": settings.get(SHARED), "num_local_experts": 0, "num_experts_per_tok": 0}


class GraniteHybridMoe(GraniteHybrid):
    """Granite 4 with experts beside the MLP of each layer."""

    rows = _rows(*GraniteMoe.rows[-4:], *_shared("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"))
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "hf": (*GraniteMoe.more["hf"], *_HF), "mlx": (*GraniteMoe.more["mlx"], *_HF),
        "uqff": (*GraniteMoe.more["hf"], *_HF),
    }  # fmt: skip
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in GraniteHybrid.keys if key.hf != SHARED),
        *(
            key
            for key in GraniteMoe.keys
            if key.hf in ("intermediate_size", "num_local_experts", "num_experts_per_tok")
        ),
        Key(SHARED, "expert_shared_feed_forward_length"),
    )

    def fits(self, config: Mapping[str, Any]) -> bool:
        return bool(config.get("num_local_experts"))

    def _dense(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings


class GraniteAttention(GraniteHybrid):
    """Granite 4 with attention in all layers: for llama.cpp, it is a Granite 3."""

    architecture = "granite"

    def fits(self, config: Mapping[str, Any]) -> bool:
        return not config.get("num_local_experts") and self._attends(config)
