"""The structure of a decoder, from its config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from squish_core.api import FormatError

from .rope import Rope, read_rope, unsupported

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
SLIDING = "sliding_attention"
CONVOLUTION = "conv"

_LARGEST = {"num_hidden_layers": 4096, "num_attention_heads": 65536, "num_key_value_heads": 65536, "head_dim": 65536}
"""Upper bounds, because the graph grows with each of these settings."""


@frozen(kw_only=True)
class Names:
    """Tensor names of a family.

    `norms`: before and after attention, before and after the MLP; "" for none. `head_norm`: suffix of the norms of
    queries and keys. `gate`, `up`, `down`: projections of the MLP or of each expert; without a gate, `up` alone.
    """

    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    final_norm: str = "norm"
    head_norm: str = "norm"
    output: str = "o_proj"
    mlp: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_SANDWICH = Names(
    norms=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
)
NAMES = {
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "olmo2": Names(norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm")),
    "glm4": Names(
        norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    ),
    "mixtral": Names(mlp="block_sparse_moe", gate="w1", up="w3", down="w2"),
    "starcoder2": Names(gate="", up="c_fc", down="c_proj"),
    "lfm2": Names(
        norms=("operator_norm", "", "ffn_norm", ""), final_norm="embedding_norm", head_norm="layernorm",
        output="out_proj", mlp="feed_forward", gate="w1", up="w3", down="w2",
    ),
}  # fmt: skip
"""Tensor names of the families that do not use Llama's."""


