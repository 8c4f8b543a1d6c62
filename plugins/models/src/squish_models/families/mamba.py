"""Mamba and Mamba 2, which have no attention: GGUF's keys of heads and of MLPs are 0.

Source: llama.cpp, `MambaModel` and `Mamba2Model` in conversion/mamba.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from ..config.keys import Key
from ..declared import Declared
from ..settings import CONFIG, TextSettings
from ..tables import Row
from .hybrid import GROUPS, HEAD_SIZE, HEADS, INNER, STATE, TAPS, USUAL, Mamba2Layers, mamba2, state_keys

BACKBONE = "backbone.layers.{n}."
EMBEDDINGS = "backbone.embeddings"
ENDLESS = 1 << 20
"""The number of positions in GGUF; the model has no limit."""
HEADLESS = ("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "nothing", "rope_theta",
            "rope_scaling", "attention_bias", "mlp_bias")  # fmt: skip
"""Settings that a model without attention does not have."""
SIZES = (
    Key("max_position_embeddings", "context_length"),
    Key("hidden_size", "embedding_length"),
    Key("num_hidden_layers", "block_count"),
    Key("nothing", "feed_forward_length"),
    Key("nothing", "attention.head_count"),
    Key("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "f32"),
)


def _rows(*mixer: Row) -> tuple[Row, ...]:
    return (
        Row(EMBEDDINGS, "token_embd", ("vocab_size", "hidden_size"), top=True),
        Row("backbone.norm_f", "output_norm", ("hidden_size",), top=True),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to=f"{EMBEDDINGS}.weight", top=True),
        *(evolve(row, layer=BACKBONE) for row in (Row("norm", "attn_norm", ("hidden_size",)), *mixer)),
    )


def mamba1(module: str, inner: str, state: str, rank: str, taps: str, kind: str = "") -> tuple[Row, ...]:
    """The tensors of a layer of Mamba 1, with the names of its sizes."""

    def row(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
        return Row(f"{module}.{hf}", gguf, shape, kind=kind, **fields)

    alone = {"suffix": "", "gguf_suffix": "", "f32": True}
    return (
        row("in_proj", "ssm_in", "in_rows", "hidden_size"),
        row("conv1d", "ssm_conv1d", inner, "one", taps, gguf_shape=(inner, taps), f32=True, biased=True),
        row("x_proj", "ssm_x", "x_rows", inner),
        row("dt_proj", "ssm_dt", inner, rank, biased=True),
        row("A_log", "ssm_a", inner, state, neg_exp=True, **alone),
        row("D", "ssm_d", inner, **alone),
        row("out_proj", "ssm_out", "hidden_size", inner),
    )


def mamba1_sizes(inner: int, state: int, rank: int) -> dict[str, int]:
    """The sizes of a layer of Mamba 1 that follow from others."""
    return {"in_rows": 2 * inner, "x_rows": rank + 2 * state, "one": 1}


def check_expansion(inner: int, hidden: int) -> None:
    """Raise FormatError for an expansion that llama.cpp does not run."""
    if inner != 2 * hidden:
        raise FormatError(
            "expands the hidden size by another factor than 2, the only one that llama.cpp runs",
            part=CONFIG,
            code=ErrorCode.CONFIG,
            expected=2 * hidden,
            found=inner,
        )


class Headless(Declared):
    """What models without attention share."""

    headless = True
    fixed: ClassVar = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu"}
    unstated: ClassVar = {"layer_norm_epsilon": 1e-5, "conv_kernel": 4}
    prefixes: ClassVar = {"model.backbone.": "backbone.", "model.lm_head.": "lm_head."}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        return {**settings, "num_attention_heads": 1, "nothing": 0, "max_position_embeddings": ENDLESS}


class Mamba(Headless):
    """Mamba 1."""

    model_type, architecture, class_name = "mamba", "mamba", "MambaForCausalLM"
    rows = _rows(*mamba1("mixer", "intermediate_size", "state_size", "time_step_rank", "conv_kernel"))
    keys: ClassVar[Sequence[Key]] = (
        *SIZES,
        Key("conv_kernel", "ssm.conv_kernel"),
        Key("intermediate_size", "ssm.inner_size"),
        Key("state_size", "ssm.state_size"),
        Key("time_step_rank", "ssm.time_step_rank"),
        Key("normed", "ssm.dt_b_c_rms", "bool"),
    )
    derived = (*TextSettings.derived, *HEADLESS, "head_dim", "normed")
    unstated: ClassVar = {**Headless.unstated, "state_size": 16}
    tied_by_default = True
    normed: ClassVar[bool] = False
    """Whether steps and projections of states are normed, which has no weights."""

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        hidden, rank = settings.get("hidden_size"), settings.get("time_step_rank", "auto")
        if type(hidden) is int:
            settings.setdefault("intermediate_size", hidden * 2)
            settings["time_step_rank"] = -(-hidden // 16) if rank == "auto" else rank
        return {**settings, "normed": self.normed}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        own = mamba1_sizes(*(settings[name] for name in ("intermediate_size", "state_size", "time_step_rank")))
        return super().sizes({**settings, **own}) | own

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        check_expansion(settings["intermediate_size"], settings["hidden_size"])

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        own = {"expand": settings["intermediate_size"] // settings["hidden_size"], "normed": self.normed}
        return {**settings, **own}


class FalconMamba(Mamba):
    """Falcon-Mamba: Mamba 1 with norms of the steps and the states."""

    model_type, class_name = "falcon_mamba", "FalconMambaForCausalLM"
    normed = True


NAMES = {HEADS: "num_heads", HEAD_SIZE: "head_dim", GROUPS: "n_groups", STATE: "state_size", TAPS: "conv_kernel"}


class Mamba2(Headless, Mamba2Layers):
    """Mamba 2, and Codestral Mamba."""

    model_type, architecture, class_name = "mamba2", "mamba2", "Mamba2ForCausalLM"
    rows = _rows(*mamba2("mixer", ""))
    keys: ClassVar[Sequence[Key]] = (*SIZES, *state_keys(NAMES))
    own_names: ClassVar = NAMES
    expanded = "expand"
    derived = (*TextSettings.derived, *HEADLESS, *USUAL)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        return {**settings, "intermediate_size": settings[INNER]}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        return {**settings, "intermediate_size": settings[INNER]}
