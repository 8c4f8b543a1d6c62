"""FP8: float8 weights with a scale for each block (DeepSeek), each row (FBGEMM), or the whole tensor."""

from __future__ import annotations

from typing import Any

from squish_codecs.float8 import ELEMENTS, SCALES, Float8
from squish_safetensors.layers import Files, Parts, encoded, need, viewed

from squish_core.api import CodecSpec, FormatError, Part, TensorSpec
from squish_hf.declaration import Declared, refuse
from squish_hf.method import CACHE, Method

SUFFIXES = (".weight_scale_inv", ".weight_scale")
BESIDE = (*CACHE, ".input_scale", ".activation_scale", ".input_scale_ub")


def read(declared: Declared, files: Files) -> Method:
    """`quant_method` fp8 and fbgemm_fp8; the block is that of `weight_block_size`."""
    block = declared.get("weight_block_size", list)
    if block is not None and not (len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
        raise refuse("weight_block_size", "[rows, columns]", block, part=declared.where)

    def make(layer: str, parts: Parts) -> TensorSpec:
        return _make(layer, parts, block)

    return Method(dialect=declared.method, suffixes=SUFFIXES, beside=BESIDE, make=make, packed=ELEMENTS)


def _make(layer: str, parts: Parts, block: list[int] | None) -> TensorSpec:
    if ".weight_scale_inv" in parts and ".weight_scale" in parts:
        raise FormatError("has a scale and an inverse one", part="weight_scale", code="contradiction")
    field = "weight_scale" if ".weight_scale" in parts else "weight_scale_inv"
    scale = need(parts, f".{field}", SCALES)
    if field == "weight_scale":
        return float8(layer, parts, scale, None, field)
    if block is None and scale.shape not in ((), (1,)):
        raise refuse("weight_block_size", "[rows, columns], because scales are stored for blocks", None)
    return float8(layer, parts, scale, block if scale.shape not in ((), (1,)) else None, field)


def float8(layer: str, parts: Parts, scale: Part, block: list[int] | None, field: str) -> TensorSpec:
    """A float8 weight whose scale is for `block`, or what its shape says: one, or one a row."""
    weight = need(parts, ".weight", ELEMENTS)
    if block is None and scale.shape in ((), (1,), (1, 1)):
        scale = viewed(scale, scale.dtype, ())
    elif block is None:
        if len(scale.shape) == 1:
            scale = viewed(scale, scale.dtype, (*scale.shape, 1))
        block = [1, 0]
    params: dict[str, Any] = {}
    if weight.dtype != ELEMENTS[0]:
        params["element"] = weight.dtype
    if scale.dtype != SCALES[0]:
        params["scale_dtype"] = scale.dtype
    if block is not None:
        params["block"] = list(block)
    fields = {"data": ("weight", weight), "scale": (field, scale)}
    return encoded(
        f"{layer}.weight", weight.shape, CodecSpec("float8", params), Float8(), fields, left(parts, "weight", field)
    )


def left(parts: Parts, *used: str) -> dict[str, Part]:
    """The parts that no codec reads: scales of activations and caches."""
    return {suffix.lstrip("."): part for suffix, part in parts.items() if suffix.lstrip(".") not in used}
