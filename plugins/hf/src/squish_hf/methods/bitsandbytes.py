"""bitsandbytes: NF4 and FP4 in blocks over the flattened tensor, and int8 rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import evolve
from squish_codecs.api import Palette
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import (
    Codec,
    CodecError,
    CodecSpec,
    ErrorCode,
    FormatError,
    Part,
    Region,
    TensorSpec,
    check_shape,
    dtypes,
    load_json,
)
from squish_core.api import Parts as Arrays
from squish_hf.declaration import Declared, refuse
from squish_hf.methods.fp8 import other_parts
from squish_hf.methods.method import Method

STATE = ".weight.quant_state.bitsandbytes__"
FOUR = (
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
    STATE + "nf4",
    STATE + "fp4",
)
SUFFIXES = (*FOUR, ".SCB", ".weight_format")
MAX_STATE = 4096
BLOCKS = tuple(1 << power for power in range(5, 13))


class EightBit(Codec):
    """`code * scale[row] * (1 / 127)` in float32: `data` i8 of the tensor's shape, `scale` f32 [rows].

    Source: bitsandbytes 0.50, int8_vectorwise_dequant.
    """

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        if len(spec.shape) != 2:
            raise CodecError("int8 rows require a matrix", found=f"shape {list(spec.shape)}", code="shape")
        return {"data": ("i8", spec.shape), "scale": ("f32", spec.shape[:1])}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (1, 1)

    def decode(self, parts: Arrays, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            np.multiply(parts["data"][region], parts["scale"][region[0]][:, None], out=out)
            out *= np.float32(1 / 127)


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read `load_in_4bit` or `load_in_8bit` checkpoints; each tensor declares its type."""
    both = [declared.get(name, bool, False) for name in ("load_in_4bit", "load_in_8bit")]
    if all(both):
        raise refuse("load_in_4bit", "true for either 4 or 8 bits", True, part=declared.where)

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        if any(suffix in parts for suffix in FOUR):
            return _four(layer, parts, files)
        if both[0]:
            raise FormatError("an int8 layer in a 4-bit checkpoint", part="SCB", code=ErrorCode.CONTRADICTION)
        return _eight(layer, parts, files)

    return Method(
        dialect="bitsandbytes 4 bit" if both[0] else "bitsandbytes int8",
        suffixes=SUFFIXES,
        make=make,
        packed=("u8", "i8"),
    )


def _four(layer: str, parts: StoredParts, files: CheckpointFiles) -> TensorSpec:
    kind = next((kind for kind in ("nf4", "fp4") if STATE + kind in parts), "nf4")
    state = _state(parts, STATE + kind, files)
    codes = parts.get(".weight") or require_part(parts, ".weight", ("u8",))
    shape = check_shape(state.get("shape", 0), files.limits, tensor=f"{layer}.weight")
    params: dict[str, Any] = {
        "bits": 4, "axis": "flat", "order": "msb", "scale_dtype": "f32", "group_size": _number(state, "blocksize"),
    }  # fmt: skip
    fields = {
        # quant_storage may declare any dtype for the bytes.
        "data": ("weight", view_part(codes, "u8", (codes.nbytes,))),
        "codebook": ("quant_map", require_part(parts, ".weight.quant_map", ("f32",))),
        "scale": ("absmax", require_part(parts, ".weight.absmax", ("f32", "u8"))),
    }  # fmt: skip
    if ".weight.nested_absmax" in parts or "nested_blocksize" in state:
        offset = state.get("nested_offset")
        if type(offset) is not float or not math.isfinite(offset):
            raise refuse("nested_offset", "a number", offset, part="quant_state")
        params["nested"] = _number(state, "nested_blocksize")
        fields["scale_scale"] = ("nested_absmax", require_part(parts, ".weight.nested_absmax", ("f32",)))
        fields["scale_codebook"] = ("nested_quant_map", require_part(parts, ".weight.nested_quant_map", ("f32",)))
        offset_part = Part(dtype="f32", shape=(), data=np.float32(offset).tobytes())
        fields["scale_offset"] = ("nested_offset", offset_part)
    extras = {STATE.rpartition(".")[2] + kind: parts[STATE + kind]}
    return build_tensor(f"{layer}.weight", shape, CodecSpec("palette", params), Palette, fields, extras)


def _state(parts: StoredParts, suffix: str, files: CheckpointFiles) -> dict[str, Any]:
    """Read the JSON quantization state of a tensor, the only source of its shape."""
    part = require_part(parts, suffix, ("u8",), rank=1)
    if part.nbytes > MAX_STATE:
        raise FormatError(
            "quantization state too large",
            part="quant_state",
            expected=f"at most {MAX_STATE} bytes",
            found=part.nbytes,
            code="size",
        )
    state = load_json(files.read(part, "the quantization state"), "quantization state", files.limits)
    if state.get("quant_type") != suffix.rpartition("__")[2]:
        raise refuse("quant_type", suffix.rpartition("__")[2], state.get("quant_type"), part="quant_state")
    return state


def _number(state: dict[str, Any], name: str) -> int:
    value = state.get(name)
    if type(value) is not int or value not in BLOCKS:
        raise refuse(name, "a power of two from 32 to 4096", value, part="quant_state")
    return value


def _eight(layer: str, parts: StoredParts, files: CheckpointFiles) -> TensorSpec:
    if ".weight_format" in parts and any(
        files.read(require_part(parts, ".weight_format", ("u8",), rank=0), "weight_format")
    ):
        raise FormatError(
            "unsupported GPU-specific order of codes",
            part="weight_format",
            expected="0 (rows)",
            code="weight_format",
            hint="Load it with the version of bitsandbytes that wrote it, and save the weights unquantized.",
        )
    codes, scale = require_part(parts, ".weight", ("i8",), rank=2), require_part(parts, ".SCB", ("f32",))
    scale = evolve(scale, shape=(dtypes.count(scale.shape),))
    fields = {"data": ("weight", codes), "scale": ("SCB", scale)}
    return build_tensor(
        f"{layer}.weight", codes.shape, CodecSpec("hf.bnb8"), EightBit, fields, other_parts(parts, "weight", "SCB")
    )
