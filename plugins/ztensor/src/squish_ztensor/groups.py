"""Group quantization: which parameters of the affine codec zTensor supports, and their parts (wires 6.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import CodecSpec, CodeLayout, Encoding, Part, Refusal, TensorSpec, dtypes

Shape = tuple[int, ...]
ORDERS = {"lsb_first": "lsb", "msb_first": "msb"}
_ORDER_NAMES = {"lsb": "lsb_first", "msb": "msb_first", "padded": "lsb_first"}
WIDTHS, WIDTHS_V1 = (2, 4, 8), (2, 3, 4, 8)
"""Bits per code in v2, whose codes fill their words, and in 1.1, where 3-bit codes leave some bits unused."""
_SCALES = ("f32", "f16", "bf16", "f8_e8m0")


def declared(shape: Shape, params: Mapping[str, Any]) -> dict[str, tuple[str, Shape]] | str:
    """Return role -> dtype and shape of the parts, or the reason why the shape cannot be divided into them."""
    axis, word, group = len(shape) + params["axis"], params["word"], params["group_size"]
    per_word = dtypes.bits(word) // params["bits"]
    if axis < 0 or shape[axis] % group or (params["bits"] != 3 and shape[axis] % per_word):
        return (
            f"axis {axis} of {list(shape)} is not a multiple of the group size {group} and of {per_word} codes per word"
        )
    grid = _divided(shape, axis, group)
    parts = {"data": (word, _divided(shape, axis, per_word)), "scale": (params["scale_dtype"], grid)}
    if params.get("offset") == "zero_point":
        parts["offset"] = (params["offset_dtype"], grid)
        if params["offset_dtype"] == "packed":
            across = len(shape) - 1 if axis == len(shape) - 2 else len(shape) - 2
            if across < 0 or grid[across] % per_word:
                return f"the packed zero points are not a multiple of {per_word} per word"
            parts["offset"] = (word, _divided(grid, across, per_word))
    return parts


def as_stored(spec: TensorSpec, encoding: Encoding, *, zeros: bool) -> Encoding | Refusal:
    """Return the encoding unchanged if zTensor supports it. `zeros`: zero points must be stored (1.1), not implied."""
    if not spec.shape or not all(spec.shape):
        return Refusal(why=f"zTensor has no group quantization for the shape {list(spec.shape)}")
    params = encoding.codec.params
    if refusal := _refusal(params.get("bits", 0), params.get("scale_dtype", "f32"), WIDTHS_V1 if zeros else WIDTHS):
        return refusal
    stored = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
    if _supported(spec.shape, params, zeros) and _matches(spec.shape, params, stored):
        return Encoding(codec=encoding.codec, parts=stored)
    return Refusal(why=f"zTensor cannot store the parameters {encoding.codec}")


def nearest(spec: TensorSpec, layout: CodeLayout, *, zeros: bool) -> Encoding | Refusal | None:
    """Return the nearest parameters that zTensor supports for a layout; None for indices into a table.

    Stored codes of a width that zTensor lacks are widened: their values stay the same. Values are not encoded in
    another width than the one that was requested.
    """
    if layout.table is not None:
        return None
    if not spec.shape or not all(spec.shape):
        return Refusal(why=f"zTensor has no group quantization for the shape {list(spec.shape)}")
    widths = WIDTHS_V1 if zeros else WIDTHS
    bits = next((width for width in widths if width >= layout.bits), 0) if spec.encodings else layout.bits
    if refusal := _refusal(bits, layout.scale_dtype, widths):
        return refusal
    axis = _axis(layout)
    if axis is None:
        return Refusal(why=f"zTensor stores groups along one of the last two axes, not {list(layout.group)}")
    params = _nearest(spec.shape, layout, bits, axis, zeros)
    parts = declared(spec.shape, params)
    if isinstance(parts, str):
        return Refusal(why=parts)
    return Encoding(
        codec=CodecSpec("affine", params),
        parts={role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in parts.items()},
    )


def _refusal(bits: int, scale_dtype: str, widths: tuple[int, ...]) -> Refusal | None:
    if bits not in widths:
        *others, last = map(str, widths)
        return Refusal(why=f"zTensor stores codes of {', '.join(others)} or {last} bits, not of {bits}")
    if scale_dtype not in _SCALES:
        return Refusal(why=f"zTensor stores scales as {', '.join(_SCALES)}, not as {scale_dtype}")
    return None


def _axis(layout: CodeLayout) -> int | None:
    """Return the axis of the groups, one of the last two, or None."""
    if layout.row_group is not None:
        return -1
    across = not layout.run and len(layout.group) > 1 and layout.group[-1] == 1
    return -2 if across and all(step == 1 for step in layout.group[:-2]) else None


def attributes_v1(shape: Shape, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of 1.1: bits, group_size and packing; and `axis`, `order` and `zero_point`, which the
    specification lacks, if they differ from the released writers: 0, lsb_first, packed zeros in the words' dtype."""
    bits, group, axis, per_word, order = _common(shape, params)
    words = params.get("word", "u8")
    attributes = {"bits": bits, "group_size": group, "packing": f"{per_word}_per_{words}"}
    if axis:
        attributes["axis"] = axis
    if order != "lsb_first":
        attributes["order"] = order
    if params.get("offset_dtype", "u8") == words:
        attributes["zero_point"] = "plain"
    return attributes


