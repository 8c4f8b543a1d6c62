"""What UQFF can hold, and what mistral.rs would make of each tensor when all are to be of one type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from squish_codecs.api import Affine, Mx, float4_params
from squish_ggml.api import has_encoder
from squish_safetensors.api import DTYPE_TAGS

from squish_core.api import (
    BLOCK_TYPES,
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
# Dense tensors that are layers all the same.
LINEAR = re.compile(r"(?:.*_proj|.*\.(?:dense|fc1|fc2|c_fc)|lm_head|model\.embed_tokens)")
BIG = 1 << 32
TOGETHER = ("q4_k", "q5_k", "q6_k")
"""Block types that compiled encoders make, all or none."""


def isq_of(spec: TensorSpec) -> int | None:
    """The type under which a tensor is a layer; None for what goes into the residual, or is a bias."""
    codec = spec.encodings[0].codec.id
    if codec != "dense":
        return tables.GGUF if codec in GGML_CODES else CODECS[codec]
    key = key_of(spec.name)
    layer = len(spec.shape) > 1 and key is not None and LINEAR.fullmatch(key) and key != "model.embed_tokens"
    return tables.UNQUANT if layer or spec.attrs.get("uqff.type") in ("unquant", "gguf") else None


def key_of(name: str) -> str | None:
    """The layer whose weight has this name."""
    return name.removesuffix(".weight") if name.endswith(".weight") else None


def is_promoted(name: str) -> bool:
    """Whether a tensor or layer gets a finer type than the others."""
    return kind_of(name) in ("head", "embedding")


def accepts(spec: TensorSpec, encoding: Encoding, legacy: bool) -> Encoding | Refusal:
    """Layers under the codecs of UQFF, all else dense."""
    codec = encoding.codec
    if (legacy or codec.id != "dense" or len(spec.shape) > 1) and (refusal := _size_refusal(spec)):
        return refusal
    if codec.id == "dense":
        if spec.dtype not in DTYPE_TAGS or dtypes.bits(spec.dtype) < 8:
            return Refusal(why=f"UQFF has no dtype {spec.dtype}", code="dtype")
        if legacy and spec.dtype not in tables.DTYPES.values():
            return Refusal(why=f"UQFF 0.1.3 has no dtype {spec.dtype}", code="dtype")
        return Encoding(codec=codec, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})
    if codec.id not in GGML_CODES and codec.id not in CODECS:
        return Refusal(why=f"UQFF has no layout for {codec.id}; ask for one with --encode", code="codec")
    if codec.id == "affine":
        return Refusal(why="UQFF has affine codes as AFQ only", code="affine")
    if codec.id in ("hqq", "float8", "uqff.f8q8") and len(spec.shape) != 2:
        return Refusal(why=f"UQFF has matrices only as {codec.id}, not {list(spec.shape)}", code="shape")
    if codec.id in ("float8", "mx") and codec.params:
        return Refusal(why=f"UQFF has only the plain form of {codec.id}, not {codec}", code="codec")
    return _layer(spec, encoding, legacy)


def accepts_codes(spec: TensorSpec, layout: CodeLayout, legacy: bool) -> Encoding | Refusal | None:
    """AFQ, which are affine codes with biases, and MXFP4."""
    if refusal := _size_refusal(spec):
        return refusal
    mxfp4 = CodecSpec("mx") if float4_params(layout) == {} else None
    codec = _afq(spec, layout) if layout.table is None else mxfp4
    if codec is None or isinstance(codec, Refusal):
        return codec
    try:
        declared = {"affine": Affine(), "mx": Mx()}[codec.id].parts(spec, codec.params)
    except SquishError as error:
        return Refusal(why=error.message, code="affine")
    parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in declared.items()}
    return _layer(spec, Encoding(codec=codec, parts=parts), legacy)


def _size_refusal(spec: TensorSpec) -> Refusal | None:
    if not max(spec.shape, default=0) >> 32:
        return None
    return Refusal(why=f"UQFF counts each dimension of a layer in 32 bits, not {list(spec.shape)}", code="shape")


def _layer(spec: TensorSpec, encoding: Encoding, legacy: bool) -> Encoding | Refusal:
    """The encoding with bare parts, where the version and the tensor's name allow a layer."""
    if not spec.name.endswith(".weight"):
        return Refusal(why="UQFF quantizes tensors called <layer>.weight only", code="name")
    parts = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
    if legacy and (why := _not_legacy(spec, encoding.codec, parts)):
        return Refusal(why=f"UQFF 0.1.3 {why}", code="version")
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
    """One dtype for scales and biases; a bias that stands for a zero point has more digits than a narrow scale."""
    same = layout.offset_kind == "none" or (layout.offset_kind, layout.offset_dtype) == ("bias", layout.scale_dtype)
    return layout.scale_dtype if same else "f32"


