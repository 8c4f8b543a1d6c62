"""The codec of quantized ONNX tensors: one scale per tensor, per index of an axis, or per block of an axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from attrs import evolve, fields, frozen
from squish_codecs.api import Packing

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Params,
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
"""`offset_dtype` of zero points with the width of the codes, in rows padded to whole bytes (MatMulNBits)."""
FLOAT4 = np.array([sign * value for sign in (1, -1) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32)
"""Value of each code of f4_e2m1."""


class Blocks(Codec):
    """Codes `q` with `value = (q - zero - offset) * scale` in float32. Decodes only. Parameters:

    dtype         required   u2 i2 u4 i4 u8 i8 u16 i16 i32, float8, f4_e2m1; sub-byte codes are packed, lsb first
    axis          none       axis with several scales; none: one scale for the tensor
    block_size    0          indices of the axis per scale (the last block may be shorter); 0: one index per scale
    scale_dtype   f32        f32 f16 bf16
    zero          0          constant zero point
    offset_dtype  none       dtype of zero points, packed like the codes; rows: unsigned, rows padded to bytes
    columns       all        stored codes per row, if rows are padded
    ordered       false      whether a part `g_idx` (i32) states the block of each column

    Sources: onnx, DequantizeLinear; onnxruntime, MatMulNBits.
    """

    def bind(self) -> None:
        self.form = _Form.of(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        return self.form.for_shape(spec.shape).parts()

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        form = self.form.for_shape(spec.shape)
        first = max(form.block_size, 1) if form.axis == 0 else 1
        return (first, *(None,) * (len(spec.shape) - 1)) if spec.shape else ()

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        form = self.form.for_shape(spec.shape)
        if not out.size:
            return
        rows = region[0] if region else slice(0, 1)
        codes, scale, offset = form.codes(parts, rows), form.broadcast(parts["scale"][...], parts, rows), None
        if form.offset_dtype:
            offset = form.broadcast(form.offsets(parts), parts, rows)
        with np.errstate(all="ignore"):
            if form.dtype == "i32":  # only integers keep the difference exact
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
        self.form.for_shape(spec.shape).block_of_columns(parts)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        form = self.form.for_shape(spec.shape)
        if form.dtype not in INTEGERS or dtypes.bits(form.dtype) > 8 or not spec.shape:
            return None
        bits = dtypes.bits(form.dtype)
        offset_dtype = f"u{bits}" if form.offset_dtype == ROWS else form.offset_dtype
        return CodeLayout(
            bits=bits,
            signed=form.dtype[0] == "i",
            group=form.group,
            scale_dtype=form.scale_dtype,
            zero=form.zero,
            offset_kind="zero_point" if offset_dtype else "none",
            offset_dtype=offset_dtype or None,
        )

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        form, layout = self.form.for_shape(spec.shape), self.code_layout(spec)
        if layout is None or not spec.elements or form.block_of_columns(parts) is not None:
            return None
        sizes = tuple(part.stop - part.start for part in region)
        return Codes(
            layout=layout,
            shape=sizes,
            scale=form.cells(parts["scale"][...], region[0]),
            offset=form.cells(form.offsets(parts), region[0]) if form.offset_dtype else None,
            unpack=lambda: form.codes(parts, region[0]).reshape(sizes),
        )


@frozen(kw_only=True)
class _Form:
    """The parameters of `Blocks`; `for_shape` adds the shape of a tensor."""

    dtype: str = ""
    axis: int | None = None
    block_size: int = 0
    scale_dtype: str = "f32"
    zero: int = 0
    offset_dtype: str = ""
    columns: int = 0
    ordered: bool = False
    shape: Shape = ()

    @classmethod
    def of(cls, params: Params) -> _Form:
        """Parse parameters; raise CodecError for one that is invalid for every shape."""
        names = {field.name for field in fields(cls)} - {"shape"}
        if not params.keys() <= names:
            raise _params_error("parameters", ", ".join(sorted(names)), sorted(params.keys() - names)[0])
        form = cls(**params)
        form._check(
            (
                (form.dtype in (*INTEGERS, *FLOATS), "dtype", "a dtype of codes"),
                (form.axis is None or (type(form.axis) is int and form.axis >= 0), "axis", "none, or 0 or more"),
                (type(form.block_size) is int and 0 <= form.block_size < 1 << 40, "block_size", "0 or more"),
                (not form.block_size or form.axis is not None, "axis", "an axis of blocks"),
                (form.scale_dtype in SCALES, "scale_dtype", " or ".join(SCALES)),
                (type(form.zero) is int and abs(form.zero) < 1 << 16, "zero", "a small integer"),
                (form.offset_dtype in ("", ROWS, *INTEGERS, *FLOATS, *SCALES), "offset_dtype", "a dtype or rows"),
                (form.offset_dtype != ROWS or str(form.dtype)[:1] == "u", "offset_dtype", "unsigned codes"),
                (type(form.columns) is int and 0 <= form.columns < 1 << 40, "columns", "0 or more"),
            )
        )
        return form

    def for_shape(self, shape: Shape) -> _Form:
        """Return the parameters with a shape; raise CodecError if they do not fit it."""
        rank, last = len(shape), shape[-1] if shape else 0
        by_columns = rank == 2 and self.axis == 1 and self.block_size > 0
        self._check(
            (
                (self.axis is None or self.axis < rank, "axis", f"none or below {rank}"),
                (self.offset_dtype != ROWS or by_columns, "offset_dtype", "rows of a matrix"),
                (not self.columns or (by_columns and last <= self.columns), "columns", f"{last} or more"),
                (not self.ordered or by_columns, "ordered", "false without blocks of columns"),
            )
        )
        return evolve(self, shape=shape)

    def _check(self, rules: Iterable[tuple[bool, str, str]]) -> None:
        for is_valid, name, expected in rules:
            if not is_valid:
                raise _params_error(name, expected, getattr(self, name))

    @property
    def stored_shape(self) -> Shape:
        """Shape of the stored codes, padding included."""
        return (*self.shape[:-1], self.columns) if self.columns else self.shape

    @property
    def scale_shape(self) -> Shape:
        """Shape of the scales."""
        if self.axis is None:
            return ()
        if not self.block_size:
            return self.shape[self.axis : self.axis + 1]
        return tuple(
            -(-size // self.block_size) if axis == self.axis else size for axis, size in enumerate(self.stored_shape)
        )

    @property
    def group(self) -> Shape:
        """Elements per scale along each axis; 0: the whole axis."""
        if self.axis is None:
            return (0,) * len(self.shape)
        if not self.block_size:
            return tuple(int(axis == self.axis) for axis in range(len(self.shape)))
        return tuple(self.block_size if axis == self.axis else 1 for axis in range(len(self.shape)))

    def parts(self) -> dict[str, tuple[str, Shape]]:
        """Return the dtype and shape of each part."""
        parts = {"data": _packed_part(self.dtype, self.stored_shape), "scale": (self.scale_dtype, self.scale_shape)}
        if self.offset_dtype == ROWS:
            rows, blocks = self.scale_shape
            parts["offset"] = ("u8", (rows, -(-blocks * dtypes.bits(self.dtype) // 8)))
        elif self.offset_dtype:
            parts["offset"] = _packed_part(self.offset_dtype, self.scale_shape)
        if self.ordered:
            parts["g_idx"] = ("i32", self.shape[-1:])
        return parts

    def codes(self, parts: Parts, rows: slice) -> Array:
        """Unpack the codes of rows, without padding."""
        inner = dtypes.count(self.stored_shape[1:])
        if dtypes.bits(self.dtype) >= 8:
            codes = parts["data"][rows] if self.shape else parts["data"][...]
            codes = codes.astype(np.float32) if self.dtype in FLOATS else codes
            return codes[..., : self.shape[-1]] if self.columns else codes
        low, high = rows.start * inner, rows.stop * inner
        codes = _unpack(self.dtype, parts["data"], low, high).reshape(rows.stop - rows.start, *self.stored_shape[1:])
        return codes[..., : self.shape[-1]]

    def offsets(self, parts: Parts) -> Array:
        """Unpack the zero points, in the shape of the scales."""
        stored = parts["offset"]
        if self.offset_dtype == ROWS:
            bits = dtypes.bits(self.dtype)
            return Packing(bits, "u8", "lsb").unpack(stored[...], self.scale_shape[1])
        if dtypes.bits(self.offset_dtype) < 8:
            count = dtypes.count(self.scale_shape)
            return _unpack(self.offset_dtype, stored, 0, count).reshape(self.scale_shape)
        return stored[...]

    def cells(self, grid: Array, rows: slice) -> Array:
        """Return the scales or zero points of rows, with as many axes as the tensor."""
        if self.axis is None:
            return grid.reshape((1,) * len(self.shape))
        if self.block_size:
            if self.axis:
                return grid[rows]
            return grid[rows.start // self.block_size : -(-rows.stop // self.block_size)]
        values = grid[rows] if self.axis == 0 else grid
        return values.reshape([-1 if axis == self.axis else 1 for axis in range(len(self.shape))])

    def broadcast(self, grid: Array, parts: Parts, rows: slice) -> Array:
        """Return the scales or zero points of rows, repeated to broadcast over the values."""
        cells = self.cells(grid, rows)
        if not self.block_size or self.axis is None:
            return cells
        size = rows.stop - rows.start if self.axis == 0 else self.shape[self.axis]
        order = self.block_of_columns(parts)
        if order is None:
            order = np.arange(size) // self.block_size
        return cells.take(order, axis=self.axis)

    def block_of_columns(self, parts: Parts) -> Array | None:
        """Return the block of each column, or None if columns are in order; raise CodecError for an invalid block."""
        if not self.ordered:
            return None
        order, blocks = parts["g_idx"][...], self.scale_shape[-1]
        if order.size and not 0 <= int(order.min()) <= int(order.max()) < blocks:
            raise CodecError(
                "a column has an invalid block",
                part="g_idx",
                expected=f"0 to {blocks - 1}",
                found=f"{order.min()} to {order.max()}",
                code="g_idx",
            )
        return None if (order == np.arange(order.size) // self.block_size).all() else order


def _params_error(name: str, expected: str, found: Any) -> CodecError:
    return CodecError(f"invalid {name} of {ID}", expected=expected, found=repr(found)[:80], code=ErrorCode.PARAMS)


def _packed_part(dtype: str, shape: Shape) -> tuple[str, Shape]:
    """Return the dtype and shape of a part; sub-byte numbers are packed in one row of bytes."""
    return ("u8", (dtypes.nbytes(dtype, shape),)) if dtypes.bits(dtype) < 8 else (dtype, shape)


def _unpack(dtype: str, stream: Any, low: int, high: int) -> Array:
    """Unpack the sub-byte numbers `low` to `high` of a row of bytes."""
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
