"""Layouts of group-affine codes: packed along rows or columns, in any order within a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from attrs import evolve
from squish_codecs.api import Scheme, Tables, unpack_codes

from squish_core.api import CodecError, ErrorCode, TensorSpec, dtypes

from .base import (
    AFFINE_FIRST,
    TYPES,
    Array,
    Arrays,
    Fields,
    Layout,
    UncoveredError,
    padded,
    part,
    scale_type,
    table_kind,
)

Pointer = Callable[[Arrays], Array]


def affine_layout(params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """Return the layout of affine codes; UncoveredError if rows share a byte or a stack is transposed."""
    scheme = Scheme.of(params)
    if scheme.order == "planes":
        raise UncoveredError("bit planes", code="order")
    layouts = scheme.parts(spec.shape)
    rows, columns = dtypes.count(spec.shape[:-1]), spec.shape[-1]
    across = scheme.transposed or -2 in (scheme.group_axis, scheme.pack_axis)
    if across and len(spec.shape) != 2:
        raise UncoveredError("groups or words across the rows of stacked matrices", code="shape")
    fields = _codes(scheme)
    if scheme.flat:
        fields |= _flat_groups(scheme, rows, columns)
        fields |= _flat_words(scheme, rows, columns)
    else:
        fields |= _groups(scheme, spec.shape, layouts["scale"][1])
        fields |= _words(scheme, layouts["data"][1])
    pointers: dict[str, Pointer] = {"data": part("data")}
    fields["scale_type"], more = scale_type(scheme.scale_dtype)
    pointers |= {"scale": part("scale"), **more}
    resident = 0
    if scheme.offset != "none":
        fields["offset_type"], pointers["offset"], resident = _offsets(scheme, layouts["scale"][1])
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, resident=resident)


def palette_layout(params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """Return the layout of indices into one table, constant or stored, with optional scales per group."""
    tables = Tables.of(params)
    if tables.codebook_size or tables.vector != 1 or tables.scheme.offset != "none":
        raise UncoveredError("several tables, vectors or offsets", code=ErrorCode.PARAMS)
    scaled = {**tables.scheme.params(), "signed": False}
    inner = affine_layout(scaled, spec)
    constant = None if tables.table is None else padded(tables.constant)
    pointers = {
        **inner.pointers,
        "table": lambda arrays: padded(arrays["codebook"].reshape(-1)) if constant is None else constant,
    }
    fields, resident = {**inner.fields, "kind": table_kind(tables.scheme.bits)}, inner.resident
    if not tables.scaled:
        del pointers["scale"]
    if tables.nested:
        (groups,) = tables.scheme.parts(spec.shape)["scale"][1]
        pointers["scale"] = lambda arrays: tables.scales(arrays, spec.shape)[0:groups,]
        fields["scale_type"], resident = TYPES["f32"], resident + 4 * groups
    return evolve(inner, fields=fields, pointers=pointers, resident=resident)


def squizd_layout(bits: int, params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """Return the layout of SQUIZD INT4 and INT2: flat codes; columns 2 and 3 of the table are scales and biases."""
    shared = {"bits": bits, "axis": "flat", "offset": "bias", "signed": bits == 4}
    inner = affine_layout({**shared, "group_size": params.get("group_size", 0)}, spec)
    wide = {stride: 4 * inner.fields[stride] for stride in ("grid_row", "grid_column")}
    pointers: dict[str, Pointer] = {
        "data": part("codes"),
        "scale": lambda arrays: _column(arrays["table"], 2),
        "offset": lambda arrays: _column(arrays["table"], 3),
    }
    return evolve(inner, fields={**inner.fields, **wide}, pointers=pointers)


def _column(table: Array, column: int) -> Array:
    """Return a view from the first entry's column; kernels use a stride of four."""
    if (table[:, :2] != table[:1, :2]).any():
        raise CodecError("entries of another tensor between its scales [P3]", part="table", code="P3")
    flat = table.reshape(-1).view("<f4")
    if not np.isfinite(flat[column::4]).all():
        raise CodecError("non-finite scale or zero point [P3]", part="table", code="P3")
    return flat[column:]


