"""Layouts with several components: sparse matrices, group quantization, microscaling."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from squish_core.api import CodecSpec, Encoding, dtypes

from . import groups
from .components import Component, Components, UnreadableError, count, element_of, part, required

Shape = tuple[int, ...]
Reading = Callable[[Shape, Components, dict[str, Any]], tuple[str, Encoding]]
INTEGERS = ("u64", "u32", "u16", "u8", "i64", "i32", "i16", "i8")


def _csr(shape: Shape, components: Components, attributes: dict[str, Any], *, ordered: bool) -> tuple[str, Encoding]:
    """Read sparse rows (spec III.2; v2 6.4). `ordered`: ascending columns, and all indices u32 or all u64."""
    values, indices, indptr = (required(components, role) for role in ("values", "indices", "indptr"))
    if len(shape) != 2:
        raise UnreadableError(f"sparse_csr requires a matrix, not the shape {list(shape)}")
    dtype, entries = element_of(values, "values"), _entries(components, {"values": 1, "indices": 1})
    kinds = _index_dtypes(components, ("indices", "indptr"), ordered)
    parts = {
        "values": part(values, dtype, (entries,)),
        "indices": part(indices, kinds[0], (entries,)),
        "indptr": part(indptr, kinds[1], (shape[0] + 1,)),
    }
    params = {"nnz": entries, "indices": kinds[0], "indptr": kinds[1], "ordered": ordered}
    return dtype, Encoding(codec=CodecSpec("zt.sparse_csr", params), parts=parts)


def _coo(shape: Shape, components: Components, attributes: dict[str, Any], *, ordered: bool) -> tuple[str, Encoding]:
    """Read sparse coordinates (spec III.3; v2 6.4); those of the first axis come first."""
    values, coords = required(components, "values"), required(components, "coords")
    if not shape:
        raise UnreadableError("sparse_coo requires at least one axis, but the shape is []")
    dtype, entries = element_of(values, "values"), _entries(components, {"values": 1, "coords": len(shape)})
    [kind] = _index_dtypes(components, ("coords",), ordered)
    parts = {"values": part(values, dtype, (entries,)), "coords": part(coords, kind, (len(shape), entries))}
    return dtype, Encoding(codec=CodecSpec("zt.sparse_coo", {"nnz": entries, "coords": kind}), parts=parts)


def _entries(components: Components, per_entry: dict[str, int]) -> int:
    """Return the number of stored values, from the first component that states it; `part` checks the others."""
    reason = UnreadableError("no component states the number of values")
    for role, width in per_entry.items():
        try:
            total = count(components[role], role)
        except UnreadableError as error:
            reason = error
            continue
        if total % width:
            raise UnreadableError(f"{role!r} has {total} elements, which is not a multiple of {width} per value")
        return total // width
    raise reason


def _index_dtypes(components: Components, roles: tuple[str, ...], strict: bool) -> list[str]:
    kinds = [element_of(components[role], role) for role in roles]
    allowed = ("u32", "u64") if strict else INTEGERS
    for role, kind in zip(roles, kinds):
        if kind not in allowed:
            raise UnreadableError(f"the dtype of {role!r} is {kind}, expected {' or '.join(allowed)}")
    if strict and len(set(kinds)) > 1:
        raise UnreadableError(f"{' and '.join(roles)} have different dtypes, {' and '.join(kinds)}")
    return kinds


_PACKING = re.compile(r"(\d{1,2})_per_([iu](?:8|16|32|64))")
_SCALES = {
    "f32_factors": ("f64", "f32", "f16", "bf16"), "f16_factors": ("f16", "bf16"), "e8m0_exponent": ("f8_e8m0",),
}  # fmt: skip


def _quant_group(shape: Shape, components: Components, attributes: dict[str, Any]) -> tuple[str, Encoding]:
    """Read v2 `zt.quant_group/1` (wires 6.5): words along the axis of the groups, scales in the tensor's axis order."""
    packing, zero_point = _map(attributes, "packing"), _map(attributes, "zero_point")
    data = required(components, "data")
    if packing.get("word") != element_of(data, "data").replace("i", "u"):
        raise UnreadableError(f"the packing word {str(packing.get('word'))[:9]!r} differs from the dtype of 'data'")
    form = attributes.get("scale_form")
    scales = element_of(required(components, "scales"), "scales")
    if type(form) is not str or scales not in _SCALES.get(form, ()):
        raise UnreadableError(f"the scale_form {str(form)[:20]!r} does not match scales of dtype {scales}")
    forms: dict[str, dict[str, Any]] = {
        "none": {},
        "implied": {"zero": zero_point.get("value")},
        "tensor": {"offset": "zero_point"},
    }
    if type(zero_point.get("form")) is not str or zero_point["form"] not in forms:
        raise UnreadableError(f"unknown zero_point {str(zero_point)[:40]}")
    extra = forms[zero_point["form"]]
    if type(extra.get("zero", 0)) is not int:
        raise UnreadableError("the implied zero_point must be an integer")
    if ("zeros" in components) != ("offset" in extra):
        raise UnreadableError("the part 'zeros' must exist if and only if zero_point has the form 'tensor'")
    if "offset" in extra and zero_point.get("packing") not in ("plain", "same_as_data"):
        raise UnreadableError("the packing of zero_point must be 'plain' or 'same_as_data'")
    return _affine(
        shape,
        data,
        components["scales"],
        components.get("zeros"),
        attributes,
        per_word=packing.get("per_word"),
        order=packing.get("order"),
        packed=zero_point.get("packing") == "same_as_data",
        extra=extra,
    )


