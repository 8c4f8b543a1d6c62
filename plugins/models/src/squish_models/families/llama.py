"""Llama and similar models: GGUF interleaves the rows of each query and key head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Interleave, Model, Rule

from squish_core.api import ErrorCode, FormatError

from ..config.keys import COMMON, MIXTURE, VOCABULARY, Key
from ..config.rope import rope_kind
from ..config.spelling import text_config
from ..family import TextModel
from ..rules import fused_attention, fused_experts, fused_gguf_experts, stacked_experts
from ..settings import BARE, CONFIG
from ..tables import LAYER, SWITCH, Row, attention, experts, gated_mlp, pre_norm_model, router

SCALED_ROPE = ("rope_freqs.weight",)
PROJECTIONS = ("w1", "w3", "w2")
"""Gate, up and down of Mixtral's experts."""


class Llama(TextModel):
    """Llama 1 to 3, SmolLM2, Mistral, Mistral-Nemo."""

    model_type, architecture, class_name = "llama", "llama", "LlamaForCausalLM"
    rows = pre_norm_model(attention(permute=True), gated_mlp(bias=True))
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {"gguf": fused_attention(permute=True)}
    constants: ClassVar[Sequence[str]] = SCALED_ROPE
    keys: ClassVar[Sequence[Key]] = (*COMMON, VOCABULARY)
    fixed: ClassVar = {"hidden_act": "silu"}
    biases: ClassVar = {"attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp_bias": SWITCH}


class Granite(Llama):
    """Granite 3: Llama with multipliers of embeddings, attention, residuals and logits."""

    model_type, architecture, class_name = "granite", "granite", "GraniteForCausalLM"
    keys: ClassVar[Sequence[Key]] = (
        *Llama.keys,
        Key("embedding_multiplier", "embedding_scale", "f32"),
        Key("attention_multiplier", "attention.scale", "f32"),
        Key("residual_multiplier", "residual_scale", "f32"),
        Key("logits_scaling", "logit_scale", "f32"),
    )


_MOE = f"{LAYER}block_sparse_moe."
_STACKED = tuple(f"{_MOE}experts.{name}.weight" for name in SWITCH)


_LINEAR = (
    Rule(f"{_MOE}input_linear.weight", Interleave(tuple((name, "intermediate_size") for name in _STACKED[:2]), 1)),
    Rule(f"{_MOE}output_linear.weight", _STACKED[2]),
)


class GraniteMoe(Granite):
    """Granite 3 with experts, which Hugging Face stacks, too: in each, the gate rows come first, then the up rows."""

    model_type, architecture, class_name = "granitemoe", "granitemoe", "GraniteMoeForCausalLM"
    rows = pre_norm_model(
        attention(permute=True),
        (
            router("block_sparse_moe.router.layer"),
            Row("block_sparse_moe.experts.gate_proj", "ffn_gate_exps", ("experts", "intermediate_size", "hidden_size")),
            Row("block_sparse_moe.experts.up_proj", "ffn_up_exps", ("experts", "intermediate_size", "hidden_size")),
            Row("block_sparse_moe.experts.down_proj", "ffn_down_exps", ("experts", "hidden_size", "intermediate_size")),
        ),
    )
    more: ClassVar = {
        "gguf": fused_attention(permute=True),
        "hf": _LINEAR,
        "mlx": (
            *(Rule(f"{_MOE}switch_mlp.{part}.weight", name) for part, name in zip(SWITCH, _STACKED)),
            *(evolve(rule, reading=True) for rule in _LINEAR),  # mlx-lm separates them, too
        ),
    }
    keys = (*Granite.keys, *MIXTURE["num_local_experts"])

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        if settings["intermediate_size"] < 1:
            raise FormatError(
                "has no intermediate_size, the number of rows of an expert",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected="at least 1",
                found=settings["intermediate_size"],
            )
        return super().sizes(settings)


