"""Repacking at load time: panels of 16 rows, one per lane (native/panels.h, native/byte_panels.h)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen

from squish_core.api import dtypes

from ..library import Weights, library
from .base import (
    AFFINE_FIRST,
    BYTE_PANELS,
    GGML,
    GGML_FIRST,
    PANELS,
    SIX_PANELS,
    TYPES,
    Array,
    Layout,
    UncoveredError,
    aligned,
)

ROWS = 16
MOST_ZERO = 128
BITS = {PANELS: 4, BYTE_PANELS: 8, SIX_PANELS: 6}
SUPER_BLOCK = 256
NAMES = {number: name for name, number in TYPES.items()}


@frozen
class Form:
    """Panels of a codec: their kind, the columns of a scale, the zero point, and exact dtypes of scales and offsets.

    `factors` are the positions, in a block of 256 columns, of the float16 factors of integer scales and minima.
    """

    kind: int
    group: int
    zero: int
    scale: str
    offset: str | None = None
    factors: tuple[int, ...] = ()


_BLOCKS = {
    "q4_0": Form(PANELS, 32, 8, "f16"), "q4_1": Form(PANELS, 32, 0, "f16", "f16"),
    "q4_k": Form(PANELS, 32, 0, "u8", "u8", (0, 2)), "q8_0": Form(BYTE_PANELS, 32, 128, "f16"),
    "q6_k": Form(SIX_PANELS, 16, 32, "i8", None, (208,)),
}  # fmt: skip
FORMS = {GGML_FIRST + GGML.index(name): form for name, form in _BLOCKS.items()}
AFFINE = {AFFINE_FIRST + 3: PANELS, AFFINE_FIRST + 7: BYTE_PANELS}


@frozen(kw_only=True)
class Grid:
    """Panels of a matrix: their number, the matrix's columns, and their form."""

    panels: int
    columns: int
    form: Form

    @classmethod
    def of(cls, layout: Layout) -> Grid:
        """Return the grid; UncoveredError unless panels have these codes, and rows whole groups of a multiple of 32."""
        kind = layout.fields["kind"]
        if (kind not in FORMS and kind not in AFFINE) or not layout.in_units:
            raise UncoveredError("a repack needs codes of 4 or 8 bits or Q6_K, in rows of whole groups", code="repack")
        form = FORMS.get(kind) or _affine_form(layout)
        return cls(panels=-(-layout.rows // ROWS), columns=layout.columns, form=form)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the scales."""
        return self.panels, self.columns // self.form.group, ROWS

    @property
    def factor_shape(self) -> tuple[int, int, int, int]:
        """Shape of the factors of integer scales."""
        return self.panels, self.columns // SUPER_BLOCK, len(self.form.factors), ROWS

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        form = self.form
        cells = sum(dtypes.nbytes(dtype, self.shape) for dtype in (form.scale, form.offset) if dtype)
        factors = dtypes.nbytes("f16", self.factor_shape) if form.factors else 0
        return self.panels * ROWS * self.columns * BITS[form.kind] // 8 + cells + factors


def _affine_form(layout: Layout) -> Form:
    fields, offset = layout.fields, None
    if not -MOST_ZERO <= fields["zero"] <= MOST_ZERO:
        raise UncoveredError("zero point too large for exact bf16 codes", code="repack")
    if "offset" in layout.pointers:  # a zero point becomes a float32 offset, -zero * scale
        offset = _exact(fields["offset_type"]) if fields["bias"] else "f32"
    return Form(AFFINE[fields["kind"]], fields["group_columns"], fields["zero"], _exact(fields["scale_type"]), offset)


def repack(
    layout: Layout, weights: Weights, arrays_by_role: Mapping[str, Array], threads: int
) -> tuple[Weights, Mapping[str, Array]]:
    """Repack a matrix to panels; return its description and arrays. `arrays_by_role` are the arrays of `weights`."""
    grid = Grid.of(layout)
    form = grid.form
    codes = _zeros((grid.panels, grid.columns * ROWS * BITS[form.kind] // 8), "u8")
    scale, offset = _zeros(grid.shape, "f32"), _zeros(grid.shape, "f32") if form.offset else None
    offset_pointer = None if offset is None else offset.ctypes.data
    if not library().repack(weights, codes.ctypes.data, scale.ctypes.data, offset_pointer, threads):
        raise UncoveredError("no compiled repack for these codes", code="repack")
    arrays = {"data": codes, "scale": _cells(scale, form.scale)}
    panel_weights = Weights(
        rows=layout.rows,
        columns=grid.columns,
        kind=form.kind,
        group_rows=1,
        zero=form.zero,
        group_columns=SUPER_BLOCK if form.kind == SIX_PANELS else form.group,
        scale_type=TYPES[form.scale],
    )
    if offset is not None and form.offset:
        arrays["offset"], panel_weights.offset_type = _cells(offset, form.offset), TYPES[form.offset]
    if form.factors:
        arrays["rest"] = _factors(arrays_by_role["data"], grid, layout.rows)
    for name, array in arrays.items():
        setattr(panel_weights, name, array.ctypes.data)
    return panel_weights, arrays


def _factors(blocks: Array, grid: Grid, rows: int) -> Array:
    """Return the factors of blocks as float16 [.., factor, lane]: of scales, then minus that of minima."""
    panels, count, number, _ = grid.factor_shape
    values = _zeros((panels * ROWS, count, number), "f16")
    for index, offset in enumerate(grid.form.factors):
        values[:rows, :, index] = blocks.reshape(rows, count, -1)[..., offset : offset + 2].copy().view("<f2")[..., 0]
    np.negative(values[..., 1:], out=values[..., 1:])
    factors = aligned(grid.factor_shape, "f16")
    factors[...] = np.moveaxis(values.reshape(panels, ROWS, count, number), 1, -1)
    return factors


def _exact(kind: int) -> str:
    name = NAMES.get(kind, "f32")
    return name if name in ("f16", "bf16") else "f32"


def _cells(values: Array, dtype: str) -> Array:
    if dtype == "f32":
        return values
    out = aligned(values.shape, dtype)
    with np.errstate(all="ignore"):  # exact: the values came from this dtype, NaN included
        out[...] = values.astype(dtypes.to_numpy(dtype))
    return out


def _zeros(shape: tuple[int, ...], dtype: str) -> Array:
    out = aligned(shape, dtype)
    out[...] = 0
    return out
