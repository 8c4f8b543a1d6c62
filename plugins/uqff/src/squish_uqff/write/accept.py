"""The encodings UQFF can store, and mistral.rs's choice for each tensor when one type is requested for all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from squish_codecs.api import Affine, Mx, mx_params
from squish_ggml.api import has_encoder
from squish_safetensors.api import DTYPE_TAGS

from squish_core.api import (
    BLOCK_TYPES,
    Codec,
    CodecSpec,
    CodeLayout,
    Encoding,
    Part,
    Refusal,
    SquishError,
    TensorSpec,
    dtypes,
    kind_of,
)

from .. import tables

GGML_CODES = {f"ggml.{name}": code for code, name in tables.GGML_BLOCKS.items()}
CODECS = {"hqq": tables.HQQ, "float8": tables.FP8, "affine": tables.AFQ, "uqff.f8q8": tables.F8Q8, "mx": tables.MXFP4}
# Dense tensors that are stored as layers.
LINEAR = re.compile(r"(?:.*_proj|.*\.(?:dense|fc1|fc2|c_fc)|lm_head|model\.embed_tokens)")
BIG = 1 << 32
COMPILED = ("q4_k", "q5_k", "q6_k")
"""Block types with compiled encoders; a plugin has all or none of them."""


def isq_of(spec: TensorSpec) -> int | None:
    """Return a layer's ISQ type; None for biases and residual tensors."""
    codec = spec.encodings[0].codec.id
    if codec != "dense":
        return tables.GGUF if codec in GGML_CODES else CODECS[codec]
    key = key_of(spec.name)
    layer = len(spec.shape) > 1 and key is not None and LINEAR.fullmatch(key) and key != "model.embed_tokens"
    return tables.UNQUANT if layer or spec.attrs.get("uqff.type") in ("unquant", "gguf") else None


def key_of(name: str) -> str | None:
    """Return the layer key of a weight name."""
    return name.removesuffix(".weight") if name.endswith(".weight") else None


def is_promoted(name: str) -> bool:
    """Return whether a tensor or layer gets a higher-precision type."""
    return kind_of(name) in ("head", "embedding")


Version = tuple[int, int, int]


def dotted(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def accepts(spec: TensorSpec, encoding: Encoding, legacy: Version | None) -> Encoding | Refusal:
    """Accept UQFF's codecs for layers and dense tensors, or refuse."""
    codec = encoding.codec
    if (legacy or codec.id != "dense" or len(spec.shape) > 1) and (refusal := _size_refusal(spec)):
        return refusal
    if codec.id == "dense":
        if spec.dtype not in DTYPE_TAGS or dtypes.bits(spec.dtype) < 8:
            return Refusal(why=f"UQFF has no dtype {spec.dtype}", code="dtype")
        if legacy and spec.dtype not in tables.DTYPES.values():
            return Refusal(why=f"UQFF {dotted(legacy)} has no dtype {spec.dtype}", code="dtype")
        return Encoding(codec=codec, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})
    if codec.id not in GGML_CODES and codec.id not in CODECS:
        return Refusal(why=f"UQFF has no layout for {codec.id}; choose a UQFF type with --encode", code="codec")
    if codec.id == "affine":
        return Refusal(why="UQFF stores affine codes only as AFQ", code="affine")
    if codec.id in ("hqq", "float8", "uqff.f8q8") and len(spec.shape) != 2:
        return Refusal(why=f"UQFF stores only matrices as {codec.id}, not {list(spec.shape)}", code="shape")
    if codec.id == "hqq" and "scale_dtype" in codec.params:
        return Refusal(why=f"UQFF has HQQ with float32 scales, not {codec.params['scale_dtype']}", code="codec")
    if codec.id in ("float8", "mx") and codec.params:
        return Refusal(why=f"UQFF supports {codec.id} only without parameters, not {codec}", code="codec")
    return _layer(spec, encoding, legacy)


_CODECS: dict[str, type[Codec]] = {"affine": Affine, "mx": Mx}


def accepts_codes(spec: TensorSpec, layout: CodeLayout, legacy: Version | None) -> Encoding | Refusal | None:
    """Accept codes as AFQ (affine with biases) or MXFP4."""
    if refusal := _size_refusal(spec):
        return refusal
    mxfp4 = CodecSpec("mx") if mx_params(layout) == {} else None
    codec = _afq(spec, layout) if layout.table is None else mxfp4
    if codec is None or isinstance(codec, Refusal):
        return codec
    try:
        layouts = _CODECS[codec.id].from_params(codec.params).parts(spec)
    except SquishError as error:
        return Refusal(why=error.message, code="affine")
    parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in layouts.items()}
    return _layer(spec, Encoding(codec=codec, parts=parts), legacy)


def _size_refusal(spec: TensorSpec) -> Refusal | None:
    if not max(spec.shape, default=0) >> 32:
        return None
    return Refusal(why=f"UQFF dimensions have 32 bits, too few for {list(spec.shape)}", code="shape")


