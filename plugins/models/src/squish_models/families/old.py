"""Families of 2023 and 2024 whose settings are computed from others.

Source of the names and of the order of rows: llama.cpp, conversion/falcon.py and conversion/minicpm.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Model, Tile

from squish_core.api import ErrorCode, FormatError, Options

from ..config.keys import SIZES, Key, check_settings, shortest
from ..declared import Declared, Layers
from ..engines.needs import EngineNeeds
from ..settings import CONFIG
from ..tables import Row
from .llama import Llama

LAYER = "transformer.h.{n}."
ONE, TWO = "one_norm", "two_norms"
"""Kinds of layers, and the setting that tells them apart: before attention and MLP there is one norm, or one each."""


def _row(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(hf, gguf, shape, layer=LAYER, **fields)


class Falcon(Declared):
    """Falcon: in one matrix, the queries of each key-value head precede its key and its value; GGUF sorts them."""

    model_type, architecture, class_name = "falcon", "falcon", "FalconForCausalLM"
    rows = (
        _row("transformer.word_embeddings", "token_embd", "vocab_size", "hidden_size", top=True),
        _row("transformer.ln_f", "output_norm", "hidden_size", biased=True, top=True),
        _row("lm_head", "output", "vocab_size", "hidden_size", tied_to="transformer.word_embeddings.weight", top=True),
        _row(
            "self_attention.query_key_value", "attn_qkv", "qkv_rows", "hidden_size",
            tile=Tile("", "num_key_value_heads", ("group_rows", "head_dim", "head_dim")),
        ),
        _row("input_layernorm", "attn_norm", "hidden_size", biased=True, kind=ONE),
        _row("ln_mlp", "attn_norm", "hidden_size", biased=True, kind=TWO),
        _row("ln_attn", "attn_norm_2", "hidden_size", biased=True, kind=TWO),
        _row("self_attention.dense", "attn_output", "hidden_size", "q_rows"),
        _row("mlp.dense_h_to_4h", "ffn_up", "intermediate_size", "hidden_size"),
        _row("mlp.dense_4h_to_h", "ffn_down", "hidden_size", "intermediate_size"),
    )  # fmt: skip
    keys = (
        *(key for key in SIZES if key.hf not in ("head_dim", "is_causal", "intermediate_size")),
        Key("ffn_hidden_size", "feed_forward_length"),
        Key("layer_norm_epsilon", "attention.layer_norm_epsilon", "f32"),
    )
    own_names: ClassVar = {"intermediate_size": "ffn_hidden_size"}
    aliases: ClassVar = {"intermediate_size": ("ffn_hidden_size",)}
    computed: ClassVar = {"intermediate_size": ("hidden_size", "4")}
    kinds: ClassVar = {ONE: Layers(unless=TWO), TWO: Layers(when=TWO)}
    fixed: ClassVar = {"alibi": False, "bias": False, "parallel_attn": True, "activation": "gelu"}
    unstated: ClassVar = {"max_position_embeddings": 2048}
    derived = ("rotary_dim", "num_key_value_heads", "head_dim", "intermediate_size", "attention_bias", "mlp_bias", TWO)
    tied_by_default = True
    engines: ClassVar = {"mlx": EngineNeeds(supported=False)}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        heads, is_new = settings.get("num_attention_heads"), bool(settings.get("new_decoder_architecture"))
        groups = settings.get("num_kv_heads") or heads
        is_multi_query = not is_new and settings.get("multi_query", True)
        norms = settings.get("num_ln_in_parallel_attn") or 2
        if not is_new and not is_multi_query and groups != heads:
            raise FormatError(
                "is not the number of heads, though the model has neither groups nor a single one",
                part=f"{CONFIG} num_kv_heads",
                code=ErrorCode.CONFIG,
                expected=heads,
                found=groups,
                hint="Correct it, or new_decoder_architecture or multi_query.",
            )
        more = {"num_key_value_heads": 1 if is_multi_query else groups, "head_dim": None, TWO: is_new and norms == 2}
        return {**settings, **more} | ({"parallel_attn": True} if is_new else {})

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        groups = settings.get("num_key_value_heads", settings["num_attention_heads"])
        two_norms = "blk.0.attn_norm_2.weight" in model.tensors
        is_new = two_norms or groups not in (1, settings["num_attention_heads"])
        more = {"num_kv_heads": groups, "new_decoder_architecture": is_new, "multi_query": groups == 1, TWO: two_norms}
        return {**settings, **more} | ({"num_ln_in_parallel_attn": 1 + two_norms} if is_new else {})


class MiniCpm(Llama):
    """MiniCPM 1 and 2: Llama with scales of embeddings, residuals and logits, each computed from two settings."""

    model_type, architecture, class_name = "minicpm", "minicpm", "MiniCPMForCausalLM"
    scales = (Key("scale_emb", "", "f32"), Key("scale_depth", "", "f32"), Key("dim_model_base", ""))
    keys = (
        *Llama.keys,
        Key("embedding_scale", "embedding_scale", "f32"),
        Key("residual_scale", "residual_scale", "f32"),
        Key("logit_scale", "logit_scale", "f32"),
    )
    constants: ClassVar[Sequence[str]] = ("rope_factors_long.weight", "rope_factors_short.weight")
    derived = (*Llama.derived, "embedding_scale", "residual_scale", "logit_scale")
    tied_by_default = True
    engines: ClassVar = {
        "transformers": EngineNeeds(supported=False),
        "mlx": EngineNeeds(
            required=(
                "model_type", "hidden_size", "dim_model_base", "num_hidden_layers", "intermediate_size",
                "num_attention_heads", "rms_norm_eps", "vocab_size", "num_key_value_heads", "scale_depth", "scale_emb",
            ),
            defaults={"rope_theta": 1000000.0},
        ),
    }  # fmt: skip

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        check_settings(self.scales, settings, CONFIG)
        check_settings(SIZES[1:3], settings, CONFIG)
        if not settings["dim_model_base"] or not settings["num_hidden_layers"]:
            raise FormatError(
                "is 0, and the scale of the logits or of residuals has no value",
                part=f"{CONFIG} dim_model_base, num_hidden_layers",
                code=ErrorCode.CONFIG,
                expected="at least 1",
                found=0,
            )
        return {
            **settings,
            "embedding_scale": float(settings["scale_emb"]),
            "residual_scale": settings["scale_depth"] / settings["num_hidden_layers"] ** 0.5,
            "logit_scale": settings["hidden_size"] / settings["dim_model_base"],
        }

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = super()._from_config(model)
        has_head = any(name.endswith(self.head) for name in model.tensors)  # without it, mlx-lm ties the stated one
        return {**settings, "tie_word_embeddings": settings["tie_word_embeddings"] or not has_head}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        is_tied = layout == "mlx" and settings["tie_word_embeddings"]
        return evolve(carried, dense_only=(r"embed_tokens\.",)) if is_tied else carried

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        base = settings["hidden_size"] / settings["logit_scale"]
        depth = shortest(settings["residual_scale"] * settings["num_hidden_layers"] ** 0.5)
        embedding = settings["embedding_scale"]
        return {
            **settings,
            "scale_emb": int(embedding) if embedding.is_integer() else embedding,
            "scale_depth": round(depth, 6),
            "dim_model_base": round(base),
        }
