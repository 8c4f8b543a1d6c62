"""gpt-oss: experts with biases, whose gate and up rows alternate in Hugging Face, and attention sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Interleave, Model, Rule, Transpose

from squish_core.api import Options

from ..config.keys import COMMON, MIXTURE, Key
from ..config.rope import rope_kind
from ..config.spelling import FULL, SLIDING
from ..family import TextModel
from ..tables import LAYER, Row, attention, embeddings, norm

EXPERTS = f"{LAYER}mlp.experts."
CODES = "mxfp4"
"""The method with which Transformers stores the rows of experts as codes; it transposes dense ones."""


def _expert(name: str, gguf: str, rows: str, columns: str) -> Row:
    return Row(f"mlp.experts.{name}", gguf, ("experts", rows, columns), biased=True)


def _alternating(suffix: str) -> Interleave:
    return Interleave(((f"{EXPERTS}gate_proj{suffix}", "one"), (f"{EXPERTS}up_proj{suffix}", "one")), axis=1)


class GptOss(TextModel):
    """gpt-oss: every second layer attends to a window."""

    model_type, architecture, class_name = "gpt_oss", "gpt-oss", "GptOssForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *attention(biased=True),
        Row("self_attn.sinks", "attn_sinks", ("num_attention_heads",), suffix=""),
        norm("post_attention_layernorm", "post_attention_norm"),
        Row("mlp.router", "ffn_gate_inp", ("experts", "hidden_size"), biased=True, f32=True),
        _expert("gate_proj", "ffn_gate_exps", "intermediate_size", "hidden_size"),
        _expert("up_proj", "ffn_up_exps", "intermediate_size", "hidden_size"),
        _expert("down_proj", "ffn_down_exps", "hidden_size", "intermediate_size"),
    )
    more: ClassVar = {
        "hf": (
            Rule(f"{EXPERTS}gate_up_proj", Transpose(_alternating(".weight"), dense_only=True)),
            Rule(f"{EXPERTS}gate_up_proj_bias", _alternating(".bias")),
            Rule(f"{EXPERTS}down_proj", Transpose(f"{EXPERTS}down_proj.weight", dense_only=True)),
            Rule(f"{EXPERTS}down_proj_bias", f"{EXPERTS}down_proj.bias"),
        ),
        "uqff": tuple(
            Rule(f"{EXPERTS}gate_up_proj{suffix}", _alternating(suffix), reading=True)
            for suffix in (".weight", ".bias")
        ),
    }
    keys = (
        *COMMON,
        Key("sliding_window", "attention.sliding_window"),
        *MIXTURE["num_local_experts"],
        Key("intermediate_size", "expert_feed_forward_length"),
    )
    fixed: ClassVar = {
        "hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "sliding_window_pattern": 2,
    }  # fmt: skip
    unstated: ClassVar = {"rope_theta": 150000.0}
    windowless = ()

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return {**super().sizes(settings), "one": 1}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        return evolve(carried, coded=layout == "hf" and options.get("method") == CODES)

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        if rope_kind(settings.get("rope_scaling")) == "yarn":
            settings["rope_scaling"] = {**settings["rope_scaling"], "truncate": False}  # as in every gpt-oss
        kinds = [FULL if layer % 2 else SLIDING for layer in range(settings["num_hidden_layers"])]
        return {**settings, "layer_types": kinds}
