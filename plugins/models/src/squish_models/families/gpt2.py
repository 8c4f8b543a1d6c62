"""GPT-2: learned positions, layer norms, and matrices that Hugging Face stores as [in, out]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from squish_convert.api import Model, Rule

from ..config.keys import Key
from ..family import TextModel
from ..tables import Row

MODEL, LAYER = "transformer.", "transformer.h.{n}."
ENGINE = "model."
"""Prefix under which mlx-lm expects the matrices as [out, in]; without it, mlx-lm transposes them."""
OWN_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip


def _matrix(hf: str, gguf: str, columns: str, rows: str) -> Row:
    return Row(hf, gguf, (columns, rows), biased=True, transpose=True, layer=LAYER)


def _norm(hf: str, gguf: str) -> Row:
    return Row(hf, gguf, ("hidden_size",), biased=True, layer=LAYER)


def _mlx(row: Row) -> tuple[Rule, ...]:
    """Return MLX's rules, which have GGUF's expressions."""
    suffixes = (".weight", ".bias") if row.biased else (".weight",)
    names = {suffix: row.module(suffix) for suffix in suffixes}
    return tuple(
        Rule(f"{ENGINE}{name.removeprefix(MODEL)}", row.expression(suffix))
        for suffix, name in names.items()
        if name.startswith(MODEL)
    )


class Gpt2(TextModel):
    """GPT-2: one matrix holds queries, keys and values."""

    model_type, architecture, class_name = "gpt2", "gpt2", "GPT2LMHeadModel"
    rows = (
        Row("transformer.wte", "token_embd", ("vocab_size", "hidden_size"), top=True),
        Row("transformer.wpe", "position_embd", ("max_position_embeddings", "hidden_size"), f32=True, top=True),
        Row("transformer.ln_f", "output_norm", ("hidden_size",), biased=True, top=True),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to="transformer.wte.weight", top=True),
        _norm("ln_1", "attn_norm"),
        _matrix("attn.c_attn", "attn_qkv", "hidden_size", "qkv_rows"),
        _matrix("attn.c_proj", "attn_output", "hidden_size", "hidden_size"),
        _norm("ln_2", "ffn_norm"),
        _matrix("mlp.c_fc", "ffn_up", "hidden_size", "intermediate_size"),
        _matrix("mlp.c_proj", "ffn_down", "intermediate_size", "hidden_size"),
    )
    more: ClassVar = {"mlx": tuple(rule for row in rows for rule in _mlx(row))}
    prefixes: ClassVar = {each: f"{MODEL}{each}" for each in ("wte.", "wpe.", "ln_f.", "h.")}
    keys = (
        Key("n_positions", "context_length"),
        Key("n_embd", "embedding_length"),
        Key("n_layer", "block_count"),
        Key("intermediate_size", "feed_forward_length"),
        Key("n_head", "attention.head_count"),
        Key("layer_norm_epsilon", "attention.layer_norm_epsilon", "f32"),
    )
    fixed: ClassVar = {
        "activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    }  # fmt: skip
    own_names: ClassVar = OWN_NAMES
    derived = (
        *OWN_NAMES, "intermediate_size", "num_key_value_heads", "head_dim", "rotary_dim", "rope_theta",
        "attention_bias", "mlp_bias",
    )  # fmt: skip
    tied_by_default = True

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        width, inner = settings.get("n_embd"), settings.get("n_inner")
        settings["intermediate_size"] = 4 * width if inner is None and isinstance(width, int) else inner
        settings["num_key_value_heads"], settings["head_dim"] = settings.get("n_head"), None
        settings.setdefault("n_ctx", settings.get("n_positions"))  # mlx-lm needs it
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return {**super().sizes(settings), "max_position_embeddings": settings["max_position_embeddings"]}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        own = {"n_ctx": settings["n_positions"], "n_inner": settings["intermediate_size"]}
        return {**settings, **own}
