"""Scaling of rotary positions: the dictionary of `config.json`, and the keys and tensors of GGUF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from squish_core.api import ErrorCode, FormatError, Typed

from .gguf_defaults import LINEAR, OLD_FACTOR, REQUIRED, LoadedKeys
from .keys import shortest
from .spelling import PROPORTIONAL

FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
UNROTATED = np.float32(1e30)
"""The factor of a pair that is not rotated."""
CLOSE = 1e-5
"""Allowed relative difference: the factors may have been computed in a different order."""
USUAL = (
    {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    {"low_freq_factor": 1.0, "high_freq_factor": 32.0, "original_max_position_embeddings": 131072},
)
"""Numbers of Llama 3.1 to 3.3, and of Step 3.5."""
_YARN = {
    "attention_factor": "yarn_attn_factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow",
}  # fmt: skip
_ASSUMED = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
"""llama.cpp's values for these settings of YaRN, regardless of the GGUF."""
SCALING = "rope.scaling."
GLOBAL_HEAD, SHARE = "global_head_dim", "partial_rotary_factor"
"""The size of heads in layers without a window, if it differs; and the rotated share of a head."""
ROTATED = "rotated_size"
"""Setting with the number of values that a scaling applies to, if not all of a head are rotated in each layer."""
DYNAMIC = "dynamic"
"""A scaling that starts at `max_position_embeddings` tokens, which llama.cpp lacks."""
Scaling = Mapping[str, Any]


def rope_kind(scaling: Scaling | None) -> str:
    """Return the kind of a scaling, under either key; "" for none."""
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type"))
    return "" if kind in (None, "default") else str(kind)


def ignored_scaling(settings: Mapping[str, Any], layout: str) -> tuple[str, ...]:
    """Return settings of the scaling that the engine of a layout ignores, as notes."""
    scaling, kind = settings.get("rope_scaling") or {}, rope_kind(settings.get("rope_scaling"))
    notes = []
    if layout == "gguf" and kind == DYNAMIC:
        length = settings["max_position_embeddings"]
        notes.append(f"llama.cpp has no dynamic RoPE scaling: it differs beyond {length} tokens")
    if layout == "gguf" and kind == "yarn":
        stated = {name: scaling[name] for name in _ASSUMED if scaling.get(name) is not None}
        notes += [
            f"llama.cpp ignores YaRN's {name} of {value}" for name, value in stated.items() if value != _ASSUMED[name]
        ]
    if layout in ("gguf", "mlx") and kind == "yarn" and scaling.get("truncate") is False:
        notes.append(f"{'llama.cpp' if layout == 'gguf' else 'mlx-lm'} ignores YaRN's truncate of false")
    return tuple(notes)


