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
    rows = _rows(
        Row("mixer.in_proj", "ssm_in", ("in_rows", "hidden_size")),
        Row(
            "mixer.conv1d", "ssm_conv1d", ("intermediate_size", "1", "conv_kernel"),
            gguf_shape=("intermediate_size", "conv_kernel"), f32=True, biased=True,
        ),
        Row("mixer.x_proj", "ssm_x", ("x_rows", "intermediate_size")),
        Row("mixer.dt_proj", "ssm_dt", ("intermediate_size", "time_step_rank"), biased=True),
        Row("mixer.A_log", "ssm_a", ("intermediate_size", "state_size"), suffix="", gguf_suffix="", neg_exp=True, f32=True),
        Row("mixer.D", "ssm_d", ("intermediate_size",), suffix="", gguf_suffix=""),
        Row("mixer.out_proj", "ssm_out", ("hidden_size", "intermediate_size")),
    )  # fmt: skip
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
        own = {"in_rows": 2 * settings["intermediate_size"], "1": 1}
        own["x_rows"] = settings["time_step_rank"] + 2 * settings["state_size"]
        return super().sizes({**settings, **own}) | own

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        if settings["intermediate_size"] != 2 * settings["hidden_size"]:
            raise FormatError(
                "has an intermediate_size that llama.cpp does not run",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected=f"twice the hidden_size, {2 * settings['hidden_size']}",
                found=settings["intermediate_size"],
            )

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
