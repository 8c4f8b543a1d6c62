"""Encoders of T5 and UMT5, such as the text encoders of image models: relative positions, and no scaled attention.

Source of the names and of GGUF's keys: llama.cpp, conversion/t5.py and src/models/t5encoder.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Model, Rule

from squish_core.api import ErrorCode, FormatError, Options

from ..config.keys import Key
from ..engines.needs import EngineNeeds
from ..family import TextModel
from ..general import check_modules
from ..settings import CONFIG
from ..tables import Row, norm
from .bert import classes_of

FIRST = "first"
"""The layers with a table of relative positions, where the others have none of their own."""
OWN_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
    "head_dim": "d_kv", "intermediate_size": "d_ff", "max_position_embeddings": "n_positions",
}  # fmt: skip
BUCKETS, ACTIVATION, TWICE = "relative_attention_num_buckets", "feed_forward_proj", "shared_twice"
SHARED, COPY = "shared.weight", "encoder.embed_tokens.weight"
"""The embeddings, and another name that they may have, or a copy of them."""
GATED = (
    Row("1.DenseReluDense.wi_0", "ffn_gate", ("intermediate_size", "hidden_size")),
    Row("1.DenseReluDense.wi_1", "ffn_up", ("intermediate_size", "hidden_size")),
)
UNGATED = (Row("1.DenseReluDense.wi", "ffn_up", ("intermediate_size", "hidden_size")),)


def encoder(mlp: Sequence[Row], positions: str) -> tuple[Row, ...]:
    """The embeddings and layers, with the first matrices of an MLP; `positions`: the kind of layers with a table."""
    layers = (
        norm("0.layer_norm", "attn_norm"),
        *(Row(f"0.SelfAttention.{name}", f"attn_{name}", ("q_rows", "hidden_size")) for name in "qkv"),
        Row("0.SelfAttention.o", "attn_o", ("hidden_size", "q_rows")),
        Row("0.SelfAttention.relative_attention_bias", "attn_rel_b", (BUCKETS, "num_attention_heads"), f32=True,
            kind=positions),
        norm("1.layer_norm", "ffn_norm"),
        *mlp,
        Row("1.DenseReluDense.wo", "ffn_down", ("hidden_size", "intermediate_size")),
    )  # fmt: skip
    return (
        Row("shared", "token_embd", ("vocab_size", "hidden_size"), top=True),
        norm("encoder.final_layer_norm", "enc.output_norm", top=True),
        *(evolve(row, layer="encoder.block.{n}.layer.", block="enc.blk.{n}.") for row in layers),
    )


class T5Encoder(TextModel):
    """T5, the first version: an MLP without a gate."""

    model_type, architecture, class_name = "t5", "t5encoder", "T5EncoderModel"
    rows: ClassVar[Sequence[Row]] = encoder(UNGATED, FIRST)
    more: ClassVar = {"hf": (Rule(COPY, SHARED, reading=True),)}
    keys = (
        Key("n_positions", "context_length"),
        Key("d_model", "embedding_length"),
        Key("num_layers", "block_count"),
        Key("d_ff", "feed_forward_length"),
        Key("num_heads", "attention.head_count"),
        Key("d_kv", "attention.key_length"),
        Key("d_kv", "attention.value_length"),
        Key("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "f32"),
        Key("layer_norm_epsilon", "attention.layer_norm_epsilon", "f32", required=False),
        Key(BUCKETS, "attention.relative_buckets_count"),
    )
    activation: ClassVar[str] = "relu"
    unstated: ClassVar = {
        "n_positions": 512, "layer_norm_epsilon": 1e-06, BUCKETS: 32, "relative_attention_max_distance": 128,
        ACTIVATION: "relu",
    }  # fmt: skip
    own_names: ClassVar = OWN_NAMES
    derived = (
        *OWN_NAMES, "num_key_value_heads", "rotary_dim", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias",
        "tie_word_embeddings", TWICE,
    )  # fmt: skip
    prefixes: ClassVar = {}
    generates = False
    remainder = "of the decoder, or a copy of the embeddings"
    engines: ClassVar = {name: EngineNeeds(supported=False) for name in ("mlx", "mistralrs")}

    def fits(self, config: Mapping[str, Any]) -> bool:
        return self._activation(config) == self.activation

    def _activation(self, config: Mapping[str, Any]) -> Any:
        """The activation that a config.json states; those of other gates than GELU's are T5's first version."""
        stated = config.get(ACTIVATION, self.unstated[ACTIVATION])
        return stated if stated == GatedT5Encoder.activation else T5Encoder.activation

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {ACTIVATION: self.activation, "relative_attention_max_distance": 128}

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        names = classes_of(settings)
        if names and not any("Encoder" in name for name in names):
            raise FormatError(
                "names a model with a decoder, and Squish converts the encoder alone",
                part=f"{CONFIG} architectures",
                code=ErrorCode.CONFIG,
                expected=self.class_name,
                found=", ".join(names)[:60],
                hint=f'State "architectures": ["{self.class_name}"] there to write the encoder alone.',
            )
        super().check_for_gguf(settings)

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Sequence[int]:
        return range(min(1, settings["num_hidden_layers"]))

    def left_out(self, settings: Mapping[str, Any]) -> Sequence[str]:
        copies = (COPY,) if settings.get(TWICE) else ()
        return (*super().left_out(settings), "decoder.*", "lm_head.*", *copies)

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().sizes(settings), BUCKETS: settings[BUCKETS]}

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = super()._from_config(model)
        twice = {SHARED, COPY} <= {*model.tensors}
        return {**settings, "tie_word_embeddings": True, TWICE: twice}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        if layout == "gguf" and model.layout != "gguf":
            check_modules(model.assets)
        return super().carry(model, settings, layout, options)


class GatedT5Encoder(T5Encoder):
    """T5 1.1 and Flan-T5: an MLP with a gate."""

    rows = encoder(GATED, FIRST)
    activation = "gated-gelu"


class Umt5Encoder(GatedT5Encoder):
    """UMT5: a table of relative positions in each layer."""

    model_type, class_name = "umt5", "UMT5EncoderModel"
    rows = encoder(GATED, "")
    unstated: ClassVar = {**T5Encoder.unstated, ACTIVATION: "gated-gelu"}
