"""LFM: layers with attention, and layers with short convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from ..config.keys import SIZES, SIZES_LIST, VOCABULARY, Key, check_settings
from ..family import TextModel
from ..settings import BARE, CONFIG, MOST_BLOCKS
from ..tables import Row, norm

ATTENTION, CONVOLUTION = "full_attention", "conv"
FEED_FORWARD = ("intermediate_size", "hidden_size")


class Lfm2(TextModel):
    """LFM 2: GGUF states the kind of a layer by its number of key-value heads, 0 for a convolution."""

    model_type, architecture, class_name = "lfm2", "lfm2", "Lfm2ForCausalLM"
    rows = (
        Row("model.embed_tokens", "token_embd", ("vocab_size", "hidden_size"), top=True),
        norm("model.embedding_norm", "token_embd_norm", top=True),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to="model.embed_tokens.weight", top=True),
        norm("operator_norm", "attn_norm"),
        Row("self_attn.q_proj", "attn_q", ("q_rows", "hidden_size"), kind=ATTENTION),
        Row("self_attn.k_proj", "attn_k", ("kv_rows", "hidden_size"), kind=ATTENTION),
        Row("self_attn.v_proj", "attn_v", ("kv_rows", "hidden_size"), kind=ATTENTION),
        Row("self_attn.out_proj", "attn_output", ("hidden_size", "q_rows"), kind=ATTENTION),
        Row("self_attn.q_layernorm", "attn_q_norm", ("head_dim",), kind=ATTENTION),
        Row("self_attn.k_layernorm", "attn_k_norm", ("head_dim",), kind=ATTENTION),
        Row(
            "conv.conv",
            "shortconv.conv",
            ("hidden_size", "one", "taps"),
            gguf_shape=("hidden_size", "taps"),
            f32=True,
            kind=CONVOLUTION,
        ),
        Row("conv.in_proj", "shortconv.in_proj", ("in_rows", "hidden_size"), kind=CONVOLUTION),
        Row("conv.out_proj", "shortconv.out_proj", ("hidden_size", "hidden_size"), kind=CONVOLUTION),
        norm("ffn_norm", "ffn_norm"),
        Row("feed_forward.w1", "ffn_gate", FEED_FORWARD),
        Row("feed_forward.w3", "ffn_up", FEED_FORWARD),
        Row("feed_forward.w2", "ffn_down", FEED_FORWARD[::-1]),
    )
    keys = (
        *(key for key in SIZES if key.hf != "num_key_value_heads"),
        Key("kv_heads", "attention.head_count_kv", SIZES_LIST),
        Key("norm_eps", "attention.layer_norm_rms_epsilon", "f32"),
        Key("conv_L_cache", "shortconv.l_cache"),
        VOCABULARY,
    )
    fixed: ClassVar = {"conv_bias": False}
    unstated: ClassVar = {"rope_theta": 1000000.0}
    prefixes: ClassVar = {**BARE, "embedding_norm.": "model.embedding_norm.", "model.language_model.": "model."}
    other_modalities: ClassVar[Sequence[str]] = tuple(
        f"{outer}{part}.*" for outer in ("model.", "") for part in ("vision_tower", "multi_modal_projector")
    )
    tied_by_default = True

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if settings["block_auto_adjust_ff_dim"]:  # GGUF stores the adjusted size
            size = int(2 * settings["intermediate_size"] / 3)
            if settings["block_ffn_dim_multiplier"] is not None:
                size, step = int(settings["block_ffn_dim_multiplier"] * size), settings["block_multiple_of"] or 1
                size = step * -(-size // step)
            settings |= {"intermediate_size": size, "block_auto_adjust_ff_dim": False}
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        more = {"one": 1, "taps": settings["conv_L_cache"], "in_rows": 3 * settings["hidden_size"]}
        return {**super().sizes(settings), **more}

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        return settings["layer_types"]

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**DEFAULTS, **super().spelled(config)}
        check_settings([*UNKEYED, *COUNTS], settings, CONFIG)
        layers, groups = settings.get("num_hidden_layers"), settings.get("num_key_value_heads")
        if "layer_types" not in settings and isinstance(layers, int) and layers <= MOST_BLOCKS:
            attention = set(settings.get("full_attn_idxs") or range(layers))
            settings["layer_types"] = [ATTENTION if layer in attention else CONVOLUTION for layer in range(layers)]
        kinds = settings.get("layer_types")
        if (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or not all(kind in (ATTENTION, CONVOLUTION) for kind in kinds)
        ):
            raise FormatError(
                "does not give a kind for each layer",
                part=f"{CONFIG} layer_types",
                code=ErrorCode.CONFIG,
                expected=f"{layers} (num_hidden_layers) of {ATTENTION} and {CONVOLUTION}",
                found=str(kinds)[:60],
            )
        settings["kv_heads"] = [groups if kind == ATTENTION else 0 for kind in kinds]
        settings.setdefault("intermediate_size", settings.get("block_ff_dim"))
        settings.setdefault("block_dim", settings.get("hidden_size"))
        return settings

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        heads = settings["kv_heads"]
        heads = heads * settings["num_hidden_layers"] if len(heads) == 1 else heads
        groups = {each for each in heads if each}
        if len(heads) != settings["num_hidden_layers"] or len(groups) != 1:
            raise FormatError(
                "has different numbers of heads in the layers with attention",
                part="lfm2.attention.head_count_kv",
                code=ErrorCode.CONFIG,
                expected="0 or one other number for each layer",
                found=str(heads)[:60],
            )
        kinds = [ATTENTION if each else CONVOLUTION for each in heads]
        derived = {"layer_types": kinds, "num_key_value_heads": groups.pop(), "block_dim": settings["hidden_size"]}
        return {**DEFAULTS, **settings, "kv_heads": heads, **derived, "block_auto_adjust_ff_dim": False}


DEFAULTS = {
    "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True, "conv_L_cache": 3,
}  # fmt: skip
"""Defaults of Transformers for keys missing in config.json."""
COUNTS = (Key("num_hidden_layers", ""), Key("num_key_value_heads", ""))
"""Settings that `kv_heads` is made of."""
UNKEYED = (
    Key("full_attn_idxs", "", SIZES_LIST, required=False),
    Key("block_multiple_of", "", required=False),
    Key("block_ffn_dim_multiplier", "", "f32", required=False),
)
"""Settings that determine others, and have no GGUF key."""