def _not_legacy(spec: TensorSpec, codec: CodecSpec, parts: Mapping[str, Part]) -> str:
    """Why a blob of 0.1.3 cannot hold a quantized tensor."""
    if tables.SINCE.get(CODECS.get(codec.id, tables.GGUF), (0,)) > tables.WRITTEN_LEGACY:
        return f"has no type for {codec.id}"
    if len(spec.shape) != 2:
        return f"holds matrices, not {list(spec.shape)}"
    if kind_of(spec.name) == "embedding":
        return "keeps embeddings as plain values (--encode 'model.embed_tokens.weight=f16')"
    return "counts bytes in 32 bits, and this has more" if any(part.nbytes >= BIG for part in parts.values()) else ""


def choose(specs: Sequence[TensorSpec], wanted: CodecSpec) -> dict[str, CodecSpec]:
    """Linear layers and embeddings as `wanted`, promoted or replaced where the format's rules say so.

    Biases take the dtype that mistral.rs gives them. Source: uqff-formats, section 3.
    """
    if wanted.id == "dense":
        return {spec.name: wanted for spec in specs}
    weights = {spec.name.removesuffix(".weight"): spec for spec in specs if _is_matrix(spec)}
    layers = {key: spec for key, spec in weights.items() if LINEAR.fullmatch(key)} or weights  # names of another world
    chosen: dict[str, CodecSpec] = {}
    for spec in layers.values():
        made = _target(spec, wanted)
        if made:
            chosen[spec.name] = made
    family = "ggml" if wanted.id in GGML_CODES else wanted.id
    bias = tables.BIAS_DTYPES.get(family)
    if bias:
        biases = {f"{name.removesuffix('.weight')}.bias" for name in chosen}
        for spec in specs:
            if spec.name in biases and spec.dtype != bias:
                chosen[spec.name] = CodecSpec("dense", {"dtype": bias})
    return chosen


def _is_matrix(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and spec.name.endswith(".weight")


def _target(spec: TensorSpec, wanted: CodecSpec) -> CodecSpec | None:
    """What a layer becomes; None when it has to stay as it is."""
    promote, last = is_promoted(spec.name), spec.shape[-1]
    if wanted.id == "hqq" and kind_of(spec.name) == "embedding" and wanted.params.get("bits") not in (4, 8):
        return None  # no other width can be looked up by row
    if wanted.id in GGML_CODES:
        return _blocks(wanted, promote, last)
    if wanted.id != "affine" or wanted.params.get("offset") != "bias":
        return wanted
    bits, group = int(wanted.params.get("bits", 0)), wanted.params.get("group_size") or 1
    params = {**wanted.params, "bits": tables.AFQ_PROMOTED.get(bits, bits) if promote else bits}
    if "scale_dtype" not in params and spec.dtype in tables.AFQ_SCALES[1:]:
        params["scale_dtype"] = spec.dtype
    return None if last % group else CodecSpec("affine", params)


def _blocks(wanted: CodecSpec, promote: bool, last: int) -> CodecSpec | None:
    """The block type that divides a row: the promoted one or its fallback; q8_0 for one that is not encoded here."""
    asked = wanted.id.removeprefix("ggml.")
    name = tables.GGML_PROMOTED[asked] if promote else asked
    name = tables.GGML_FALLBACK.get(name, name) if last % BLOCK_TYPES[name].elements else name
    if last % BLOCK_TYPES[name].elements:
        return None
    # What was asked for itself must be encoded, or the request fails; so must what the same plugin encodes.
    together = name in TOGETHER and asked in TOGETHER
    name = name if name == asked or together or has_encoder(name) else "q8_0"
    # A search is the K types'; another one that takes their place is as good as it gets without.
    return CodecSpec(f"ggml.{name}", wanted.params if name == asked or name.endswith("_k") else {})