def _quantized_group(shape: Shape, components: Components, attributes: dict[str, Any]) -> tuple[str, Encoding]:
    """Read 1.1 `quantized_group`. The specification defines bits, group_size and packing only; the rest follows the
    released writers: groups and words along axis 0, low code first, unless `axis`, `order` or `zero_point` differ. If
    the sizes of a matrix do not fit axis 0, axis 1 is tried."""
    data, scales, zeros = required(components, "packed_weight"), required(components, "scales"), components.get("zeros")
    packing = _PACKING.fullmatch(str(attributes.get("packing"))[:20])
    if not packing or packing[2] != element_of(data, "packed_weight"):
        raise UnreadableError(
            f"the packing {str(attributes.get('packing'))[:20]!r} must be N_per_<dtype of packed_weight>"
        )
    packed = zeros is not None and zeros.get("dtype") == data.get("dtype") and attributes.get("zero_point") != "plain"
    read = partial(
        _affine,
        shape,
        data,
        scales,
        zeros,
        per_word=int(packing[1]),
        packed=packed,
        widths=groups.WIDTHS_V1,
        order=attributes.get("order", "lsb_first"),
        extra={} if zeros is None else {"offset": "zero_point"},
    )
    try:
        return read({"axis": 0, **attributes})
    except UnreadableError:
        if "axis" in attributes or len(shape) != 2:
            raise
        with suppress(UnreadableError):  # the sizes may fit the other axis
            return read({"axis": 1, **attributes})
        raise


