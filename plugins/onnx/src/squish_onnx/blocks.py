"""The codec of codes as ONNX operators have them: one scale, or one per index or block of an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen
from squish_codecs.api import Packing

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Exactness,
    Parts,
    Region,
    TensorSpec,
    dtypes,
)

ID = "onnx.blocks"
Array = np.ndarray
Shape = tuple[int, ...]
INTEGERS = ("u2", "i2", "u4", "i4", "u8", "i8", "u16", "i16", "i32")
FLOATS = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f4_e2m1")
SCALES = ("f32", "f16", "bf16")
ROWS = "rows"
"""`offset_dtype` of zero points as wide as the codes, packed in rows that are padded to bytes (MatMulNBits)."""
FLOAT4 = np.array([sign * value for sign in (1, -1) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32)
"""Value of each code of f4_e2m1."""


class Blocks(Codec):
    """Codes `q` with `value = (q - zero - offset) * scale` in float32. Decodes only. Parameters:

    dtype         required   u2 i2 u4 i4 u8 i8 u16 i16 i32, float8, f4_e2m1; narrow ones are packed, lowest bits first
    axis          none       axis with several scales; none: one scale
    block_size    0          indices of the axis per scale, the last block may be shorter; 0: one
    scale_dtype   f32        f32 f16 bf16
    zero          0          constant zero point
    offset_dtype  none       dtype of zero points, packed like the codes; rows: unsigned, rows padded to bytes
    columns       all        codes that are stored of each row, if more than the tensor has
    ordered       false      part `g_idx`, i32: number of the block of each column

    Sources: onnx, DequantizeLinear; onnxruntime, MatMulNBits.
    """

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        return _Form.of(self.params, spec.shape).parts()

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        form = _Form.of(self.params, spec.shape)
        first = max(form.block, 1) if form.axis == 0 else 1
        return (first, *(None,) * (len(spec.shape) - 1)) if spec.shape else ()

    @property
    def error_bound(self) -> Exactness:
        return Exactness("bounded")

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        form = _Form.of(self.params, spec.shape)
        if not out.size:
            return
        rows = region[0] if region else slice(0, 1)
        codes, scale, offset = form.codes(parts, rows), form.spread(parts["scale"][...], parts, rows), None
        if form.offset_dtype:
            offset = form.spread(form.offsets(parts), parts, rows)
        with np.errstate(all="ignore"):
            if form.dtype == "i32":  # the difference is exact in integers only
                codes = codes.astype(np.int64) - (0 if offset is None else offset.astype(np.int64)) - form.zero
                out[...] = codes.reshape(out.shape)
            else:
                out[...] = codes.reshape(out.shape)
                if form.zero:
                    out -= np.float32(form.zero)
                if offset is not None:
                    out -= offset.astype(np.float32)
            out *= scale.astype(np.float32)

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        _Form.of(self.params, spec.shape).order(parts)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        form = _Form.of(self.params, spec.shape)
        if form.dtype not in INTEGERS or dtypes.bits(form.dtype) > 8 or not spec.shape:
            return None
        bits = dtypes.bits(form.dtype)
        own = f"u{bits}" if form.offset_dtype == ROWS else form.offset_dtype
        return CodeLayout(
            bits=bits, signed=form.dtype[0] == "i", group=form.group, scale_dtype=form.scale_dtype, zero=form.zero,
            offset_kind="zero_point" if own else "none", offset_dtype=own or None,
        )  # fmt: skip

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        form, layout = _Form.of(self.params, spec.shape), self.code_layout(spec)
        if layout is None or not spec.elements or form.order(parts) is not None:
            return None
        sizes = tuple(part.stop - part.start for part in region)
        return Codes(
            layout=layout, shape=sizes, scale=form.cells(parts["scale"][...], region[0]),
            offset=form.cells(form.offsets(parts), region[0]) if form.offset_dtype else None,
            unpack=lambda: form.codes(parts, region[0]).reshape(sizes),
        )  # fmt: skip


@frozen(kw_only=True)
class _Form:
    """The parameters of `Blocks` for one tensor."""

    shape: Shape
    dtype: str
    axis: int | None
    block: int
    scale_dtype: str
    zero: int
    offset_dtype: str
    columns: int
    ordered: bool

    @classmethod
    def of(cls, params: Mapping[str, Any], shape: Shape) -> _Form:
        """Check parameters; CodecError if they are invalid, or do not fit the shape."""
        form = cls(
            shape=shape, dtype=params.get("dtype", ""), axis=params.get("axis"), block=params.get("block_size", 0),
            scale_dtype=params.get("scale_dtype", "f32"), zero=params.get("zero", 0),
            offset_dtype=params.get("offset_dtype", ""), columns=params.get("columns", 0),
            ordered=params.get("ordered", False),
        )  # fmt: skip
        form._check(params)
        return form

    def _check(self, params: Mapping[str, Any]) -> None:
        rank, last = len(self.shape), self.shape[-1] if self.shape else 0
        by_columns = rank == 2 and self.axis == 1 and self.block > 0
        rules = (
            (self.dtype in (*INTEGERS, *FLOATS), "dtype", "a dtype of codes"),
            (self.axis is None or (type(self.axis) is int and 0 <= self.axis < rank), "axis", f"none or below {rank}"),
            (type(self.block) is int and 0 <= self.block < 1 << 40, "block_size", "0 or more"),
            (not self.block or self.axis is not None, "axis", "an axis of blocks"),
            (self.scale_dtype in SCALES, "scale_dtype", " or ".join(SCALES)),
            (type(self.zero) is int and abs(self.zero) < 1 << 16, "zero", "a small integer"),
            (self.offset_dtype in ("", ROWS, *INTEGERS, *FLOATS, *SCALES), "offset_dtype", "a dtype of zero points"),
            (self.offset_dtype != ROWS or (by_columns and self.dtype[0] == "u"), "offset_dtype", "rows of a matrix"),
            (not self.columns or (by_columns and last <= self.columns < 1 << 40), "columns", f"{last} or more"),
            (not self.ordered or by_columns, "ordered", "false without blocks of columns"),
            (params.keys() <= _NAMES, "parameters", ", ".join(sorted(_NAMES))),
        )
        for holds, name, expected in rules:
            if not holds:
                raise CodecError(
                    f"invalid {name} of {ID}", expected=expected, found=repr(params.get(name))[:80],
                    code=ErrorCode.PARAMS,
                )  # fmt: skip

    @property
    def stored(self) -> Shape:
        """Shape of the codes as stored."""
        return (*self.shape[:-1], self.columns) if self.columns else self.shape

    @property
    def grid(self) -> Shape:
        """Shape of the scales."""
        if self.axis is None:
            return ()
        if not self.block:
            return self.shape[self.axis : self.axis + 1]
        return tuple(-(-size // self.block) if axis == self.axis else size for axis, size in enumerate(self.stored))

    @property
    def group(self) -> Shape:
        """Elements per scale along each axis; 0: the whole axis."""
        if self.axis is None:
            return (0,) * len(self.shape)
        if not self.block:
            return tuple(int(axis == self.axis) for axis in range(len(self.shape)))
        return tuple(self.block if axis == self.axis else 1 for axis in range(len(self.shape)))

    def parts(self) -> dict[str, tuple[str, Shape]]:
        """Dtype and shape of each part."""
        parts = {"data": _stored_as(self.dtype, self.stored), "scale": (self.scale_dtype, self.grid)}
        if self.offset_dtype == ROWS:
            rows, blocks = self.grid
            parts["offset"] = ("u8", (rows, -(-blocks * dtypes.bits(self.dtype) // 8)))
        elif self.offset_dtype:
            parts["offset"] = _stored_as(self.offset_dtype, self.grid)
        if self.ordered:
            parts["g_idx"] = ("i32", self.shape[-1:])
        return parts

    def codes(self, parts: Parts, rows: slice) -> Array:
        """The codes of rows as numbers, without padding."""
        inner = dtypes.count(self.stored[1:])
        if dtypes.bits(self.dtype) >= 8:
            codes = parts["data"][rows] if self.shape else parts["data"][...]
            codes = codes.astype(np.float32) if self.dtype in FLOATS else codes
            return codes[..., : self.shape[-1]] if self.columns else codes
        low, high = rows.start * inner, rows.stop * inner
        codes = _numbers(self.dtype, parts["data"], low, high).reshape(rows.stop - rows.start, *self.stored[1:])
        return codes[..., : self.shape[-1]]

    def offsets(self, parts: Parts) -> Array:
        """The zero points as numbers in the shape of the scales."""
        stored = parts["offset"]
        if self.offset_dtype == ROWS:
            bits = dtypes.bits(self.dtype)
            return Packing(bits, "u8", "lsb").unpack(stored[...], self.grid[1])
        if dtypes.bits(self.offset_dtype) < 8:
            count = dtypes.count(self.grid)
            return _numbers(self.offset_dtype, stored, 0, count).reshape(self.grid)
        return stored[...]

    def cells(self, grid: Array, rows: slice) -> Array:
        """Scales or zero points of rows, with all axes of the tensor."""
        if self.axis is None:
            return grid.reshape((1,) * len(self.shape))
        if self.block:
            if self.axis:
                return grid[rows]
            return grid[rows.start // self.block : -(-rows.stop // self.block)]
        values = grid[rows] if self.axis == 0 else grid
        return values.reshape([-1 if axis == self.axis else 1 for axis in range(len(self.shape))])

    def spread(self, grid: Array, parts: Parts, rows: slice) -> Array:
        """Scales or zero points that broadcast over the values of rows."""
        cells = self.cells(grid, rows)
        if not self.block or self.axis is None:
            return cells
        size = rows.stop - rows.start if self.axis == 0 else self.shape[self.axis]
        order = self.order(parts)
        if order is None:
            order = np.arange(size) // self.block
        return cells.take(order, axis=self.axis)

    def order(self, parts: Parts) -> Array | None:
        """The block of each column if they are not in order; CodecError for an invalid one."""
        if not self.ordered:
            return None
        order, blocks = parts["g_idx"][...], self.grid[-1]
        if order.size and not 0 <= int(order.min()) <= int(order.max()) < blocks:
            raise CodecError(
                "invalid block of a column", part="g_idx", expected=f"0 to {blocks - 1}",
                found=f"{order.min()} to {order.max()}", code="g_idx",
            )  # fmt: skip
        return None if (order == np.arange(order.size) // self.block).all() else order


_NAMES = {"dtype", "axis", "block_size", "scale_dtype", "zero", "offset_dtype", "columns", "ordered"}


def _stored_as(dtype: str, shape: Shape) -> tuple[str, Shape]:
    """Dtype and shape of the part: narrow numbers are a stream of bytes."""
    return ("u8", (dtypes.nbytes(dtype, shape),)) if dtypes.bits(dtype) < 8 else (dtype, shape)


def _numbers(dtype: str, stream: Any, low: int, high: int) -> Array:
    """Narrow numbers `low` to `high` of a stream of bytes."""
    bits = dtypes.bits(dtype)
    first = low * bits // 8
    skipped = low - first * 8 // bits
    codes = Packing(bits, "u8", "lsb").unpack(stream[first : -(-high * bits // 8)], skipped + high - low)[skipped:]
    if dtype == "f4_e2m1":
        return FLOAT4[codes]
    if dtype[0] == "u":
        return codes
    half = np.uint8(1 << bits - 1)
    return ((codes ^ half) - half).view(np.int8)