def gguf_rope(settings: Mapping[str, Any], prefix: str) -> tuple[dict[str, Typed], dict[str, np.ndarray]]:
    """Return GGUF's keys and tensors for the scaling in the settings; FormatError for a kind that GGUF cannot store."""
    scaling = settings.get("rope_scaling")
    kind = rope_kind(scaling)
    if not kind or kind == DYNAMIC:
        return {}, {}
    assert scaling is not None
    if kind == "llama3":
        low, high = (_number(scaling, name) for name in ("low_freq_factor", "high_freq_factor"))
        if low >= high:
            raise FormatError(
                "has a rope_scaling without frequencies between its factors",
                part="config.json",
                code=ErrorCode.ROPE,
                expected=f"a high_freq_factor above {low}",
                found=high,
            )
        whole = settings["head_dim"]
        factors = llama3_factors(scaling, settings["rope_theta"], settings.get(ROTATED, whole))
        return {}, {FACTORS: np.pad(factors, (0, whole // 2 - len(factors)), constant_values=1)}
    if kind == PROPORTIONAL:
        return {}, {FACTORS: proportional_factors(scaling, _head_size(settings))}
    key = f"{prefix}.rope.scaling."
    if kind in ("longrope", "su"):
        return _longrope(settings, scaling, key)
    if kind not in ("linear", "yarn"):
        raise FormatError(
            "has a rope_scaling that GGUF cannot store",
            part="config.json",
            code=ErrorCode.ROPE,
            expected="linear, yarn, llama3, longrope, proportional or dynamic",
            found=kind,
        )
    keys = {f"{key}type": Typed("str", kind), f"{key}factor": _f32(scaling, "factor")}
    if kind == "yarn":
        name = "original_max_position_embeddings"
        length = int(_number(scaling, name)) if scaling.get(name) else settings["max_position_embeddings"]
        keys[f"{key}original_context_length"] = Typed("u32", length)
        keys |= {
            f"{key}{name}": _f32(scaling, field) for field, name in _YARN.items() if scaling.get(field) is not None
        }
    return keys, {}


def rope_settings(
    keys: LoadedKeys, vectors: Mapping[str, np.ndarray], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], FormatError | None]:
    """Return `rope_scaling` and related settings for the scaling in GGUF's keys and tensors, as llama.cpp applies it.

    The second result is the error if no config.json can express the scaling. FormatError for invalid keys.
    """
    stored = _scaling_keys(keys)
    try:
        return _scaling_settings(stored, keys.architecture, vectors, settings), None
    except FormatError as error:
        return {}, error


def _scaling_keys(keys: LoadedKeys) -> dict[str, Any]:
    """Return the checked keys of a scaling, without settings of YaRN that the file omits."""
    names = ("type", "factor", "original_context_length", "attn_factor", *_YARN.values())
    stored = {name: value for name in names if (value := keys[f"{SCALING}{name}"]) not in (None, REQUIRED)}
    for name, value in stored.items():
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if not (isinstance(value, str) if name == "type" else is_number):
            is_old = name == "factor" and not keys.states(f"{SCALING}{name}")
            raise FormatError(
                "is not a valid setting of a scaling",
                found=repr(value)[:60],
                code=ErrorCode.ROPE,
                part=f"{keys.architecture}.{OLD_FACTOR if is_old else SCALING + name}",
                expected="text" if name == "type" else "a finite number",
            )
    return stored


def _scaling_settings(
    stored: Mapping[str, Any], architecture: str, vectors: Mapping[str, np.ndarray], settings: Mapping[str, Any]
) -> dict[str, Any]:
    kind, key = stored["type"], f"{architecture}.{SCALING}"
    factor = 1.0 if kind == "none" else shortest(stored["factor"]) or 1.0  # 0 means no scaling in llama.cpp
    if kind == "longrope" or LONG in vectors:
        if LONG not in vectors or SHORT not in vectors:
            raise FormatError(
                "has longrope without its tensors",
                part=f"{key}type",
                expected=f"{LONG} and {SHORT}",
                code=ErrorCode.ROPE,
            )
        _refuse_factor(factor, key, "longrope")
        return _longrope_settings(stored, vectors, settings)
    if FACTORS in vectors:
        _refuse_factor(factor, key, FACTORS)
        factors, head = vectors[FACTORS], _head_size(settings)
        if GLOBAL_HEAD in settings or (factors >= UNROTATED).any():
            return {"rope_scaling": proportional_scaling(factors, head)}
        rotated = settings.get(ROTATED, head)
        if rotated != head and factors.shape == (head // 2,) and (factors[rotated // 2 :] == 1).all():
            factors = factors[: rotated // 2]
        return {"rope_scaling": llama3_scaling(factors, settings["rope_theta"], rotated)}
    if kind not in ("none", LINEAR, "yarn"):
        raise FormatError(
            "is a scaling that config.json cannot express", part=f"{key}type", found=repr(kind), code=ErrorCode.ROPE
        )
    if factor == 1:
        return {}
    scaling = {"rope_type": kind, "type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = int(stored["original_context_length"])
        scaling |= {field: shortest(stored[name]) for field, name in _YARN.items() if name in stored}
    return {"rope_scaling": scaling}


def _refuse_factor(factor: float, key: str, other: str) -> None:
    if factor != 1:
        raise FormatError(
            f"cannot be combined with {other}: config.json has one kind of scaling",
            part=f"{key}factor",
            code=ErrorCode.ROPE,
            expected="none, or 1",
            found=factor,
        )


def _longrope_settings(
    stored: Mapping[str, Any], vectors: Mapping[str, np.ndarray], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of longrope, with an attention factor only if engines of folders would compute another."""
    scaling: dict[str, Any] = {
        "type": "longrope", "long_factor": list(map(shortest, vectors[LONG].tolist())),
        "short_factor": list(map(shortest, vectors[SHORT].tolist())),
    }  # fmt: skip
    original, stated = int(stored["original_context_length"]), shortest(stored["attn_factor"])
    if not math.isclose(stated, attention_factor(settings["max_position_embeddings"], original), rel_tol=CLOSE):
        scaling["attention_factor"] = stated
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def attention_factor(length: int, original: int) -> float:
    """Return the attention factor with which longrope extends a model of `original` tokens to `length`."""
    return math.sqrt(1 + math.log(length / original) / math.log(original)) if length > original > 1 else 1.0


def _head_size(settings: Mapping[str, Any]) -> int:
    """Return the size of the heads that a scaling applies to."""
    return settings.get(GLOBAL_HEAD) or settings["head_dim"]


def proportional_factors(scaling: Scaling, head_dim: int) -> np.ndarray:
    """Return the factor of each pair of a head: 1 for the share of pairs that is rotated."""
    share, factor = scaling.get(SHARE, 1.0), scaling.get("factor", 1.0)
    is_share = type(share) in (int, float) and 0 <= share <= 1
    if not is_share or factor != 1:
        raise FormatError(
            f"has a rope_scaling of the kind {PROPORTIONAL} that GGUF cannot store",
            part="config.json",
            code=ErrorCode.ROPE,
            expected="a factor of 1" if is_share else f"a {SHARE} from 0 to 1",
            found=repr(factor if is_share else share)[:60],
        )
    pairs = head_dim // 2
    return np.where(np.arange(pairs) < int(head_dim * share / 2), np.float32(1), UNROTATED).astype(np.float32)


def proportional_scaling(factors: np.ndarray, head_dim: int) -> dict[str, Any]:
    """Return the scaling with these factors; FormatError if there is none."""
    rotated = int((factors < UNROTATED).sum())
    scaling = {"rope_type": PROPORTIONAL, SHARE: 2 * rotated / head_dim if head_dim else 1.0}
    if not np.array_equal(factors, proportional_factors(scaling, head_dim)):
        raise FormatError(
            f"contains factors that no {PROPORTIONAL} scaling produces",
            tensor=FACTORS,
            code=ErrorCode.ROPE,
            expected=f"{head_dim // 2} factors: 1 for rotated pairs, then 1e30 for the others",
            found=f"{len(factors)} factors, the largest {factors.max(initial=0.0)}",
            hint="Keep the names with {option:rename=keep}; leaving them out would change the model's output.",
        )
    return scaling


def llama3_factors(scaling: Scaling, theta: float, head_dim: int) -> np.ndarray:
    """Return the f32 factors by which llama.cpp divides the frequencies, one for each pair of a head."""
    factor, low, high = (float(_number(scaling, name)) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(_number(scaling, "original_max_position_embeddings"))
    wavelength = 2 * math.pi * float(theta) ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = (original / wavelength - low) / (high - low)
    factors = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, factor, factors))
    return factors.astype(np.float32)


def llama3_scaling(factors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the scaling that produces these factors; FormatError if none does.

    Llama's published numbers if they fit, otherwise the solution for a `low_freq_factor` of 1.
    """
    if factors.shape != (head_dim // 2,) or not np.all(np.isfinite(factors)):
        raise FormatError(
            "needs one finite factor for each pair of a head",
            tensor=FACTORS,
            code=ErrorCode.ROPE,
            expected=head_dim // 2,
            found=list(factors.shape),
        )
    factor = shortest(float(factors.max()))
    for candidate in (*USUAL, *_solved(factors, factor, theta, head_dim)):
        scaling = {"factor": factor, **candidate, "rope_type": "llama3"}
        with np.errstate(all="ignore"):
            if np.allclose(llama3_factors(scaling, theta, head_dim), factors, rtol=CLOSE, atol=0):
                return scaling
    raise FormatError(
        "contains factors that no llama3 scaling produces",
        tensor=FACTORS,
        code=ErrorCode.ROPE,
        found=f"a largest factor of {factor}",
        hint="Keep the names with {option:rename=keep}; leaving them out would change the model's output.",
    )


def _solved(factors: np.ndarray, factor: float, theta: float, head_dim: int) -> list[dict[str, Any]]:
    """Return settings that produce two of the factors between 1 and the largest."""
    wavelength = 2 * math.pi * float(theta) ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    between = np.flatnonzero((factors > 1 + CLOSE) & (factors < factor * (1 - CLOSE)))
    if len(between) < 2:
        return []
    values = factors[between].astype(np.float64)
    smooth = (1 / values - 1 / factor) / (1 - 1 / factor)
    # smooth = (L / w - 1) / (high - 1): a line in 1 / w
    slope, offset = np.polyfit(1 / wavelength[between], smooth, 1)
    high = 1 - 1 / offset
    original = slope * (high - 1)
    return [
        {
            "low_freq_factor": 1.0,
            "high_freq_factor": round(high, 4),
            "original_max_position_embeddings": round(original),
        }
    ]


def _longrope(
    settings: Mapping[str, Any], scaling: Scaling, key: str
) -> tuple[dict[str, Typed], dict[str, np.ndarray]]:
    most = settings["max_position_embeddings"]
    original = settings.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
    if not isinstance(original, int) or original < 2:
        raise FormatError(
            "has longrope without original_max_position_embeddings", part="config.json", code=ErrorCode.ROPE
        )
    size = settings["rotary_dim"] // 2
    tensors = {}
    for name, tensor in (("long_factor", LONG), ("short_factor", SHORT)):
        values = scaling.get(name)
        if not isinstance(values, list) or len(values) != size:
            raise FormatError(
                f"has a {name} of the wrong size",
                part="config.json",
                code=ErrorCode.ROPE,
                expected=size,
                found=len(values) if isinstance(values, list) else type(values).__name__,
            )
        tensors[tensor] = np.array(values, np.float32)
    factor = scaling.get("attention_factor") or attention_factor(most, original)
    keys = {
        f"{key}type": Typed("str", "longrope"), f"{key}original_context_length": Typed("u32", original),
        f"{key}attn_factor": Typed("f32", float(np.float32(factor))),
    }  # fmt: skip
    return keys, tensors


def _number(scaling: Scaling, name: str) -> float:
    value = scaling.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise FormatError(
            f"has a rope_scaling without a usable {name}",
            part="config.json",
            found=repr(value)[:60],
            code=ErrorCode.ROPE,
        )
    return value


def _f32(scaling: Scaling, name: str) -> Typed:
    return Typed("f32", float(np.float32(_number(scaling, name))))
