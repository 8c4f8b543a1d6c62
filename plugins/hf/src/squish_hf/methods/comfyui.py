"""ComfyUI: layers that a marker tensor `comfy_quant`, the file's metadata or `scaled_fp8` declares.

Sources: `convert_old_quants` in comfy/utils.py and `_load_quantized_module` in comfy/ops.py of ComfyUI; the layouts in
comfy_kitchen/tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve
from squish_codecs.api import FLOAT8_DTYPES, Affine
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import CodecSpec, ErrorCode, FormatError, Index, Part, Problem, TensorSpec, load_json
from squish_hf.declaration import COMFYUI, Declared, refuse
from squish_hf.methods.compressed_formats import FLOATS
from squish_hf.methods.convrot import ConvRot
from squish_hf.methods.fp8 import block_of, float8, other_parts
from squish_hf.methods.method import Method

MARKER, METADATA, SCALED = ".comfy_quant", "_quantization_metadata", "scaled_fp8"
OLD_SCALE, SCALE = ".scale_weight", ".weight_scale"
SUFFIXES = (SCALE, OLD_SCALE, ".weight_scale_2", MARKER, ".weight_s_rel", ".weight_s_channel", ".weight_codebook")
BESIDE = (".input_scale", ".scale_input")
FP8, INT8 = ("float8_e4m3fn", "float8_e5m2"), "int8_tensorwise"
MAX_MARKER = 4096
GROUP = 256
"""ComfyUI's default of `convrot_groupsize`."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read the formats float8_e4m3fn, float8_e5m2 and int8_tensorwise (also rotated: ConvRot)."""
    layers = _metadata(files)
    assumed = bool(declared.fields) or _has_scaled_marker(files.index)

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        settings = layers.get(layer)
        if settings is None and MARKER in parts:
            settings = _marker(parts, files)
        if settings is None and not assumed:
            raise FormatError(
                "codes with scales but without comfy_quant, in a file of ComfyUI",
                part="weight",
                code=ErrorCode.UNDECLARED_SCALES,
                hint="{option:format=hf:method=comfyui} reads them as float8 or int8 with a scale.",
            )
        return _layer(layer, parts, settings or {})

    return Method(dialect=COMFYUI, suffixes=SUFFIXES, beside=BESIDE, make=make)


def finish(index: Index) -> Index:
    """Leave out the markers, which do not describe the tensors after reading, and note rotated layers."""
    tensors = {name: spec for name, spec in index.tensors.items() if name.rpartition(".")[2] != SCALED}
    notes = tuple(
        Problem(
            code="convrot",
            severity="note",
            where=name,
            message="comfy_quant states rotated columns (ConvRot); values are rotated back",
        )
        for name, spec in tensors.items()
        if spec.encodings and "hf.convrot" in _ids(spec.encodings[0].codec)
    )
    meta = {key: value for key, value in index.meta.items() if key != METADATA}
    return evolve(index, tensors=tensors, meta=meta, problems=(*index.problems, *notes))


def _ids(codec: CodecSpec | None) -> list[str]:
    """Return the ids of a codec and of those that it wraps."""
    return [codec.id, *_ids(codec.inner)] if codec else []


def _has_scaled_marker(index: Index) -> bool:
    return any(name == SCALED or name.endswith(f".{SCALED}") for name in index.tensors)


def _metadata(files: CheckpointFiles) -> Mapping[str, Any]:
    """Return the settings by layer in the metadata of the file."""
    text = files.index.meta.get(METADATA)
    if not isinstance(text, str):
        return {}
    layers = load_json(text.encode(), METADATA, files.limits).get("layers")
    if not isinstance(layers, dict):
        raise refuse("layers", "an object", layers, part=METADATA)
    return layers


def _marker(parts: StoredParts, files: CheckpointFiles) -> Mapping[str, Any]:
    """Return the settings in a marker tensor: JSON as bytes."""
    part = require_part(parts, MARKER, ("u8",), rank=1)
    if part.nbytes > MAX_MARKER:
        raise FormatError(
            "marker too large",
            part="comfy_quant",
            expected=f"at most {MAX_MARKER} bytes",
            found=part.nbytes,
            code="size",
        )
    return load_json(files.read(part, "comfy_quant"), "comfy_quant", files.limits)


def _layer(layer: str, parts: StoredParts, settings: Any) -> TensorSpec:
    """Build a weight; without settings by the dtype of its codes."""
    settings = {"format": settings} if isinstance(settings, str) else settings
    weight = parts.get(".weight")
    if not settings and weight is not None:
        settings = {"format": INT8 if weight.dtype == "i8" else FP8[0]}
    kind = settings.get("format") if isinstance(settings, dict) else None
    field = SCALE if SCALE in parts else OLD_SCALE
    if kind in FP8:
        weight = require_part(parts, ".weight", FLOAT8_DTYPES)
        scale = require_part(parts, field, FLOATS)
        return float8(layer, parts, scale, block_of(weight.shape, scale.shape, None), field.lstrip("."))
    if kind == INT8:
        return _int8(layer, parts, require_part(parts, field, FLOATS), field.lstrip("."), settings)
    raise FormatError(
        f"unsupported format {str(kind)[:40]!r} of ComfyUI",
        part="comfy_quant",
        expected=", ".join((*FP8, INT8)),
        code=ErrorCode.UNDECLARED_SCALES,
        hint="Convert the model in full precision; {option:format=safetensors} copies the file as it is.",
    )


def _int8(layer: str, parts: StoredParts, scale: Part, field: str, settings: Mapping[str, Any]) -> TensorSpec:
    """Build int8 codes with one scale, or one for each row; ConvRot rotates groups of columns."""
    codes = require_part(parts, ".weight", ("i8",), rank=2)
    params: dict[str, Any] = {"bits": 8, "word": "i8", "signed": True}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    rows, shape = codes.shape[0], codes.shape
    nested = settings.get("params")
    nested = nested if isinstance(nested, dict) else {}
    rotated = settings.get("convrot", nested.get("convrot", False))
    if scale.shape in ((), (1,), (1, 1)) and rows != 1:
        params["axis"] = "flat"
        codes, scale = evolve(codes, shape=(codes.nbytes,)), view_part(scale, scale.dtype, (1,))
        if rotated:
            raise FormatError(
                "rotated codes have a scale for each row", part=field, found=list(scale.shape), code="shape"
            )
    else:
        scale = view_part(scale, scale.dtype, (rows, 1))
    fields = {"data": ("weight", codes), "scale": (field, scale)}
    extras = other_parts(parts, "weight", field)
    spec, name = CodecSpec("affine", params), f"{layer}.weight"
    if not rotated:
        return build_tensor(name, shape, spec, Affine, fields, extras)
    group = settings.get("convrot_groupsize", nested.get("convrot_groupsize", GROUP))
    rotation = CodecSpec("hf.convrot", {"group_size": group}, spec)
    return build_tensor(name, shape, rotation, (ConvRot, Affine), fields, extras)
