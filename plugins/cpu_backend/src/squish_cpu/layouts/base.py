"""Memory layouts of each codec's parts for the compiled kernels, from declarations alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import frozen

from squish_core.api import BLOCK_TYPES, CodecError, CodecSpec, TensorSpec, dtypes

Array = np.ndarray
Arrays = Mapping[str, Array]
Fields = dict[str, Any]

DENSE = {"f32": 0, "f16": 1, "bf16": 2}
GGML_FIRST, AFFINE_FIRST, TABLE_FIRST, F8Q8, HQQ, TRIPLE, BITMASK, PANELS = 3, 19, 27, 35, 36, 37, 38, 39
BYTE_PANELS, SIX_PANELS = 40, 41
GGML = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k", "iq4_nl", "iq4_xs",
    "mxfp4", "nvfp4",
)  # fmt: skip
"""Block types in the order of native/weights.h."""
# Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K, affine codes of 2 3 4 5 6 8 bits, and panels
INT8_KINDS = (3, 4, 5, 6, 7, 11, 12, 13, 20, 21, 22, 23, 24, 26, PANELS)
TYPES = {"f32": 0, "f16": 1, "bf16": 2, "u8": 3, "i8": 4}
LISTED = 5
CACHE_LINE = 64
BYTE_FLOATS = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0")


class UncoveredError(CodecError):
    """No compiled kernel supports this encoding; NumPy does."""


@frozen(kw_only=True)
class Layout:
    """A tensor as a matrix of `rows` x `columns`; `fields` are scalars of `struct Weights`, `pointers` its arrays.

    A pointer is a function of the stored parts; the memory it allocates totals `resident` bytes. Column ranges are
    decoded from multiples of `grain`.
    """

    rows: int
    columns: int
    fields: Fields
    pointers: Mapping[str, Callable[[Arrays], Array]]
    grain: int = 16
    resident: int = 0

    @property
    def in_panels(self) -> bool:
        """Whether the stored layout is the panel layout of a repack."""
        return bool(self.fields["kind"] == PANELS)

    @property
    def in_units(self) -> bool:
        """Whether codes are along rows, groups are multiples of 32 columns, and rows have whole groups.

        Mirrors `in_units` of native/units.h.
        """
        group, strided = self.fields.get("group_columns", 32), self.fields.get("strided")
        complete = not self.columns % 32 and not group % 32 and not self.columns % group
        return complete and not strided and "mask" not in self.pointers

    def check_int8(self) -> None:
        """Raise UncoveredError unless a kernel supports int8 activations for these codes."""
        if self.fields["kind"] not in INT8_KINDS or not self.in_units:
            raise UncoveredError("int8 activations are not supported for this codec and shape", code="activations")


def part(role: str) -> Callable[[Arrays], Array]:
    """Return the pointer function of a stored part."""
    return lambda arrays: arrays[role]


def aligned(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an uninitialized array aligned to a cache line, as non-temporal stores require."""
    size = dtypes.nbytes(dtype, shape)
    room = np.empty(size + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + size].view(dtypes.to_numpy(dtype)).reshape(shape)


def rows_of(spec: TensorSpec) -> tuple[int, int]:
    """Return the rows and columns of a tensor as a matrix."""
    return dtypes.count(spec.shape[:-1]), spec.shape[-1]


def _divides(step: int, columns: int, what: str) -> None:
    if columns % step:
        raise UncoveredError(f"{what} of {step} span rows", code="shape")


