"""Boxes: small integers with scales, zero points and codebooks per box of elements, in any rank."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from attrs import evolve, frozen

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    Params,
    Parts,
    Region,
    TensorSpec,
    decode_all,
    dtypes,
)

from .affine.decode import PANEL
from .affine.scheme import Shape
from .bitmask import mask_bits
from .checks import choice, integer, refuse
from .packing.bits import Packing

Array = np.ndarray


class Boxes(Codec):
    """Codes `q` with `value = (q - offset) * scale` in float32, each operation rounded once; masked elements are zero.

    Parts: `data` u8, one row-major bit stream of codes, first in the lowest bits; `scale` and `offset` of shape `grid`;
    `codebook` [*books, 2**bits], indexed by the codes; `mask` u8, one bit per element, first lowest: `data` then only
    has codes for set bits. Parameters:

    bits            1..8      width of a code; required
    signed          false     two's complement; without a codebook
    grid            none      number of boxes with one scale along each axis, a divisor of its size. [8, 4] in a
                              tensor [32, 64]: boxes of 4 rows and 16 columns
    scale_dtype     none      f32 f16 bf16, with `grid`
    offset_dtype    none      u8 i8 f32 f16 bf16, with `grid`; packed: a bit stream of the width of a code
    books           none      number of boxes with one codebook along each axis
    codebook_dtype  f32       f32 f16 bf16 i8 u8
    count           none      number of codes under a mask; none: no mask

    No encoder. `affine` has groups along one axis, `palette` codebooks for runs of rows. Source: Core ML
    constexpr_blockwise_shift_scale, constexpr_lut_to_dense, constexpr_sparse_blockwise_shift_scale,
    constexpr_lut_to_sparse.
    """

    unsliced_parts = ("mask", "data", "codebook")  # counting the bits before a row gives the start of its codes

    def bind(self) -> None:
        self.form = _Form.of(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        return self.form.fitting(spec.shape).parts()

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        self.form.fitting(spec.shape)
        return (1, *(None,) * (len(spec.shape) - 1)) if spec.shape else ()

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        form, target = self.form.fitting(spec.shape), out.reshape(-1)
        if not target.size:
            return
        inner = dtypes.count(spec.shape[1:])
        rows = region[0] if region else slice(0, 1)
        first, last = rows.start * inner, rows.stop * inner
        grids = _Grids(form, parts, rows)
        start, mask = first, None
        if form.count is not None:
            start, mask = mask_bits(parts["mask"], first, last, spec.elements, form.count)
        with np.errstate(all="ignore"):
            for low in range(first, last, PANEL):
                panel = target[low - first : low - first + PANEL]
                if mask is None:
                    codes = form.codes(parts["data"], low, low + len(panel))
                    panel[...] = grids.values(codes, np.arange(low, low + len(panel)))
                    continue
                bits = mask[low - first : low - first + PANEL]
                places = low + np.flatnonzero(bits)
                panel[...] = 0
                panel[bits] = grids.values(form.codes(parts["data"], start, start + len(places)), places)
                start += len(places)

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        if self.form.count is not None:
            decode_all(self, parts, spec)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Return the layout of integers in boxes; None with a mask or a codebook."""
        form = self.form.fitting(spec.shape)
        if not form.numbers or not spec.shape:
            return None
        packed, no_offset = f"{'i' if form.signed else 'u'}{form.bits}", form.offset_dtype == "none"
        return CodeLayout(
            bits=form.bits,
            signed=form.signed,
            scale_dtype=form.scale_dtype,
            group=tuple(size // max(cells, 1) or 1 for size, cells in zip(spec.shape, form.grid)),
            offset_kind="none" if no_offset else "zero_point",
            offset_dtype=None if no_offset else packed if form.offset_dtype == "packed" else form.offset_dtype,
        )

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        """Return the integers of rows, with a scale for each row of a box; None under a mask or with a codebook."""
        form, layout = self.form.fitting(spec.shape), self.code_layout(spec)
        if layout is None or not spec.elements:
            return None
        sizes = tuple(part.stop - part.start for part in region)
        inner, rows = dtypes.count(spec.shape[1:]), region[0]
        offset = None if form.offset_dtype == "none" else _by_row(form, form.offsets(parts, rows), rows)
        return Codes(
            layout=layout,
            shape=sizes,
            group=(1, *layout.group[1:]),
            scale=_by_row(form, parts["scale"][form.rows(rows)], rows),
            offset=offset,
            unpack=lambda: form.codes(parts["data"], rows.start * inner, rows.stop * inner).reshape(sizes),
        )


@frozen(kw_only=True)
class _Form:
    """The parameters of `Boxes`, for one shape once they are fitted to it."""

    bits: int
    signed: bool = False
    grid: Shape = ()
    scale_dtype: str = "none"
    offset_dtype: str = "none"
    books: Shape | None = None
    codebook_dtype: str = "f32"
    count: int | None = None
    shape: Shape = ()

    @classmethod
    def of(cls, params: Params) -> _Form:
        """Check parameters that do not depend on a shape; CodecError if one is invalid."""
        if unknown := [name for name in params if name not in _CHECKS]:
            raise refuse("parameter", ", ".join(_CHECKS), unknown[0])
        checked = {name: check(name, params[name]) for name, check in _CHECKS.items() if name in params}
        if "bits" not in checked:
            raise refuse("bits", "an integer from 1 to 8", None)
        return cls(**checked)

    def fitting(self, shape: Shape) -> _Form:
        """Return the parameters for a shape; CodecError if the boxes do not divide it."""
        form = evolve(self, shape=shape, grid=self.grid or (1,) * len(shape))
        for boxes in (form.grid, form.books):
            if boxes is not None and (len(boxes) != len(shape) or any(size % n for size, n in zip(shape, boxes))):
                raise CodecError(
                    "the boxes do not divide the tensor",
                    code="shape",
                    expected=f"a divisor of {list(shape)} along each axis",
                    found=list(boxes),
                )
        return form

    @property
    def numbers(self) -> bool:
        """Whether every element is an integer code with a scale."""
        return self.count is None and self.books is None and self.scale_dtype != "none"

    @property
    def packing(self) -> Packing:
        """The packing of codes in bytes."""
        return Packing(self.bits, "u8", "lsb")

    def parts(self) -> dict[str, tuple[str, Shape]]:
        """Return dtype and shape of each part."""
        elements = dtypes.count(self.shape)
        n_codes = elements if self.count is None else self.count
        parts: dict[str, tuple[str, Shape]] = {"data": ("u8", (self.packing.words(n_codes),))}
        if self.scale_dtype != "none":
            parts["scale"] = (self.scale_dtype, self.grid)
        if self.offset_dtype == "packed":
            parts["offset"] = ("u8", (self.packing.words(prod(self.grid)),))
        elif self.offset_dtype != "none":
            parts["offset"] = (self.offset_dtype, self.grid)
        if self.books is not None:
            parts["codebook"] = (self.codebook_dtype, (*self.books, 1 << self.bits))
        if self.count is not None:
            parts["mask"] = ("u8", (-(-elements // 8),))
        return parts

    def codes(self, stream: Any, start: int, stop: int) -> Array:
        """Unpack codes of a bit stream: i8 if signed, else u8."""
        first = start // 8 * 8  # eight codes start at a byte
        words = stream[self.packing.words(first) : self.packing.words(stop)]
        codes = self.packing.unpack(words, stop - first)[start - first :]
        if not self.signed or self.books is not None:
            return codes
        half = np.uint8(1 << self.bits - 1)
        return ((codes ^ half) - half).view(np.int8)

    def rows(self, rows: slice) -> slice:
        """Convert rows of the tensor to rows of the grid."""
        if not self.shape:
            return slice(0, 1)
        step = self.shape[0] // self.grid[0]
        return slice(rows.start // step, -(-rows.stop // step))

    def offsets(self, parts: Parts, rows: slice) -> Array:
        """Return the zero points for rows of the tensor."""
        within = self.rows(rows)
        if self.offset_dtype != "packed":
            return parts["offset"][within] if self.shape else parts["offset"][...]
        inner = prod(self.grid[1:])
        return self.codes(parts["offset"], within.start * inner, within.stop * inner).reshape(-1, *self.grid[1:])


class _Grids:
    """Float32 scales, zero points and codebooks for rows of a tensor."""

    def __init__(self, form: _Form, parts: Parts, rows: slice) -> None:
        self.form, self.first = form, form.rows(rows).start * prod(form.grid[1:])
        self.books = self.scale = self.offset = None
        if form.books is not None:
            self.books = parts["codebook"][...].astype(np.float32).reshape(-1, 1 << form.bits)
        if form.scale_dtype != "none":
            scale = parts["scale"][form.rows(rows)] if form.shape else parts["scale"][...]
            self.scale = scale.astype(np.float32).reshape(-1)
        if form.offset_dtype != "none":
            self.offset = form.offsets(parts, rows).astype(np.float32).reshape(-1)

    def values(self, codes: Array, places: Array) -> Array:
        """Decode codes by their row-major positions."""
        values = codes.astype(np.float32)
        if self.books is not None and self.form.books is not None:
            values = self.books[_boxes_of(places, self.form.shape, self.form.books), codes]
        if self.scale is None and self.offset is None:
            return values
        cells = _boxes_of(places, self.form.shape, self.form.grid) - self.first
        if self.offset is not None:
            values -= self.offset[cells]
        if self.scale is not None:
            values *= self.scale[cells]
        return values


def _boxes_of(places: Array, shape: Shape, grid: Shape) -> Array:
    """Return the box number of each element, both row-major."""
    cells, stride = np.zeros(len(places), np.int64), 1
    for size, count in zip(reversed(shape), reversed(grid)):
        places, along = np.divmod(places, size)
        if count > 1:
            cells += along // (size // count) * stride
        stride *= count
    return cells


def _by_row(form: _Form, grid: Array, rows: slice) -> Array:
    """Repeat a grid for each row of the tensor."""
    step = form.shape[0] // form.grid[0]
    first = rows.start % step
    return np.repeat(grid, step, axis=0)[first : first + rows.stop - rows.start]


def _sizes(name: str, value: Any) -> Shape:
    if not isinstance(value, (list, tuple)) or len(value) > 64 or any(type(n) is not int or n < 1 for n in value):
        raise refuse(name, "the number of boxes along each axis", value)
    return tuple(value)


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise refuse(name, "true or false", value)
    return value


_CHECKS: dict[str, Any] = {
    "bits": integer(1, 8), "signed": _flag, "grid": _sizes, "scale_dtype": choice("none", "f32", "f16", "bf16"),
    "offset_dtype": choice("none", "packed", "u8", "i8", "f32", "f16", "bf16"), "books": _sizes,
    "codebook_dtype": choice("f32", "f16", "bf16", "i8", "u8"), "count": integer(0, 1 << 62),
}  # fmt: skip