class Mistral3(Llama):
    """Ministral 3 and Devstral 2, and the text part of Mistral Small 3: queries are scaled by position, and YaRN."""

    model_type, architecture, class_name = "ministral3", "mistral3", "Ministral3ForCausalLM"
    keys = (
        *Llama.keys,
        Key("llama_4_scaling_beta", "attention.temperature_scale", "f32", required=False),
        Key("mscale_all_dim", "rope.scaling.yarn_log_multiplier", "f32", required=False),
    )
    derived = (*Llama.derived, "llama_4_scaling_beta", "mscale_all_dim")
    must_state = ("rope_theta",)
    other_modalities = (
        "vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*", "model.multi_modal_projector.*",
    )  # fmt: skip
    prefixes: ClassVar = {
        **BARE,
        "language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head.",
    }  # fmt: skip

    def fits(self, config: Mapping[str, Any]) -> bool:
        return text_config(config).get("model_type") != "mistral4"

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        kind = text_config(config).get("model_type")
        if kind not in ("ministral3", "mistral", "mistral3"):
            raise FormatError(
                "is not the text part of Mistral Small 3 or Ministral 3",
                part=f"{CONFIG} text_config model_type",
                code=ErrorCode.CONFIG,
                expected="ministral3 or mistral",
                found=repr(kind)[:60],
            )
        scaling = settings.get("rope_scaling")
        if scaling is None or rope_kind(scaling) != "yarn":
            return settings
        if scaling.get("mscale") != 1:
            raise FormatError(
                "has a mscale for which GGUF has no key",
                part=f"{CONFIG} rope_parameters",
                code=ErrorCode.ROPE,
                expected=1.0,
                found=scaling.get("mscale"),
            )
        return _with_yarn(settings, scaling)

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        beta = settings.get("llama_4_scaling_beta")
        if rope_kind(settings.get("rope_scaling")) != "yarn" or beta is None:
            return {**settings, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        more = {"llama_4_scaling_beta": beta, "mscale": 1.0, "mscale_all_dim": settings.get("mscale_all_dim") or 0.0}
        return _with_yarn(settings, {**settings["rope_scaling"], **more})


def _with_yarn(settings: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with YaRN's where mlx-lm reads them, too."""
    more = {name: scaling.get(name) or None for name in ("llama_4_scaling_beta", "mscale_all_dim")}
    parameters = {**scaling, "rope_theta": settings.get("rope_theta")}
    return {**settings, **more, "rope_scaling": dict(scaling), "rope_parameters": parameters}


_FUSED = fused_experts("block_sparse_moe", *PROJECTIONS, "intermediate_size")


class Mixtral(TextModel):
    """Mixtral: Llama's attention, and experts."""

    model_type, architecture, class_name = "mixtral", "llama", "MixtralForCausalLM"
    rows = pre_norm_model(
        attention(permute=True),
        (router("block_sparse_moe.gate"), *experts("block_sparse_moe", *PROJECTIONS, "intermediate_size")),
    )
    more: ClassVar = {
        "gguf": (
            *fused_attention(permute=True),
            *fused_gguf_experts("block_sparse_moe", *PROJECTIONS[:2], "intermediate_size"),
        ),
        "hf": (
            *_FUSED,
            # the names of the modules in transformers 5
            *(evolve(rule, name=rule.name.replace("block_sparse_moe", "mlp")) for rule in _FUSED),
            Rule(f"{LAYER}mlp.gate.weight", f"{LAYER}block_sparse_moe.gate.weight", reading=True),
        ),
        "mlx": stacked_experts("block_sparse_moe", "switch_mlp", zip(SWITCH, PROJECTIONS), reading=False),
        "uqff": stacked_experts("block_sparse_moe", "experts", zip(SWITCH, PROJECTIONS), reading=False),
    }
    constants: ClassVar[Sequence[str]] = SCALED_ROPE
    keys = (*COMMON, VOCABULARY, *MIXTURE["num_local_experts"])
    fixed: ClassVar = {"hidden_act": "silu"}
    unstated: ClassVar = {"rope_theta": 1000000.0}