@frozen(kw_only=True)
class Decoder:
    """A decoder of one of the families in `FAMILIES`. `norm_offset` is added to the weights of norms.

    `windows`: the sliding window of each layer, 0 for full attention. `ropes`: the angles of each layer. `kinds`: the
    layer types of config.json. `taps`: kernel size of the short convolution. `layer_norm`: norms subtract the mean and
    have biases. `interleaved`: rotary pairs are neighbours, not halves. `experts_per_token`: for layers with a router.
    `attention_cap`, `logits_cap`: soft caps (tanh) of scores and logits, 0 for none.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    epsilon: float
    activation: str
    scale: float
    tied: bool
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]
    norm_offset: float = 0.0
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_factor: float = 1.0
    attention_cap: float = 0.0
    logits_cap: float = 0.0
    names: Names = Names()
    kinds: tuple[str, ...] = ()
    taps: int = 0
    layer_norm: bool = False
    interleaved: bool = False
    experts_per_token: int = 0
    normalized_routing: bool = True
    context: int = 0
    tokens: Mapping[str, Any] = field(factory=dict)


_QWEN_VL = ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
FAMILIES = (
    "llama", "mistral", "mixtral", "qwen2", *_QWEN_VL, "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "granite",
    "olmo2", "glm4", "starcoder2", "lfm2",
)  # fmt: skip
"""`model_type` of the families that can be written."""
TIED = ("gemma2", "gemma3_text", "starcoder2", "lfm2")
"""Families that tie the head to the embedding by default."""
EPSILONS = ("rms_norm_eps", "norm_eps", "norm_epsilon")


def read_decoder(config: Mapping[str, Any]) -> Decoder:
    """Read the decoder that a config.json describes.

    Parameters
    ----------
    config
        The configuration as transformers spells it.

    Returns
    -------
    Decoder
        Sizes and constants of the graph.

    Raises
    ------
    FormatError
        The family is not supported, or a setting is missing or not supported.

    Examples
    --------
    >>> sizes = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 96}
    >>> read_decoder({"model_type": "llama", **sizes}).head_size
    16
    """
    try:
        return _decoder(config)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise unsupported("a setting", "the types that transformers writes", error) from None


def _decoder(config: Mapping[str, Any]) -> Decoder:
    text = config.get("text_config") or config
    family = text.get("model_type", "")
    if family not in FAMILIES:
        raise FormatError(
            "no graph for this family",
            part="config.json",
            expected=", ".join(FAMILIES),
            found=repr(family),
            code="graph-family",
            hint="Reuse the graph of another model with --graph MODEL.onnx, or write another format.",
        )
    heads, hidden = _integer(text, "num_attention_heads"), _integer(text, "hidden_size")
    layers = _integer(text, "num_hidden_layers")
    head_size = _integer({"head_dim": text.get("head_dim") or hidden // heads}, "head_dim")
    kv_heads = _integer({"num_key_value_heads": text.get("num_key_value_heads") or heads}, "num_key_value_heads")
    gemma = family.startswith("gemma")
    activation = text.get("hidden_activation") or text.get("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise unsupported("hidden_act", ", ".join(ACTIVATIONS), activation)
    windows = _windows(text, family, layers)
    return Decoder(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_size=head_size,
        kv_heads=kv_heads,
        vocabulary=_integer(text, "vocab_size"),
        epsilon=float(next((text[key] for key in EPSILONS if key in text), 1e-6)),
        activation=ACTIVATIONS[activation],
        scale=text.get("attention_multiplier") or text.get("query_pre_attn_scalar", head_size) ** -0.5,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", family in TIED))),
        windows=windows,
        ropes=tuple(read_rope(text, head_size, family == "gemma3_text" and window > 0) for window in windows),
        norm_offset=1.0 if gemma else 0.0,
        names=NAMES.get(family, Names()),
        layer_norm=family == "starcoder2",
        interleaved=family == "glm4",
        kinds=_kinds(text, family, layers),
        taps=int(text.get("conv_L_cache") or 0),
        experts_per_token=int(text.get("num_experts_per_tok") or 0),
        normalized_routing=family != "qwen3_moe" or bool(text.get("norm_topk_prob", False)),
        residual_factor=text.get("residual_multiplier") or 1.0,
        logits_factor=1 / (text.get("logits_scaling") or 1.0),
        attention_cap=text.get("attn_logit_softcapping") or 0.0,
        logits_cap=text.get("final_logit_softcapping") or 0.0,
        embedding_factor=float(np.float32(math.sqrt(hidden))) if gemma else text.get("embedding_multiplier") or 1.0,
        context=int(text.get("max_position_embeddings") or 2048),
        tokens={key: text.get(key, config.get(key)) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )


def _kinds(text: Mapping[str, Any], family: str, layers: int) -> tuple[str, ...]:
    """Return the layer types of a family with short convolutions."""
    if family != "lfm2":
        return ()
    attentive = text.get("full_attn_idxs") or range(layers)
    kinds = text.get("layer_types") or [
        "full_attention" if layer in attentive else CONVOLUTION for layer in range(layers)
    ]
    if len(kinds) != layers:
        raise unsupported("layer_types", f"{layers} entries", f"{len(kinds)} entries")
    return tuple(kinds)


def _windows(text: Mapping[str, Any], family: str, layers: int) -> tuple[int, ...]:
    window = text.get("sliding_window") or 0
    if family.startswith("qwen") and not text.get("use_sliding_window", False):
        window = 0
    types = text.get("layer_types")
    if types is None and family == "gemma2":
        types = [SLIDING if layer % 2 == 0 else "full_attention" for layer in range(layers)]
    if types is None and family == "gemma3_text":
        pattern = text.get("sliding_window_pattern") or 6
        types = ["full_attention" if (layer + 1) % pattern == 0 else SLIDING for layer in range(layers)]
    if types is None:
        return (window,) * layers
    if len(types) != layers:
        raise unsupported("layer_types", f"{layers} entries", f"{len(types)} entries")
    return tuple(window if kind == SLIDING else 0 for kind in types)


def _integer(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value <= _LARGEST.get(key, (1 << 31) - 1):
        raise unsupported(key, f"an integer from 1 to {_LARGEST.get(key, (1 << 31) - 1)}", value)
    return value