def _affine(
    shape: Shape,
    data: Component,
    scales: Component,
    zeros: Component | None,
    attributes: dict[str, Any],
    *,
    per_word: Any,
    order: Any,
    packed: bool,
    extra: dict[str, Any],
    widths: tuple[int, ...] = groups.WIDTHS,
) -> tuple[str, Encoding]:
    """Return the affine codec over these parts, after checking all sizes."""
    word, bits = element_of(data, "data"), attributes.get("bits")
    if type(bits) is not int or bits not in widths or word not in INTEGERS:
        raise UnreadableError(f"unsupported codes of {str(bits)[:20]} bits in words of {word}")
    if type(order) is not str or order not in groups.ORDERS or (bits == 3 and order != "lsb_first"):
        raise UnreadableError(f"unknown packing order {str(order)[:20]!r}")
    if per_word != dtypes.bits(word) // bits:
        raise UnreadableError(
            f"per_word is {str(per_word)[:20]}, expected {dtypes.bits(word) // bits} for {bits} bits in {word}"
        )
    axis, group = _index(attributes, "axis", len(shape)), _index(attributes, "group_size", 1 << 40)
    if axis < len(shape) - 2:
        raise UnreadableError(f"unsupported groups along axis {axis} of {len(shape)}, which is not one of the last two")
    params = {
        # By the size equation, group_size 0 means one scale per code (wires 6.5).
        "bits": bits, "group_size": group or 1, "axis": axis - len(shape), "signed": False, "word": word,
        "order": "padded" if bits == 3 else groups.ORDERS[order], "scale_dtype": element_of(scales, "scales"),
        **extra,
    }  # fmt: skip
    if zeros is not None:
        params["offset_dtype"] = "packed" if packed else element_of(zeros, "zeros")
    declared = groups.declared(shape, params)
    if isinstance(declared, str):
        raise UnreadableError(declared)
    components = {"data": data, "scale": scales, "offset": zeros or {}}
    parts = {role: part(components[role], *stored) for role, stored in declared.items()}
    return "f32", Encoding(codec=CodecSpec("affine", params), parts=parts)


def _mx(shape: Shape, components: Components, attributes: dict[str, Any]) -> tuple[str, Encoding]:
    """Read v2 `zt.mx/1` (wires 6.4): one power of two for each block along an axis."""
    data, scales = required(components, "data"), required(components, "scales")
    axis = _index({"axis": len(shape) - 1, **attributes}, "axis", len(shape))
    block = _index(attributes, "block_size", 1 << 40)
    if not block or shape[axis] % block:
        raise UnreadableError(f"axis {axis} has {shape[axis]} elements, not a multiple of the block_size {block}")
    if attributes.get("scale_form") != "e8m0_exponent" or element_of(scales, "scales") != "f8_e8m0":
        raise UnreadableError("the scale_form must be e8m0_exponent with scales of dtype f8_e8m0")
    kind = element_of(data, "data")
    if kind not in ("f4_e2m1", "f8_e4m3", "f8_e5m2", "i8"):
        raise UnreadableError(f"elements of dtype {kind} cannot have block scales")
    if kind == "f4_e2m1" and shape[-1] % 2:
        raise UnreadableError("unsupported rows with an odd number of f4_e2m1 elements")
    params = {"block_size": block, "axis": axis, "dtype": kind}
    stored = ("u8", (*shape[:-1], shape[-1] // 2)) if kind == "f4_e2m1" else (kind, shape)
    grid = (*shape[:axis], shape[axis] // block, *shape[axis + 1 :])
    parts = {"data": part(data, *stored), "scales": part(scales, "f8_e8m0", grid)}
    return "f32", Encoding(codec=CodecSpec("zt.mx", params), parts=parts)


def _map(attributes: dict[str, Any], key: str) -> dict[str, Any]:
    value = attributes.get(key)
    if type(value) is not dict:
        raise UnreadableError(f"the attribute {key!r} must be a map")
    return value


def _index(attributes: dict[str, Any], key: str, limit: int) -> int:
    value = attributes.get(key)
    if type(value) is not int or not 0 <= value < limit:
        raise UnreadableError(f"the attribute {key!r} is {str(value)[:20]}, expected an integer from 0 to {limit - 1}")
    return value


READINGS: dict[str, Reading] = {
    "sparse_csr": partial(_csr, ordered=False),
    "sparse_coo": partial(_coo, ordered=False),
    "zt.sparse_csr/1": partial(_csr, ordered=True),
    "zt.sparse_coo/1": partial(_coo, ordered=True),
    "quantized_group": _quantized_group,
    "zt.quant_group/1": _quant_group,
    "zt.mx/1": _mx,
}