def _dense(codec: CodecSpec, spec: TensorSpec) -> Layout:
    dtype = str(codec.params.get("dtype", spec.dtype))
    if dtype not in DENSE:
        raise UncoveredError(f"no compiled kernel for dense {dtype}", code="dtype")
    rows, columns = rows_of(spec)
    fields = {"kind": DENSE[dtype], "pitch": columns * dtypes.bits(dtype) // 8}
    return Layout(rows=rows, columns=columns, fields=fields, pointers={"data": part("data")})


def _ggml(codec: CodecSpec, spec: TensorSpec) -> Layout:
    name = codec.id.partition(".")[2]
    if name not in GGML:
        raise UncoveredError(f"no compiled kernel for {codec.id}", code="codec")
    elements, nbytes = BLOCK_TYPES[name].elements, BLOCK_TYPES[name].nbytes
    rows, columns = rows_of(spec)
    _divides(elements, columns, "blocks")
    fields = {"kind": GGML_FIRST + GGML.index(name), "pitch": columns // elements * nbytes}
    return Layout(rows=rows, columns=columns, fields=fields, pointers={"data": part("data")}, grain=elements)


def scale_type(dtype: str) -> tuple[int, dict[str, Callable[[Arrays], Array]]]:
    """Return the type of scales and its additional pointers: 8-bit floats use a table of 256 values."""
    if dtype in BYTE_FLOATS:
        return LISTED, {"listed": lambda arrays: byte_floats(dtype)}
    return TYPES[dtype], {}


def byte_floats(dtype: str) -> Array:
    """Return the values of all 256 codes of an 8-bit float type."""
    return np.arange(256, dtype=np.uint8).view(dtypes.to_numpy(dtype)).astype(np.float32)


def widened(role: str) -> Callable[[Arrays], Array]:
    """Return a part as f32."""
    return lambda arrays: np.asarray(arrays[role], np.float32)


def table_kind(bits: int) -> int:
    """Return the kind of table indices."""
    return TABLE_FIRST + bits - 1


def padded(table: Array) -> Array:
    """Repeat a table to at least 16 values."""
    return np.resize(table.astype(np.float32), max(16, len(table)))


def _mx(codec: CodecSpec, spec: TensorSpec) -> Layout:
    element, factor = codec.params.get("element", "f4_e2m1"), codec.params.get("global_scale", "none")
    block, dtype = codec.params.get("block_size", 32), codec.params.get("scale_dtype", "f8_e8m0")
    rows, columns = rows_of(spec)
    _divides(block, columns, "blocks")
    bits = dtypes.bits(element)
    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([half, -half]) if bits == 4 else byte_floats(element)

    def scales(arrays: Arrays) -> Array:
        with np.errstate(all="ignore"):
            if factor == "none":
                return byte_floats(dtype)
            global_scale = np.float32(arrays["global_scale"])
            return byte_floats(dtype) * global_scale if factor == "multiply" else byte_floats(dtype) / global_scale

    fields = {
        "kind": table_kind(bits), "pitch": columns * bits // 8, "scale_type": LISTED, "group_rows": 1,
        "group_columns": block, "grid_row": columns // block, "grid_column": 1,
    }  # fmt: skip
    pointers = {"data": part("data"), "scale": part("scale"), "table": lambda arrays: table, "listed": scales}
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers)


def _float8(codec: CodecSpec, spec: TensorSpec) -> Layout:
    rows, columns = rows_of(spec)
    table, block = byte_floats(codec.params.get("element", "f8_e4m3")), codec.params.get("block")
    fields = {"kind": table_kind(8), "pitch": columns, "group_rows": 1, "group_columns": columns}
    pointers: dict[str, Callable[[Arrays], Array]] = {"data": part("data"), "table": lambda arrays: table}
    if block is None:

        def scaled(arrays: Arrays) -> Array:
            with np.errstate(all="ignore"):
                return table * arrays["scale"].astype(np.float32)

        return Layout(rows=rows, columns=columns, fields=fields, pointers={**pointers, "table": scaled})
    if len(spec.shape) != 2:
        raise UncoveredError("blocks of stacked matrices", code="shape")
    kind, more = scale_type(codec.params.get("scale_dtype", "f32"))
    down, across = (step or size for step, size in zip(block, spec.shape))
    fields |= {
        "scale_type": kind, "group_rows": down, "group_columns": across, "grid_row": -(-columns // across),
        "grid_column": 1,
    }  # fmt: skip
    return Layout(rows=rows, columns=columns, fields=fields, pointers={**pointers, "scale": part("scale"), **more})


def _f8q8(codec: CodecSpec, spec: TensorSpec) -> Layout:
    rows, columns = rows_of(spec)
    _divides(32, columns, "blocks")
    pointers = {"data": part("data"), "listed": lambda arrays: byte_floats("f8_e4m3") / np.float32(416)}
    fields = {"kind": F8Q8, "pitch": columns // 32 * 33}
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, grain=32)


def _hqq(codec: CodecSpec, spec: TensorSpec) -> Layout:
    bits, size, axis = (codec.params[name] for name in ("bits", "group_size", "axis"))
    codes = 10 if bits == 3 else 8 // bits
    lines, line = (size, spec.elements // size) if axis == 0 else (spec.elements // size, size)
    rows, columns = rows_of(spec)
    fields = {
        "kind": HQQ, "line": -(-lines // codes), "size": line, "bits": bits, "word": 4 if bits == 3 else 1,
        "shift": 27 if bits == 3 else 8 - bits, "grid_row": axis, "grid_column": 1 - axis,
    }  # fmt: skip
    pointers = {"data": part("data"), "scale": widened("scale"), "offset": widened("zero")}
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers)


def _panels(codec: CodecSpec, spec: TensorSpec) -> Layout:
    from squish_codecs.api import panel_scheme

    scheme = panel_scheme(codec.params)
    scheme.parts(spec.shape)  # raises if groups do not divide rows
    rows, columns = rows_of(spec)
    fields = {
        "kind": PANELS, "group_rows": 1, "group_columns": scheme.group_size, "scale_type": TYPES[scheme.scale_dtype],
        "zero": scheme.zero + 8 * scheme.signed,
    }  # fmt: skip
    pointers = {"data": part("data"), "scale": part("scale")}
    if scheme.offset != "none":
        fields["offset_type"], pointers["offset"] = TYPES[scheme.offset_dtype], part("offset")
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, grain=32)


LAYOUTS: dict[str, Callable[[CodecSpec, TensorSpec], Layout]] = {
    "dense": _dense, "ggml": _ggml, "mx": _mx, "float8": _float8, "uqff.f8q8": _f8q8, "hqq": _hqq, "panels": _panels,
}  # fmt: skip
"""Codec, or first part of its id -> layout of a tensor."""
