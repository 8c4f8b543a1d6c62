"""Nomic Embed: encoders with BERT's order of norms and rotary positions, and settings under GPT-2's names.

Source of the names and of GGUF's keys: llama.cpp, conversion/bert.py, src/models/nomic-bert.cpp and nomic-bert-moe.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from attrs import evolve
from squish_convert.api import Carried, Model, Rule

from squish_core.api import Options

from ..config.keys import Key
from ..config.spelling import all_layers
from ..declared import Layers
from ..tables import Row
from .bert import Bert

LAYER = "encoder.layers.{n}."
EVERY, MIXED, DENSE = "moe_every_n_layers", "with_experts", "dense"
"""The setting that says which layers have experts, and the kinds of layers."""
EXPERT_LAYERS = "layers_with_experts"
"""Among the settings: whether each layer has experts."""
OWN_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base",
}  # fmt: skip
SHARE = 4
"""How many times as many positions config.json states as the models are trained for, which is what GGUF has."""


def _row(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(hf, gguf, shape, layer=LAYER, **fields)


def _encoder(biased: bool) -> tuple[Row, ...]:
    """All but the MLP."""
    top = {"top": True}
    return (
        _row("embeddings.word_embeddings", "token_embd", "vocab_size", "hidden_size", **top),
        _row("embeddings.token_type_embeddings", "token_types", "type_vocab_size", "hidden_size", f32=True, **top),
        _row("emb_ln", "token_embd_norm", "hidden_size", biased=True, **top),
        _row("attn.Wqkv", "attn_qkv", "qkv_rows", "hidden_size", biased=biased),
        _row("attn.out_proj", "attn_output", "hidden_size", "hidden_size", biased=biased),
        _row("norm1", "attn_output_norm", "hidden_size", biased=True),
        _row("norm2", "layer_output_norm", "hidden_size", biased=True),
    )


class NomicBert(Bert):
    """Nomic Embed 1 and 1.5: a gated MLP, no biases."""

    model_type, architecture, class_name = "nomic_bert", "nomic-bert", "NomicBertModel"
    rows = (
        *_encoder(biased=False),
        _row("mlp.fc11", "ffn_up", "intermediate_size", "hidden_size"),
        _row("mlp.fc12", "ffn_gate", "intermediate_size", "hidden_size"),
        _row("mlp.fc2", "ffn_down", "hidden_size", "intermediate_size"),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    keys = (
        Key("positions", "context_length"),
        Key("n_embd", "embedding_length"),
        Key("n_layer", "block_count"),
        Key("n_inner", "feed_forward_length"),
        Key("n_head", "attention.head_count"),
        Key("layer_norm_epsilon", "attention.layer_norm_epsilon", "f32"),
        Key("rotary_emb_base", "rope.freq_base", "f32"),
        *(key for key in Bert.keys if not key.required),
    )
    own_names: ClassVar = OWN_NAMES
    aliases: ClassVar = {name: (own,) for name, own in OWN_NAMES.items()} | {
        "max_position_embeddings": ("n_positions",)
    }
    fixed: ClassVar = {
        "activation_function": "swiglu", "hidden_act": "silu", "qkv_proj_bias": False, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "causal": False, "prenorm": False, "parallel_block": False, "use_rms_norm": False,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    }  # fmt: skip
    equivalents: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    unstated: ClassVar = {"type_vocab_size": 2, "rotary_emb_base": 1000.0, "layer_norm_epsilon": 1e-12}
    derived: ClassVar[Sequence[str]] = (*(name for name in Bert.derived if name != "rope_theta"), "positions")
    trained: ClassVar[int] = 2048
    """The most positions that models are trained for."""

    def fits(self, config: Mapping[str, Any]) -> bool:
        return bool(config.get(EVERY)) == bool(self.experts)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        stated = settings.get("n_positions")
        return {**settings, "positions": min(stated, self.trained) if type(stated) is int else None}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        positions = settings["positions"]
        own = {"n_positions": SHARE * positions, "max_position_embeddings": positions}
        return {**settings, **own, "max_trained_positions": positions if not self.experts else SHARE * positions}


class NomicBertMoe(NomicBert):
    """Nomic Embed 2: experts in every second layer, biases in the others."""

    architecture = "nomic-bert-moe"
    rows = (
        *_encoder(biased=True),
        _row("mlp.fc1", "ffn_up", "intermediate_size", "hidden_size", biased=True, kind=DENSE),
        _row("mlp.fc2", "ffn_down", "hidden_size", "intermediate_size", biased=True, kind=DENSE),
        _row("mlp.router.layer", "ffn_gate_inp", "experts", "hidden_size", f32=True, kind=MIXED),
        *(
            _row(
                f"mlp.experts.mlp.{name}", gguf, "expert_rows", "hidden_size", suffix="", kind=MIXED,
                gguf_shape=("experts", "intermediate_size", "hidden_size"), transpose=transpose,
            )
            for name, gguf, transpose in (("w1", "ffn_up_exps", False), ("w2", "ffn_down_exps", True))
        ),
    )  # fmt: skip
    keys = (
        *NomicBert.keys,
        Key("num_experts", "expert_count"),
        Key("moe_top_k", "expert_used_count"),
        Key(EVERY, EVERY),
    )
    own_names: ClassVar = {**OWN_NAMES, "num_experts_per_tok": "moe_top_k"}
    aliases: ClassVar = {**NomicBert.aliases, "num_experts_per_tok": ("moe_top_k",)}
    products: ClassVar = {"expert_rows": ("num_experts", "intermediate_size")}
    kinds: ClassVar = {
        MIXED: Layers(setting=EXPERT_LAYERS, values=(True,)),
        DENSE: Layers(setting=EXPERT_LAYERS, values=(False,)),
    }
    fixed: ClassVar = {
        **NomicBert.fixed, "activation_function": "gelu", "hidden_act": "gelu", "qkv_proj_bias": True,
        "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_normalize_expert_weights": False, "num_shared_experts": 0,
        "expert_choice_router": False,
    }  # fmt: skip
    unstated: ClassVar = {"type_vocab_size": 1, "rotary_emb_base": 10000.0, "layer_norm_epsilon": 1e-5}
    derived: ClassVar[Sequence[str]] = (*NomicBert.derived, EXPERT_LAYERS)
    heads: ClassVar[Sequence[str]] = (*Bert.heads, "*.mlp.experts.bias")
    remainder = "not computed by llama.cpp"
    trained = 512

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        return {**settings, EXPERT_LAYERS: _with_experts(settings)}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        return {**settings, EXPERT_LAYERS: _with_experts(settings)}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        rows, biases = model.rows, [name for name in model.tensors if name.endswith(".mlp.experts.bias")]
        if (
            layout != "gguf"
            or rows is None
            or not any(np.any(rows(name, range(settings["n_embd"]))) for name in biases)
        ):
            return carried
        return evolve(carried, notes=(*carried.notes, "llama.cpp does not add the biases of experts, which are not 0"))


def _with_experts(settings: Mapping[str, Any]) -> list[bool] | None:
    """Whether each layer has experts; None where the settings are no numbers, which is refused elsewhere."""
    every, count = settings.get(EVERY), settings.get("num_hidden_layers")
    if type(every) is not int or type(count) is not int or not 0 < count < 1 << 18 or every < 1:
        return None
    return [layer % every == 1 for layer in range(all_layers(settings))]
