"""Jamba: Mamba 1, or attention without positions in some layers, and experts in every other one.

Which layers have attention and which have experts are two periods in config.json; GGUF states the first by its numbers of
key-value heads, and the second by its tensors.

Source: llama.cpp, `JambaModel` in conversion/jamba.py and src/models/jamba.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model, Rule

from ..config.keys import COMMON, MIXTURE, SIZES_LIST, Key
from ..declared import KINDS, Declared
from ..layer_kinds import LayerKinds
from ..rules import fused_experts, fused_gguf_experts, stacked_experts
from ..settings import TextSettings
from ..tables import SWITCH, Row, attention, experts, norm, router
from .hybrid import ATTENTION, MAMBA
from .mamba import check_expansion, mamba1, mamba1_sizes

STATE, TAPS, RANK, INNER = "mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "inner_size"
DENSE, EXPERTS = "dense", "experts"
PERIOD, START = "expert_layer_period", "expert_layer_offset"
ROUTER = "ffn_gate_inp.weight"


def _mlp() -> tuple[Row, ...]:
    shapes = (("intermediate_size", "hidden_size"),) * 2 + (("hidden_size", "intermediate_size"),)
    dense = (Row(f"feed_forward.{part}", f"ffn_{part[:-5]}", shape, kind=DENSE) for part, shape in zip(SWITCH, shapes))
    mixed = (router("feed_forward.router"), *experts("feed_forward", *SWITCH, "intermediate_size"))
    return (*dense, *(evolve(row, kind=EXPERTS) for row in mixed))


class Jamba(Declared):
    """Jamba 1 and 2, and those of its models that have no experts."""

    model_type, architecture, class_name = "jamba", "jamba", "JambaForCausalLM"
    rows = (
        Row("model.embed_tokens", "token_embd", ("vocab_size", "hidden_size"), top=True),
        norm("model.final_layernorm", "output_norm", top=True),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to="model.embed_tokens.weight", top=True),
        norm("input_layernorm", "attn_norm"),
        *(evolve(row, kind=ATTENTION) for row in attention(bias=False)),
        *mamba1("mamba", INNER, STATE, RANK, TAPS, MAMBA),
        Row("mamba.dt_layernorm", "ssm_dt_norm", (RANK,), kind=MAMBA),
        Row("mamba.b_layernorm", "ssm_b_norm", (STATE,), kind=MAMBA),
        Row("mamba.c_layernorm", "ssm_c_norm", (STATE,), kind=MAMBA),
        norm("pre_ff_layernorm", "ffn_norm"),
        *_mlp(),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "gguf": fused_gguf_experts("feed_forward", *SWITCH[:2], "intermediate_size"),
        "hf": fused_experts("feed_forward", *SWITCH, "intermediate_size"),
        "mlx": stacked_experts("feed_forward", "switch_mlp", zip(SWITCH, SWITCH), reading=False),
        "uqff": stacked_experts("feed_forward", "experts", zip(SWITCH, SWITCH), reading=False),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf not in ("num_key_value_heads", "head_dim", "rotary_dim", "rope_theta")),
        Key("kv_heads", "attention.head_count_kv", SIZES_LIST),
        Key(TAPS, "ssm.conv_kernel"),
        Key(INNER, "ssm.inner_size"),
        Key(STATE, "ssm.state_size"),
        Key(RANK, "ssm.time_step_rank"),
        *MIXTURE["num_experts"],
    )
    fixed: ClassVar = {"hidden_act": "silu", "mamba_conv_bias": True, "mamba_proj_bias": False}
    unstated: ClassVar = {STATE: 16, TAPS: 4, "mamba_expand": 2, "num_experts_per_tok": 2, PERIOD: 2, START: 1}
    derived = (*TextSettings.derived, KINDS, INNER, "head_dim", "rope_theta", "rope_scaling")
    by_layer = LayerKinds(
        names={MAMBA: (MAMBA, "linear_attention"), ATTENTION: (ATTENTION, "full_attention")},
        lists=("layers_block_type",),
        periods={ATTENTION: ("attn_layer_period", "attn_layer_offset")},
        counts={"kv_heads": ("num_key_value_heads", ATTENTION)},
    )

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        hidden, expand, rank = settings.get("hidden_size"), settings["mamba_expand"], settings.get(RANK, "auto")
        if type(hidden) is int and type(expand) is int:
            settings |= {INNER: expand * hidden, RANK: -(-hidden // 16) if rank == "auto" else rank}
        if settings.get("num_experts") == 1:  # no layer chooses, and llama.cpp wants no more than there are
            settings["num_experts_per_tok"] = 1
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        own = {name: settings[name] for name in (INNER, STATE, RANK)}
        own |= mamba1_sizes(*own.values())
        return super().sizes({**settings, **own}) | own

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        if kind not in (DENSE, EXPERTS):
            return super().layers_of(kind, settings)
        period, start, layers = settings[PERIOD], settings[START], {*range(settings["num_hidden_layers"])}
        mixed = {layer for layer in layers if settings["num_experts"] > 1 and layer % max(period, 1) == start}
        return mixed if kind == EXPERTS else layers - mixed

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        check_expansion(settings[INNER], settings["hidden_size"])

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        count = settings["num_hidden_layers"]
        mixed = [EXPERTS if f"blk.{layer}.{ROUTER}" in model.tensors else DENSE for layer in range(count)]
        periods = LayerKinds(names={DENSE: (), EXPERTS: ()}, periods={EXPERTS: (PERIOD, START)}).periods_of(mixed)
        own = periods if EXPERTS in mixed else {"num_experts": 1, PERIOD: 2, START: 1}
        return {**settings, **own, "mamba_expand": settings[INNER] // settings["hidden_size"]}
