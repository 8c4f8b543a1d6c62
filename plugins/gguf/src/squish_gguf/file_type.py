"""`general.file_type`: llama.cpp's number for the most common tensor type. Source: llama.h, llama_ftype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import TensorSpec, Typed

from .quantize import matching_preset
from .shapes import RESHAPED
from .types import DENSE_CODES, IK_LLAMA, LAYOUTS, TYPE_CODES

KEY, VERSION_KEY, ARCHITECTURE = "general.file_type", "general.quantization_version", "general.architecture"
QUANTIZATION_VERSION = 2
"""GGML's version of the quantized types (GGML_QNT_VERSION)."""
FLOATS = (0, 1, 32)
"""Numbers of presets that do not quantize."""

# number -> possible most common types; mixes (M, L, XS) use several types
_NUMBERS: dict[int, tuple[str, ...]] = {
    0: ("F32",), 1: ("F16",), 2: ("Q4_0",), 3: ("Q4_1",), 7: ("Q8_0",), 8: ("Q5_0",), 9: ("Q5_1",),
    10: ("Q2_K", "Q3_K"), 11: ("Q3_K",), 12: ("Q3_K",), 13: ("Q3_K", "Q5_K"), 14: ("Q4_K",), 15: ("Q4_K",),
    16: ("Q5_K",), 17: ("Q5_K",), 18: ("Q6_K",), 19: ("IQ2_XXS",), 20: ("IQ2_XS",), 21: ("Q2_K",),
    22: ("IQ3_XXS", "IQ3_S"), 23: ("IQ3_XXS",), 24: ("IQ1_S",), 25: ("IQ4_NL",), 26: ("IQ3_S",), 27: ("IQ3_S",),
    28: ("IQ2_XS", "IQ2_S"), 29: ("IQ2_S",), 30: ("IQ4_XS",), 31: ("IQ1_M",), 32: ("BF16",), 36: ("TQ1_0",),
    37: ("TQ2_0",), 38: ("MXFP4",), 39: ("NVFP4",), 40: ("Q1_0",),
}  # fmt: skip
_USUAL: Mapping[str, int] = {
    **{types[0]: number for number, types in reversed(_NUMBERS.items())},
    "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "IQ2_S": 28, "IQ3_XXS": 23, "IQ3_S": 26, "IQ2_XS": 20,
}  # fmt: skip
"""The number llama.cpp infers from the most common type; for K-quants, the M mix."""

_IK_LLAMA_NAMES = {kind.name for kind in IK_LLAMA.values()}


def with_file_type(meta: Mapping[str, Any], specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return the metadata with `general.file_type` corrected for these tensors.

    The number is that of the llama.cpp preset with exactly these types, else of the most common type. Without the key
    nothing is added, since llama.cpp infers it. The key is removed if the type has no number; it is kept if the type is
    of ik_llama.cpp, which has its own numbers. With the types of a preset that quantizes,
    `general.quantization_version` is added, as llama-quantize does.
    """
    if not specs or (KEY not in meta and ARCHITECTURE not in meta):
        return dict(meta)
    types = {spec.name: LAYOUTS[type_code(spec)].name.lower() for spec in specs}
    values = {key: getattr(value, "value", value) for key, value in meta.items()}
    number = matching_preset({spec.name: spec.shape for spec in specs}, types, values)
    if number >= 0 and number not in FLOATS:
        meta = {**meta, VERSION_KEY: meta.get(VERSION_KEY, Typed("u32", QUANTIZATION_VERSION))}
    if KEY not in meta:
        return dict(meta)
    if number >= 0:
        return {**meta, KEY: Typed("u32", number)}
    common = most_common_type(specs)
    if isinstance(values[KEY], int) and common in _NUMBERS.get(values[KEY], ()):
        return dict(meta)
    if common in _IK_LLAMA_NAMES:
        return dict(meta)
    if common not in _USUAL:
        return {key: value for key, value in meta.items() if key != KEY}
    return {**meta, KEY: Typed("u32", _USUAL[common])}


def most_common_type(specs: Sequence[TensorSpec]) -> str:
    """Return the most common type of the matrices, or of all tensors if there are none: norms and biases are F32."""
    matrices = [spec for spec in specs if len(spec.shape) > 1] or specs
    return Counter(LAYOUTS[type_code(spec)].name for spec in matrices).most_common(1)[0][0]


def type_code(spec: TensorSpec) -> int:
    """Return the GGML type code of an outgoing tensor."""
    codec, parts = spec.encodings[0].codec, spec.encodings[0].parts
    if codec.id == RESHAPED and codec.inner is not None:
        codec = codec.inner
    return DENSE_CODES[parts["data"].dtype] if codec.id == "dense" else TYPE_CODES[codec.id]