def attributes_v2(shape: Shape, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of v2."""
    bits, group, axis, per_word, order = _common(shape, params)
    zero: dict[str, Any] = {"form": "none"}
    if params.get("offset", "none") != "none":
        packed = params.get("offset_dtype") == "packed"
        zero = {"form": "tensor", "packing": "same_as_data" if packed else "plain"}
    elif params.get("zero"):
        zero = {"form": "implied", "value": params["zero"]}
    word = params.get("word", "u8").replace("i", "u")
    scales = params.get("scale_dtype", "f32")
    return {
        "bits": bits,
        "group_size": group,
        "axis": axis,
        "zero_point": zero,
        "packing": {"word": word, "order": order, "per_word": per_word},
        "scale_form": "e8m0_exponent" if scales == "f8_e8m0" else "f32_factors",
    }


def _common(shape: Shape, params: Mapping[str, Any]) -> tuple[int, int, int, int, str]:
    axis = len(shape) + params.get("axis", -1)
    per_word = dtypes.bits(params.get("word", "u8")) // params["bits"]
    order = _ORDER_NAMES[params.get("order", "lsb")]
    return params["bits"], params.get("group_size") or shape[axis], axis, per_word, order


def _supported(shape: Shape, params: Mapping[str, Any], zeros: bool) -> bool:
    """Return whether zTensor supports these parameters."""
    axis, offset, order = params.get("axis", -1), params.get("offset", "none"), params.get("order", "lsb")
    return (
        axis in (-1, -2)
        and params.get("pack_axis", axis) == axis
        and not params.get("transposed")
        and not _signed(params)
        and order in (("padded",) if params["bits"] == 3 else ("lsb", "msb"))
        and offset in (("zero_point",) if zeros else ("zero_point", "none"))
        and not (offset == "zero_point" and params.get("zero"))
    )


def _matches(shape: Shape, params: Mapping[str, Any], stored: Mapping[str, Part]) -> bool:
    offset = params.get("offset_dtype", "u8")
    full = {"axis": -1, "word": "u8", "scale_dtype": "f32", "offset_dtype": offset, **params}
    full["group_size"] = params.get("group_size") or shape[full["axis"]]
    stored_as = {role: (part.dtype, part.shape) for role, part in stored.items()}
    return declared(shape, full) == stored_as


def _nearest(shape: Shape, layout: CodeLayout, bits: int, axis: int, zeros: bool) -> dict[str, Any]:
    """Return parameters for unsigned codes of `bits` along one of the last two axes, with the zero point for the
    same values, in words of the same width if these divide the axis."""
    scale, offset_dtype = layout.scale_dtype, layout.offset_dtype
    word, order = ("i32", "padded") if bits == 3 else (layout.word or "u8", "lsb")
    if order == "lsb" and shape[axis] % (dtypes.bits(word) // bits):
        word = "u8"
    params = {
        "bits": bits, "group_size": layout.group_sizes(shape)[axis], "axis": axis, "signed": False,
        "word": word, "order": order, "scale_dtype": scale,
    }  # fmt: skip
    zero = layout.zero - layout.low
    if layout.offset_kind == "none" and not zeros:
        return {**params, "zero": zero} if zero else params
    if layout.offset_kind == "bias":
        offset_dtype = "f32"  # a zero point computed from a bias may be any number
    elif offset_dtype is None or zero or offset_dtype not in dtypes.NAMES or dtypes.bits(offset_dtype) < 8:
        offset_dtype = "f16" if scale != "f32" else "f32"  # integers up to 2048 are exact in f16
    return {**params, "offset": "zero_point", "offset_dtype": offset_dtype}


def _signed(params: Mapping[str, Any]) -> bool:
    """Return whether codes are signed; the codec's default is true if they have no zero point."""
    default = params.get("offset", "none") == "none" and not params.get("zero")
    return bool(params.get("signed", default))


def _divided(shape: Shape, axis: int, by: int) -> Shape:
    return (*shape[:axis], -(-shape[axis] // by), *shape[axis + 1 :])
