"""Llama and similar models: GGUF interleaves the rows of each head of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve
from squish_convert.api import Rule

from ..config.keys import COMMON, MIXTURE, VOCABULARY, Key
from ..family import TextModel
from ..rules import fused_attention, fused_experts, fused_gguf_experts, stacked_experts
from ..tables import LAYER, SWITCH, attention, experts, gated_mlp, pre_norm_model, router

SCALED_ROPE = ("rope_freqs.weight",)
PROJECTIONS = ("w1", "w3", "w2")
"""Gate, up and down of Mixtral's experts."""


class Llama(TextModel):
    """Llama 1 to 3, SmolLM2, Mistral, Mistral-Nemo."""

    model_type, architecture, class_name = "llama", "llama", "LlamaForCausalLM"
    rows = pre_norm_model(attention(permute=True), gated_mlp(bias=True))
    more: ClassVar = {"gguf": fused_attention(permute=True)}
    constants = SCALED_ROPE
    keys: ClassVar[Sequence[Key]] = (*COMMON, VOCABULARY)
    fixed: ClassVar = {"hidden_act": "silu"}


class Granite(Llama):
    """Granite 3: Llama with multipliers of embeddings, attention, residuals and logits."""

    model_type, architecture, class_name = "granite", "granite", "GraniteForCausalLM"
    keys = (
        *Llama.keys,
        Key("embedding_multiplier", "embedding_scale", "f32"),
        Key("attention_multiplier", "attention.scale", "f32"),
        Key("residual_multiplier", "residual_scale", "f32"),
        Key("logits_scaling", "logit_scale", "f32"),
    )


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
    constants = SCALED_ROPE
    keys = (*COMMON, VOCABULARY, *MIXTURE["num_local_experts"])
    fixed: ClassVar = {"hidden_act": "silu"}