def _layer(spec: TensorSpec, encoding: Encoding, legacy: Version | None) -> Encoding | Refusal:
    """Return the encoding of a layer, or a refusal because of its name or the version."""
    if not spec.name.endswith(".weight"):
        return Refusal(why="UQFF quantizes only tensors named <layer>.weight", code="name")
    parts = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
    if legacy and (why := _not_legacy(spec, encoding.codec, parts, legacy)):
        return Refusal(why=f"UQFF {dotted(legacy)} {why}", code="version")
    return Encoding(codec=encoding.codec, parts=parts)


def _afq(spec: TensorSpec, layout: CodeLayout) -> CodecSpec | Refusal:
    group = layout.row_group
    if layout.bits not in tables.AFQ_BITS or group not in tables.AFQ_GROUPS:
        legal = f"{tables.AFQ_BITS} bits in groups of {tables.AFQ_GROUPS} columns"
        return Refusal(why=f"AFQ has {legal}, not {layout.bits} in {group or list(layout.group)}", code="affine")
    if len(spec.shape) < 2:
        return Refusal(why=f"AFQ has rows of codes, not {list(spec.shape)}", code="shape")
    scale = _scale_dtype(layout)
    if scale not in tables.AFQ_SCALES:
        return Refusal(why=f"AFQ has scales of {' or '.join(tables.AFQ_SCALES)}, not {scale}", code="affine")
    params = {"bits": layout.bits, "group_size": group, "word": "u32", "offset": "bias"}
    return CodecSpec("affine", params if scale == "f32" else {**params, "scale_dtype": scale})


def _scale_dtype(layout: CodeLayout) -> str:
    """Return one dtype for scales and biases; a bias computed from a zero point needs more bits than a narrow scale."""
    same = layout.offset_kind == "none" or (layout.offset_kind, layout.offset_dtype) == ("bias", layout.scale_dtype)
    return layout.scale_dtype if same else "f32"


def _not_legacy(spec: TensorSpec, codec: CodecSpec, parts: Mapping[str, Part], version: Version) -> str:
    """Return why a 0.x blob cannot store a quantized tensor."""
    if tables.SINCE.get(CODECS.get(codec.id, tables.GGUF), (0,)) > version:
        return f"has no type for {codec.id}"
    if len(spec.shape) != 2:
        return f"stores matrices, not {list(spec.shape)}"
    if kind_of(spec.name) == "embedding":
        return "stores embeddings only as dense values (--encode 'model.embed_tokens.weight=f16')"
    return "has 32-bit lengths, too few for this tensor" if any(part.nbytes >= BIG for part in parts.values()) else ""


def choose(specs: Sequence[TensorSpec], target: CodecSpec) -> dict[str, CodecSpec]:
    """Choose an encoding for linear layers and embeddings: `target` with the format's promotions and fallbacks.

    Biases get mistral.rs's dtype. Source: uqff-formats, section 3.
    """
    if target.id == "dense":
        return {spec.name: target for spec in specs}
    weights = {spec.name.removesuffix(".weight"): spec for spec in specs if _is_matrix(spec)}
    layers = {key: spec for key, spec in weights.items() if LINEAR.fullmatch(key)} or weights  # other names
    choices: dict[str, CodecSpec] = {}
    for spec in layers.values():
        codec = _target_of(spec, target)
        if codec:
            choices[spec.name] = codec
    family = "ggml" if target.id in GGML_CODES else target.id
    bias = tables.BIAS_DTYPES.get(family)
    if bias:
        biases = {f"{name.removesuffix('.weight')}.bias" for name in choices}
        for spec in specs:
            if spec.name in biases and spec.dtype != bias:
                choices[spec.name] = CodecSpec("dense", {"dtype": bias})
    return choices


def _is_matrix(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and spec.name.endswith(".weight")


def _target_of(spec: TensorSpec, target: CodecSpec) -> CodecSpec | None:
    """Return the encoding of a layer; None keeps it unchanged."""
    promote, last = is_promoted(spec.name), spec.shape[-1]
    if target.id == "hqq" and kind_of(spec.name) == "embedding" and target.params.get("bits") not in (4, 8):
        return None  # other widths do not support row lookup
    if target.id in GGML_CODES:
        return _blocks(target, promote, last)
    if target.id != "affine" or target.params.get("offset") != "bias":
        return target
    bits, group = int(target.params.get("bits", 0)), target.params.get("group_size") or 1
    params = {**target.params, "bits": tables.AFQ_PROMOTED.get(bits, bits) if promote else bits}
    if "scale_dtype" not in params and spec.dtype in tables.AFQ_SCALES[1:]:
        params["scale_dtype"] = spec.dtype
    return None if last % group else CodecSpec("affine", params)


def _blocks(target: CodecSpec, promote: bool, last: int) -> CodecSpec | None:
    """Return the block type for a row: promoted, then its fallback, then q8_0 if there is no encoder."""
    requested = target.id.removeprefix("ggml.")
    name = tables.GGML_PROMOTED[requested] if promote else requested
    name = tables.GGML_FALLBACK.get(name, name) if last % BLOCK_TYPES[name].elements else name
    if last % BLOCK_TYPES[name].elements:
        return None
    # The requested type must have an encoder, and so do the types of the same plugin: conversion fails without.
    compiled = name in COMPILED and requested in COMPILED
    name = name if name == requested or compiled or has_encoder(name) else "q8_0"
    # Only K types support a search.
    return CodecSpec(f"ggml.{name}", target.params if name == requested or name.endswith("_k") else {})
