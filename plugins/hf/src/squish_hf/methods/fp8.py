"""FP8: float8 weights with a scale per block (DeepSeek), row (FBGEMM) or tensor."""

from __future__ import annotations

from typing import Any

from squish_codecs.api import FLOAT8_DTYPES, FLOAT8_SCALES, Float8, Mx
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import CodecSpec, ErrorCode, FormatError, Part, TensorSpec
from squish_hf.declaration import Declared, refuse
from squish_hf.methods.method import CACHE, Method

WEIGHT, FUSED = ".weight", ""
SUFFIXES = (".weight_scale_inv", ".weight_scale")
INVERSE, SCALE, DOTTED_SCALE = "_scale_inv", "_scale", ".scale"
"""Suffixes after the name of a weight; the last one (DeepSeek's own files) follows the name of the layer."""
BESIDE = (
    *CACHE, ".input_scale", ".activation_scale", ".input_scale_ub", DOTTED_SCALE, INVERSE, SCALE, "_activation_scale",
    "_input_scale",
)  # fmt: skip
EXPONENTS, FOUR_BITS, MXFP8 = "f8_e8m0", "i8", [1, 32]
USUAL = (128, 128)
"""The block that Transformers and DeepSeek assume if none is declared."""
WHOLE = ((1, 0), (0, 1), (0, 0))
"""Blocks that need no declaration: rows, columns, matrices."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read `quant_method` fp8, mxfp8 and fbgemm_fp8, with blocks of `weight_block_size`. Fused experts (`gate_up_proj`
    and `gate_up_proj_scale_inv`, [experts, ...]) have no `.weight` in their names."""
    block = declared.get("weight_block_size", list)
    if block is not None and not (len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
        raise refuse("weight_block_size", "[rows, columns]", block, part=declared.where)

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        return _make(layer, parts, block)

    packed = (*FLOAT8_DTYPES, FOUR_BITS) if declared.get("scale_fmt", str) == "ue8m0" else FLOAT8_DTYPES
    return Method(
        dialect=declared.method, suffixes=SUFFIXES, bases=(WEIGHT, FUSED), beside=BESIDE, make=make, packed=packed
    )


def _make(layer: str, parts: StoredParts, block: list[int] | None) -> TensorSpec:
    base = FUSED if FUSED in parts else WEIGHT
    fields = [name for name in (base + INVERSE, base + SCALE, DOTTED_SCALE) if name in parts]
    if len(fields) > 1:
        raise FormatError(
            "several scales of a weight",
            part=fields[1].lstrip("."),
            found=", ".join(fields),
            code=ErrorCode.CONTRADICTION,
        )
    field = fields[0] if fields else base + INVERSE
    scale, weight = (
        require_part(parts, field, (*FLOAT8_SCALES, "u8")),
        require_part(parts, base, (*FLOAT8_DTYPES, FOUR_BITS)),
    )
    if scale.dtype == "u8":  # exponents
        scale = view_part(scale, EXPONENTS, scale.shape)
    if weight.dtype == FOUR_BITS:
        *lead, width = weight.shape or (0,)
        codes = view_part(weight, "u8", weight.shape)
        return _microscaled(layer + base, parts, (codes, scale), (base, field), (*lead, 2 * width), "f4_e2m1")
    scale_block = block_of(weight.shape, scale.shape, block)
    if (
        scale_block == MXFP8
        and scale.dtype == EXPONENTS
        and weight.dtype in FLOAT8_DTYPES[:2]
        and not weight.shape[-1] % MXFP8[1]
    ):
        return _microscaled(layer + base, parts, (weight, scale), (base, field), weight.shape, weight.dtype)
    return float8(layer, parts, scale, scale_block, field.lstrip("."), base)


def block_of(shape: tuple[int, ...], grid: tuple[int, ...], declared: list[int] | None) -> list[int] | None:
    """Return the block for scales of this shape: declared, or derived."""
    if grid in ((), (1,)):
        return None
    filled = _filled(grid, shape)
    for block in (*([declared] if declared else []), *WHOLE, *(() if declared else (USUAL,))):
        if filled == (*shape[:-2], *(-(-size // step) if step else 1 for size, step in zip(shape[-2:], block))):
            return list(block)
    if declared is None:
        raise refuse("weight_block_size", "[rows, columns], because scales are stored for blocks", None)
    return declared


def _filled(grid: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scales with omitted trailing axes."""
    return (*grid, *(1,) * (len(shape) - len(grid)))


def _microscaled(
    name: str,
    parts: StoredParts,
    stored: tuple[Part, Part],
    suffixes: tuple[str, str],
    shape: tuple[int, ...],
    element: str,
) -> TensorSpec:
    """Read power-of-two scales per 32 elements: MXFP8, and DeepSeek-V4's experts with two float4 per byte."""
    fields = {role: (field.lstrip("."), part) for role, field, part in zip(("data", "scale"), suffixes, stored)}
    params = Mx.from_params({"element": element}).canonical
    extras = other_parts(parts, *(field for field, _ in fields.values()))
    return build_tensor(name, shape, CodecSpec("mx", params), Mx, fields, extras)


def float8(
    layer: str, parts: StoredParts, scale: Part, block: list[int] | None, field: str, base: str = WEIGHT
) -> TensorSpec:
    """Build a float8 weight with scales per `block`, or by the shape of the scale: one, or one per row."""
    weight = require_part(parts, base, FLOAT8_DTYPES)
    if block is None and scale.shape in ((), (1,), (1, 1)):
        scale = view_part(scale, scale.dtype, ())
    else:
        block, scale = block or [1, 0], view_part(scale, scale.dtype, _filled(scale.shape, weight.shape))
    params: dict[str, Any] = {}
    if weight.dtype != FLOAT8_DTYPES[0]:
        params["element"] = weight.dtype
    if scale.dtype != FLOAT8_SCALES[0]:
        params["scale_dtype"] = scale.dtype
    if block is not None:
        params["block"] = block
    name = base.lstrip(".")
    fields = {"data": (name, weight), "scale": (field, scale)}
    return build_tensor(
        layer + base, weight.shape, CodecSpec("float8", params), Float8, fields, other_parts(parts, name, field)
    )


def other_parts(parts: StoredParts, *fields: str) -> dict[str, Part]:
    """Return the unused parts: scales of activations and caches."""
    return {suffix.lstrip("."): part for suffix, part in parts.items() if suffix.lstrip(".") not in fields}
