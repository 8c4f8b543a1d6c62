"""HQQ: half-quadratic codes in groups; each layer's settings are tensors next to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from squish_codecs.api import Hqq
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part

from squish_core.api import CodecSpec, FormatError, TensorSpec, check_shape, dtypes
from squish_hf.declaration import Declared, refuse
from squish_hf.methods.fp8 import other_parts
from squish_hf.methods.method import Method
from squish_hf.methods.unsupported import SAVE

SETTINGS = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
    "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise",
    "optimize", "round_zero",
)  # fmt: skip
SUFFIXES = (".W_q", ".scale", ".zero", *(f".{name}" for name in SETTINGS))
PACKINGS = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}
"""`nbits` -> `packing` of the codes."""
UNSUPPORTED = {
    "quant_scale": "quantized scales", "quant_zero": "quantized zero points", "view_as_float": "codes stored as floats",
}  # fmt: skip
"""Setting -> what it declares if it is 1."""
MAX_SETTING = 64
"""Bytes of a stored setting."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read checkpoints of Transformers; each layer declares its type."""

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        return _make(layer, parts, files)

    return Method(dialect="hqq", suffixes=SUFFIXES, make=make, packed=("u8", "i32"))


def _make(layer: str, parts: StoredParts, files: CheckpointFiles) -> TensorSpec:
    settings = Settings(parts, files)
    for name, what in UNSUPPORTED.items():
        if f".{name}" in parts and settings.number(name, range(2)):
            raise FormatError(f"unsupported HQQ layer with {what}", part=name, code="hqq", hint=SAVE.format("hqq"))
    bits, packing = settings.number("nbits", range(1, 9)), settings.text("packing")
    if PACKINGS.get(bits) != packing:
        raise refuse("packing", PACKINGS.get(bits, " or ".join(PACKINGS.values())), packing, part="packing")
    shape = check_shape(settings.numbers("shape"), files.limits, tensor=f"{layer}.weight")
    scale = require_part(parts, ".scale", ("f32", "f16", "bf16"), rank=2)
    params: dict[str, Any] = {
        "bits": bits, "group_size": settings.number("group_size", range(1, 1 << 20)),
        "axis": settings.number("axis", range(2)),
    }  # fmt: skip
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    fields = {
        "data": ("W_q", require_part(parts, ".W_q", ("u8", "i32"), rank=2)), "scale": ("scale", scale),
        "zero": ("zero", require_part(parts, ".zero", (scale.dtype,), rank=2)),
    }  # fmt: skip
    extras = other_parts(parts, "W_q", "scale", "zero")
    return build_tensor(f"{layer}.weight", shape, CodecSpec("hqq", params), Hqq, fields, extras)


@frozen
class Settings:
    """The stored settings of a layer."""

    parts: StoredParts
    files: CheckpointFiles

    def numbers(self, name: str) -> list[int]:
        """Return the integers of a setting."""
        part = require_part(self.parts, f".{name}", ("u8", "i32", "i64", "bool"))
        if part.nbytes > MAX_SETTING:
            raise refuse(name, f"at most {MAX_SETTING} bytes", f"{part.nbytes} bytes", part=name)
        stored = np.frombuffer(self.files.read(part, name), dtypes.to_numpy(part.dtype))
        return [int(number) for number in stored]

    def number(self, name: str, legal: range) -> int:
        """Return a setting that is one of `legal`."""
        numbers = self.numbers(name)
        if len(numbers) != 1 or numbers[0] not in legal:
            raise refuse(name, f"{legal.start} to {legal.stop - 1}", numbers, part=name)
        return numbers[0]

    def text(self, name: str) -> str:
        """Return a setting of text, stored as its bytes."""
        return bytes(number & 0xFF for number in self.numbers(name)).decode("ascii", "replace")
