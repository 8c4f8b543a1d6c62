"""Rotary position embeddings: their settings in config.json, and their nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from squish_core.api import ErrorCode, FormatError

from . import proto
from .graph import Graph

KINDS = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")


@frozen(kw_only=True)
class Rope:
    """The frequency of each rotary pair of a head, and the factor of cosines and sines.

    `long`: frequencies for texts of more than `limit` positions (longrope). `base`, `stretch`: beyond `limit`
    positions, the base grows with the length of the text (dynamic).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0
    limit: int = 0
    long: tuple[float, ...] = ()
    base: float = 0.0
    stretch: float = 0.0


def read_rope(text: Mapping[str, Any], head_size: int, local: bool) -> Rope:
    """Read the rotary settings of a layer; frequencies are computed in f32, as in transformers.

    Parameters
    ----------
    text
        The configuration of the text model.
    head_size
        Elements per head.
    local
        Whether the layer has a sliding window and its own settings.

    Returns
    -------
    Rope
        Frequencies and factors.

    Raises
    ------
    FormatError
        The type is unknown, or one of its settings is missing.

    Examples
    --------
    >>> read_rope({"rope_theta": 100.0}, 4, False).frequencies
    (1.0, 0.10000000149011612)
    """
    parameters = text.get("rope_parameters") or {}
    nested = parameters.get("sliding_attention" if local else "full_attention")
    scaling = nested or (None if local else text.get("rope_scaling")) or (parameters if not local else {})
    base = float(
        (nested or {}).get("rope_theta")
        or (text.get("rope_local_base_freq", 10000.0) if local else None)
        or parameters.get("rope_theta")
        or text.get("rope_theta", 10000.0)
    )
    partial = scaling.get("partial_rotary_factor") or text.get("partial_rotary_factor")
    rotated = int(head_size * float(partial or (0.5 if text.get("model_type") == "glm4" else 1)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kind = "default" if kind == "mrope" else kind  # in text, the three positions of a token are equal
    if kind not in KINDS or rotated < 2:
        raise unsupported("rope_scaling", ", ".join(KINDS), kind)
    try:
        with np.errstate(all="ignore"):
            powers = np.power(np.float32(base), _exponents(rotated))
            rope: Rope = _FUNCTIONS[kind](powers, base, {**text, **scaling})
        if not np.isfinite([*rope.frequencies, *rope.long, rope.factor, rope.stretch]).all():
            raise ValueError("a frequency is not finite")
        return rope
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise unsupported("rope_scaling", f"the settings of {kind}", repr(error)) from None


def _exponents(rotated: int) -> np.ndarray:
    return np.arange(0, rotated, 2, dtype=np.int64).astype(np.float32) / np.float32(rotated)


def _inverse(powers: np.ndarray) -> tuple[float, ...]:
    return tuple((np.float32(1) / powers).astype(np.float32).tolist())


def _default(powers: np.ndarray, base: float, settings: Mapping[str, Any]) -> Rope:
    return Rope(frequencies=_inverse(powers))


def _linear(powers: np.ndarray, base: float, settings: Mapping[str, Any]) -> Rope:
    frequencies = (np.float32(1) / powers) / np.float32(settings["factor"])
    return Rope(frequencies=tuple(frequencies.tolist()))


def _llama3(powers: np.ndarray, base: float, settings: Mapping[str, Any]) -> Rope:
    """Compute Llama 3.1's frequencies: long wavelengths scaled, those between the bounds interpolated."""
    frequencies = np.float32(1) / powers
    factor, low, high = (settings[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context = settings["original_max_position_embeddings"]
    lengths = 2 * math.pi / frequencies
    stretched = np.where(lengths > context / low, frequencies / factor, frequencies)
    smooth = (context / lengths - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    medium = ~(lengths < context / high) & ~(lengths > context / low)
    return Rope(frequencies=tuple(np.where(medium, between, stretched).astype(np.float32).tolist()))


def _yarn(powers: np.ndarray, base: float, settings: Mapping[str, Any]) -> Rope:
    """Compute YaRN's frequencies, interpolated between two numbers of rotations, and its attention factor."""
    context = settings["original_max_position_embeddings"]
    factor = settings.get("factor") or settings["max_position_embeddings"] / context
    rotated = 2 * len(powers)
    rotations = (settings.get("beta_fast") or 32, settings.get("beta_slow") or 1)
    low, high = (rotated * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in rotations)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    width = np.float32(high - low or 0.001)
    ramp = np.clip((np.arange(len(powers), dtype=np.float32) - np.float32(low)) / width, 0, 1)
    kept = np.float32(1) - ramp
    frequencies = np.float32(1) / (np.float32(factor) * powers) * (1 - kept) + np.float32(1) / powers * kept
    return Rope(frequencies=tuple(frequencies.astype(np.float32).tolist()), factor=_yarn_factor(factor, settings))


def _yarn_factor(factor: float, settings: Mapping[str, Any]) -> float:
    def scale(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    one, every = settings.get("mscale"), settings.get("mscale_all_dim")
    return scale(one) / scale(every) if one and every else scale(1)


def _longrope(powers: np.ndarray, base: float, settings: Mapping[str, Any]) -> Rope:
    """Compute LongRoPE's frequencies: one set up to the original context length, and one beyond."""
    context = settings["original_max_position_embeddings"]
    factor = settings.get("factor") or settings["max_position_embeddings"] / context
    scale = settings.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0
    short, long = (np.array(settings[f"{length}_factor"], np.float32) for length in ("short", "long"))
    if not short.shape == long.shape == powers.shape:
        raise ValueError(f"{len(powers)} factors expected")
    return Rope(
        frequencies=_inverse(short * powers), long=_inverse(long * powers), limit=int(context), factor=float(scale)
    )


def _dynamic(powers: np.ndarray, base: float, settings: Mapping[str, Any]) -> Rope:
    """Compute dynamic NTK's frequencies; beyond the context length, the base grows with the text."""
    return Rope(
        frequencies=_inverse(powers),
        base=base,
        stretch=float(settings["factor"]),
        limit=int(settings["max_position_embeddings"]),
    )


_FUNCTIONS = dict(zip(KINDS, (_default, _linear, _llama3, _yarn, _longrope, _dynamic), strict=True))


def angles(graph: Graph, rope: Rope) -> tuple[str, str]:
    """Add the cosines and sines of the positions: [batch, 1, positions, pairs]."""
    positions = graph.op("Cast", "position_ids", to=proto.CODES["f32"])
    frequencies = _frequencies(graph, rope, positions)
    positions = graph.op("Unsqueeze", positions, graph.integers(1, 3))
    angle = graph.op("Mul", positions, frequencies)
    cosines, sines = graph.op("Cos", angle), graph.op("Sin", angle)
    if rope.factor == 1:
        return cosines, sines
    factor = graph.constant(rope.factor)
    return graph.op("Mul", cosines, factor), graph.op("Mul", sines, factor)


def _frequencies(graph: Graph, rope: Rope, positions: str) -> str:
    """Add the frequencies for a text that ends at the last position."""
    frequencies = graph.constant(rope.frequencies)
    if not rope.limit:
        return frequencies
    length = graph.op("Add", graph.op("ReduceMax", positions, keepdims=0), graph.constant(1))
    limit = graph.constant(rope.limit)
    if rope.long:
        return graph.op("Where", graph.op("Greater", length, limit), graph.constant(rope.long), frequencies)
    length = graph.op("Max", length, limit)
    growth = graph.op("Div", graph.op("Mul", length, graph.constant(rope.stretch)), limit)
    growth = graph.op("Sub", growth, graph.constant(rope.stretch - 1))
    rotated = 2 * len(rope.frequencies)
    base = graph.op("Mul", graph.op("Pow", growth, graph.constant(rotated / (rotated - 2))), graph.constant(rope.base))
    return graph.op("Reciprocal", graph.op("Pow", base, graph.constant(_exponents(rotated))))


def rotate(graph: Graph, x: str, cosines_sines: tuple[str, str], rope: Rope, size: int, interleaved: bool) -> str:
    """Rotate the pairs of a head (halves, or neighbours) by their angles; the elements beyond them pass through."""
    half = len(rope.frequencies)
    unrotated = size - 2 * half
    rest: list[str] = []
    if unrotated:
        x, *rest = graph.ops("Split", (x, graph.integers(2 * half, unrotated)), ("", ""), axis=-1)
    if interleaved:
        x = graph.op("Reshape", x, graph.integers(0, 0, 0, half, 2))
        pair = graph.ops("Split", (x, graph.integers(1, 1)), ("", ""), axis=-1)
        first, second = (graph.op("Squeeze", values, graph.integers(-1)) for values in pair)
    else:
        first, second = graph.ops("Split", (x, graph.integers(half, half)), ("", ""), axis=-1)
    cosines, sines = cosines_sines
    left = graph.op("Sub", graph.op("Mul", first, cosines), graph.op("Mul", second, sines))
    right = graph.op("Add", graph.op("Mul", second, cosines), graph.op("Mul", first, sines))
    if interleaved:
        pair = [graph.op("Unsqueeze", values, graph.integers(-1)) for values in (left, right)]
        rotated = graph.op("Reshape", graph.op("Concat", *pair, axis=-1), graph.integers(0, 0, 0, 2 * half))
        return graph.op("Concat", rotated, *rest, axis=-1) if rest else rotated
    return graph.op("Concat", left, right, *rest, axis=-1)


def unsupported(key: str, expected: str, found: object) -> FormatError:
    """Return the error for a setting of config.json that the graph does not support."""
    return FormatError(
        f"the graph does not support the value of {key}",
        part="config.json",
        expected=expected,
        found=repr(found),
        code=ErrorCode.CONFIG,
    )
