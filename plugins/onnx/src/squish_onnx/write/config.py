"""What a family's config.json says of its graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from squish_core.api import ErrorCode, FormatError

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
SLIDING = "sliding_attention"
PRE_NORMS = ("input_layernorm", "", "post_attention_layernorm", "")
NORMS = {"olmo2": ("", "post_attention_layernorm", "", "post_feedforward_layernorm")}
SANDWICH = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)  # fmt: skip


_LARGEST = {"num_hidden_layers": 4096}
"""A config.json may say anything; the graph is built layer by layer."""


@frozen(kw_only=True)
class Rope:
    """Angles per position: one frequency for each rotated pair of a head."""

    frequencies: tuple[float, ...]


@frozen(kw_only=True)
class Decoder:
    """A decoder of one of the families in `FAMILIES`. `norm_offset` is added to the weights of norms.

    `windows`: the sliding window of each layer, 0 for full attention. `ropes`: the angles of each layer. `norms`: names
    of the norms before and after attention, and before and after the MLP; "" for none. `attention_cap`, `logits_cap`:
    bounds that scores and logits approach (tanh), 0 for none.
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
    norms: tuple[str, str, str, str] = PRE_NORMS
    context: int = 0
    tokens: Mapping[str, Any] = field(factory=dict)


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "granite", "olmo2")
"""`model_type` of the families that have a graph."""


def read_decoder(config: Mapping[str, Any]) -> Decoder:
    """The decoder that a config.json describes.

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
        The family has no graph, or an entry is missing or of a kind that the graph does not have.
    """
    text = config.get("text_config") or config
    family = text.get("model_type", "")
    if family not in FAMILIES:
        raise FormatError(
            "no graph for this family", part="config.json", expected=", ".join(FAMILIES), found=repr(family),
            code="family", hint="Pass an existing model as the graph, or write another format.",
        )  # fmt: skip
    heads, hidden = _integer(text, "num_attention_heads"), _integer(text, "hidden_size")
    layers = _integer(text, "num_hidden_layers")
    head_size = text.get("head_dim") or hidden // heads
    gemma = family.startswith("gemma")
    activation = text.get("hidden_activation") or text.get("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise _unsupported("hidden_act", ", ".join(ACTIVATIONS), activation)
    windows = _windows(text, family, layers)
    return Decoder(
        family=family, layers=layers, hidden=hidden, heads=heads, head_size=head_size,
        kv_heads=text.get("num_key_value_heads") or heads, vocabulary=_integer(text, "vocab_size"),
        epsilon=float(text.get("rms_norm_eps", 1e-6)), activation=ACTIVATIONS[activation],
        scale=text.get("attention_multiplier") or text.get("query_pre_attn_scalar", head_size) ** -0.5,
        tied=bool(text.get("tie_word_embeddings", gemma)), windows=windows,
        ropes=tuple(_rope(text, head_size, family == "gemma3_text" and window > 0) for window in windows),
        norm_offset=1.0 if gemma else 0.0, norms=_norms(family), residual_factor=text.get("residual_multiplier") or 1.0,
        logits_factor=1 / (text.get("logits_scaling") or 1.0),
        attention_cap=text.get("attn_logit_softcapping") or 0.0, logits_cap=text.get("final_logit_softcapping") or 0.0,
        embedding_factor=float(np.float32(math.sqrt(hidden))) if gemma else text.get("embedding_multiplier") or 1.0,
        context=int(text.get("max_position_embeddings") or 2048),
        tokens={key: text.get(key, config.get(key)) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )  # fmt: skip


def _norms(family: str) -> tuple[str, str, str, str]:
    return SANDWICH if family.startswith("gemma") else NORMS.get(family, PRE_NORMS)


def _windows(text: Mapping[str, Any], family: str, layers: int) -> tuple[int, ...]:
    window = text.get("sliding_window") or 0
    if family in ("qwen2", "qwen3") and not text.get("use_sliding_window", False):
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
        raise _unsupported("layer_types", f"{layers} entries", f"{len(types)} entries")
    return tuple(window if each == SLIDING else 0 for each in types)


def _rope(text: Mapping[str, Any], head_size: int, local: bool) -> Rope:
    """The angles of a layer: inverse frequencies in f32, as transformers computes them."""
    parameters = text.get("rope_parameters") or {}
    nested = parameters.get(SLIDING if local else "full_attention")
    scaling = nested or (None if local else text.get("rope_scaling")) or (parameters if not local else {})
    base = float(
        (nested or {}).get("rope_theta")
        or (text.get("rope_local_base_freq", 10000.0) if local else None)
        or parameters.get("rope_theta") or text.get("rope_theta", 10000.0)
    )  # fmt: skip
    rotated = int(head_size * float(scaling.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 1))
    exponents = np.arange(0, rotated, 2, dtype=np.int64).astype(np.float32) / np.float32(rotated)
    frequencies = (np.float32(1) / np.power(np.float32(base), exponents)).astype(np.float32)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        frequencies = frequencies / np.float32(scaling["factor"])
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind != "default":
        raise _unsupported("rope_scaling", "default, linear or llama3", kind)
    return Rope(frequencies=tuple(frequencies.tolist()))


def _llama3(frequencies: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """Llama 3.1: long wavelengths are stretched, those between the bounds are interpolated."""
    factor, low, high = (scaling[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context = scaling["original_max_position_embeddings"]
    lengths = 2 * math.pi / frequencies
    stretched = np.where(lengths > context / low, frequencies / factor, frequencies)
    smooth = (context / lengths - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    medium = ~(lengths < context / high) & ~(lengths > context / low)
    return np.where(medium, between, stretched).astype(np.float32)


def _integer(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value <= _LARGEST.get(key, (1 << 31) - 1):
        raise _unsupported(key, f"an integer from 1 to {_LARGEST.get(key, (1 << 31) - 1)}", value)
    return value


def _unsupported(key: str, expected: str, found: object) -> FormatError:
    return FormatError(
        f"{key} is not one that the graph has",
        part="config.json",
        expected=expected,
        found=repr(found),
        code=ErrorCode.CONFIG,
    )