def _codes(scheme: Scheme) -> Fields:
    half = 1 << scheme.bits - 1 if scheme.signed else 0
    return {
        "kind": AFFINE_FIRST + scheme.bits - 1,
        "flip": half,
        "zero": scheme.zero + half,
        "bias": scheme.offset == "bias",
        "word": scheme.packing.width // 8,
    }


def _flat_groups(scheme: Scheme, rows: int, columns: int) -> Fields:
    group = min(scheme.group_size or rows * columns, rows * columns)
    if rows == 1 or columns % group == 0:
        cells = -(-columns // group)
        return {"group_rows": 1, "group_columns": group, "grid_row": cells, "grid_column": 1}
    if group % columns == 0:
        return {"group_rows": group // columns, "group_columns": columns, "grid_row": 1, "grid_column": 0}
    raise UncoveredError(f"groups of {group} span rows of {columns}", code="shape")


def _flat_words(scheme: Scheme, rows: int, columns: int) -> Fields:
    packing = scheme.packing
    if packing.order == "lsb":
        if rows > 1 and columns * scheme.bits % 8:
            raise UncoveredError(f"rows of {columns} codes of {scheme.bits} bits share bytes", code="shape")
        return {"pitch": columns * scheme.bits // 8}
    if rows > 1 and columns % packing.unit:
        raise UncoveredError(f"rows of {columns} codes share words of {packing.unit}", code="shape")
    width = packing.width // 8
    return {"line": columns // packing.unit * width, "step": width, **_order(scheme)}


def _groups(scheme: Scheme, shape: tuple[int, ...], grid: tuple[int, ...]) -> Fields:
    """Return the strides of the scales per row and column of the tensor."""
    along_columns = (scheme.group_axis == -1) != scheme.transposed
    size = scheme.group_size or shape[-1 if along_columns else -2]
    fields = {"grid_row": grid[-1], "grid_column": 1}
    if scheme.transposed:
        fields = {"grid_row": 1, "grid_column": grid[-1]}
    group = {"group_rows": 1, "group_columns": size} if along_columns else {"group_rows": size, "group_columns": 1}
    return {**fields, **group}


def _words(scheme: Scheme, words: tuple[int, ...]) -> Fields:
    width = scheme.packing.width // 8
    if scheme.packing.order == "lsb" and scheme.pack_axis == -1 and not scheme.transposed:
        return {"pitch": words[-1] * width}
    along, across = width, words[-1] * width
    line, step = (across, along) if scheme.pack_axis == -1 else (along, across)
    down = (scheme.pack_axis == -1) == scheme.transposed
    return {"line": line, "step": step, "down": down, **_order(scheme)}


def _order(scheme: Scheme) -> Fields:
    packing = scheme.packing
    if packing.order == "lsb":
        return {"strided": 1}
    unit = packing.unit
    order = {"msb": range(unit - 1, -1, -1), "padded": range(unit)}.get(str(packing.order), packing.order)
    return {"strided": 1, "ordered": 1, "order": tuple(int(slot) for slot in np.argsort(order))}


def _offsets(scheme: Scheme, grid: tuple[int, ...]) -> tuple[int, Pointer, int]:
    """Return the type, pointer and additional bytes of zero points or biases."""
    dtype, count = scheme.offset_dtype, dtypes.count(grid)
    if scheme.packed_zeros:
        kind = TYPES["i8" if scheme.signed else "u8"]
        return kind, lambda arrays: unpack_codes(scheme, arrays["offset"], grid, scheme.zero_axis), count
    if dtype in TYPES:
        return TYPES[dtype], part("offset"), 0
    return TYPES["f32"], lambda arrays: arrays["offset"].astype(np.float32), 4 * count


LAYOUTS: dict[str, Callable[[Mapping[str, Any], TensorSpec], Layout]] = {
    "affine": affine_layout, "palette": palette_layout,
    "squizd.int4": partial(squizd_layout, 4), "squizd.int2": partial(squizd_layout, 2),
    "npydir.int3": lambda params, spec: affine_layout({**params, "bits": 8, "offset": "bias"}, spec),
}  # fmt: skip
