"""Builds weights of each compressed-tensors format from stored parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen
from squish_codecs.api import FLOAT8_DTYPES, Affine, Mx
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import DENSE, CodecSpec, Encoding, FormatError, Part, TensorSpec, check_shape
from squish_hf.declaration import refuse
from squish_hf.methods.act_order import ActOrder
from squish_hf.methods.fp8 import float8, other_parts

FLOATS = ("f32", "f16", "bf16")
STRATEGIES = ("group", "channel", "tensor", "block", "tensor_group")
NVFP4 = {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "divide"}


@frozen
class Weights:
    """The `weights` of a configuration group; `group_size` 0 is one group per row."""

    bits: int
    kind: str
    strategy: str
    group_size: int
    symmetric: bool
    block: tuple[int, int] | None

    @classmethod
    def of(cls, fields: Mapping[str, Any], where: str) -> Weights:
        """Parse the configuration; FormatError if a field is invalid."""
        bits, kind = fields.get("num_bits", 8), fields.get("type", "int")
        group, block = fields.get("group_size"), fields.get("block_structure")
        strategy = fields.get("strategy") or ("group" if group not in (None, -1) else "channel")
        rules = (
            ("num_bits", type(bits) is int and 1 <= bits <= 8, "1 to 8", bits),
            ("type", kind in ("int", "float"), "int or float", kind),
            ("strategy", strategy in STRATEGIES, " or ".join(STRATEGIES), strategy),
            ("group_size", group is None or (type(group) is int and group >= -1), "a number", group),
            ("block_structure", strategy != "block" or _pair(block), "[rows, columns]", block),
        )
        for name, holds, expected, found in rules:
            if not holds:
                raise refuse(name, expected, found, part=where)
        size = group if strategy in ("group", "tensor_group") and group else 0
        pair = (block[0], block[1]) if strategy == "block" and block else None
        return cls(bits, kind, strategy, max(size, 0), fields.get("symmetric") is not False, pair)


def dense(layer: str, parts: StoredParts, weights: Weights, files: CheckpointFiles) -> TensorSpec:
    """Build an unquantized weight stored with the scales for fake quantization."""
    weight = require_part(parts, ".weight", FLOATS)
    encoding = Encoding(codec=DENSE, parts={"data": weight})
    return TensorSpec(
        name=f"{layer}.weight",
        shape=weight.shape,
        dtype=weight.dtype,
        encodings=(encoding,),
        extras=other_parts(parts, "weight"),
    )


def packed(layer: str, parts: StoredParts, weights: Weights, files: CheckpointFiles) -> TensorSpec:
    """pack-quantized: codes plus half their range in i32, zero points along the rows."""
    codes = require_part(parts, ".weight_packed", ("i32",), rank=2)
    scale = require_part(parts, ".weight_scale", FLOATS, rank=2)
    shape = read_pair(parts, ".weight_shape", files, layer)
    bits = weights.bits
    if weights.strategy not in ("group", "channel"):
        raise refuse("strategy", "group or channel for packed weights", weights.strategy)
    params: dict[str, Any] = {"bits": bits, "group_size": weights.group_size, "word": "i32"}
    if 32 % bits and codes.shape[1] == -(-shape[1] // (32 // bits)):
        params["order"] = "padded"
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    fields = {"data": ("weight_packed", codes), "scale": ("weight_scale", scale)}
    if weights.symmetric:
        params["zero"] = 1 << bits - 1
    else:
        zero = require_part(parts, ".weight_zero_point", ("i32", "i8"), rank=2)
        # Before 0.9, zero points were stored as signed bytes, from which codes differ by half their range.
        signed = {"zero": 1 << bits - 1} if zero.dtype == "i8" else {}
        params.update(offset="zero_point", offset_dtype="i8" if signed else "packed", **signed)
        fields["offset"] = ("weight_zero_point", zero)
    spec, name = CodecSpec("affine", params), f"{layer}.weight"
    suffixes = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")
    extras = other_parts(parts, *suffixes)
    if ".weight_g_idx" not in parts:
        return build_tensor(name, shape, spec, Affine, fields, extras)
    fields["g_idx"] = ("weight_g_idx", require_part(parts, ".weight_g_idx", ("i32",), rank=1))
    codec = CodecSpec("hf.act_order", {}, spec)
    return build_tensor(name, shape, codec, (ActOrder, Affine), fields, extras)


def unpacked(layer: str, parts: StoredParts, weights: Weights, files: CheckpointFiles) -> TensorSpec:
    """int-quantized, float-quantized and naive-quantized: one byte per code."""
    if weights.kind == "float":
        return _float8(layer, parts, weights)
    codes, scale = require_part(parts, ".weight", ("i8",), rank=2), require_part(parts, ".weight_scale", FLOATS)
    params: dict[str, Any] = {"bits": 8, "group_size": weights.group_size, "word": "i8", "signed": True}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    zero = None if weights.symmetric else require_part(parts, ".weight_zero_point", ("i8",))
    if zero is not None:
        params.update(offset="zero_point", offset_dtype="i8")
    shape = codes.shape
    if weights.strategy == "tensor":
        params["axis"] = "flat"
        codes, scale = evolve(codes, shape=(codes.nbytes,)), view_part(scale, scale.dtype, (1,))
        zero = zero and view_part(zero, "i8", (1,))
    elif weights.strategy not in ("channel", "group"):
        raise refuse("strategy", "tensor, channel or group for integers", weights.strategy)
    fields = {"data": ("weight", codes), "scale": ("weight_scale", scale)}
    if zero is not None:
        fields["offset"] = ("weight_zero_point", zero)
    extras = other_parts(parts, "weight", "weight_scale", *(["weight_zero_point"] if zero is not None else []))
    return build_tensor(f"{layer}.weight", shape, CodecSpec("affine", params), Affine, fields, extras)


def nvfp4(layer: str, parts: StoredParts, weights: Weights, files: CheckpointFiles) -> TensorSpec:
    """nvfp4-pack-quantized: the global scale divides."""
    codes, scale = require_part(parts, ".weight_packed", ("u8",)), require_part(parts, ".weight_scale", ("f8_e4m3",))
    whole = view_part(require_part(parts, ".weight_global_scale", ("f32",)), "f32", ())
    fields = {"data": ("weight_packed", codes), "scale": ("weight_scale", scale)}
    fields["global_scale"] = ("weight_global_scale", whole)
    extras = other_parts(parts, "weight_packed", "weight_scale", "weight_global_scale")
    return build_tensor(f"{layer}.weight", _unpacked_shape(codes), CodecSpec("mx", NVFP4), Mx, fields, extras)


def mxfp4(layer: str, parts: StoredParts, weights: Weights, files: CheckpointFiles) -> TensorSpec:
    """mxfp4-pack-quantized."""
    codes, scale = require_part(parts, ".weight_packed", ("u8",)), exponents(parts)
    fields = {"data": ("weight_packed", codes), "scale": ("weight_scale", scale)}
    extras = other_parts(parts, "weight_packed", "weight_scale")
    return build_tensor(f"{layer}.weight", _unpacked_shape(codes), CodecSpec("mx"), Mx, fields, extras)


def mxfp8(layer: str, parts: StoredParts, weights: Weights, files: CheckpointFiles) -> TensorSpec:
    """mxfp8-quantized."""
    codes = require_part(parts, ".weight", FLOAT8_DTYPES[:2])
    fields = {"data": ("weight", codes), "scale": ("weight_scale", exponents(parts))}
    spec = CodecSpec("mx", {"element": codes.dtype})
    return build_tensor(f"{layer}.weight", codes.shape, spec, Mx, fields, other_parts(parts, "weight", "weight_scale"))


def _float8(layer: str, parts: StoredParts, weights: Weights) -> TensorSpec:
    scale = require_part(parts, ".weight_scale", FLOATS)
    blocks: dict[str, tuple[int, int] | None] = {
        "tensor": None, "channel": (1, 0), "block": weights.block, "group": (1, weights.group_size),
    }  # fmt: skip
    if weights.strategy not in blocks or (weights.strategy == "tensor" and scale.shape not in ((), (1,), (1, 1))):
        raise refuse("strategy", "the strategy of the stored scales", weights.strategy)
    block = blocks[weights.strategy]
    return float8(layer, parts, scale, list(block) if block else None, "weight_scale")


def read_pair(parts: StoredParts, suffix: str, files: CheckpointFiles, layer: str) -> tuple[int, int]:
    """Read a matrix shape stored as a tensor [2] or [2, 1]."""
    part, field = require_part(parts, suffix, ("i64", "i32")), suffix.lstrip(".")
    if part.shape not in ((2,), (2, 1)):
        raise FormatError("wrong number of elements", part=field, expected="[2]", found=list(part.shape), code="shape")
    raw, width = files.read(part, field), part.nbytes // 2
    rows, columns = (int.from_bytes(raw[at : at + width], "little", signed=True) for at in (0, width))
    check_shape([rows, columns], files.limits, tensor=f"{layer}.weight")
    return rows, columns


def _unpacked_shape(codes: Part) -> tuple[int, ...]:
    return (*codes.shape[:-1], 2 * codes.shape[-1]) if codes.shape else ()


def exponents(parts: StoredParts) -> Part:
    """Return power-of-two scales stored as bytes."""
    scale = require_part(parts, ".weight_scale", ("u8", "f8_e8m0"))
    return view_part(scale, "f8_e8m0", scale.shape)


def _pair(block: Any) -> bool:
    return isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
