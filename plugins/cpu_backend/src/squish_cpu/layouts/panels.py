"""Repacking of 4-bit codes at load time: panels of 16 rows, one per lane (native/panels.h)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen

from squish_core.api import dtypes

from ..library import Weights, library
from .base import GGML_FIRST, PANELS, TYPES, Array, Layout, UncoveredError, aligned

ROWS = 16
MOST_ZERO = 128
Q4_0, Q4_1, Q4_K, AFFINE_4 = GGML_FIRST, GGML_FIRST + 1, 11, 18
NAMES = {number: name for name, number in TYPES.items()}


@frozen(kw_only=True)
class Grid:
    """The dimensions of panels, and the dtypes in which scales and offsets are exact.

    With `nested`, scales and offsets are integers with float16 factors per eight groups.
    """

    panels: int
    columns: int
    group: int
    zero: int
    scale: str
    offset: str | None
    nested: bool

    @classmethod
    def of(cls, layout: Layout) -> Grid:
        """Return the grid; UncoveredError unless codes have 4 bits and rows have whole groups of a multiple of 32."""
        kind, fields = layout.fields["kind"], layout.fields
        if kind not in (Q4_0, Q4_1, Q4_K, AFFINE_4) or not layout.in_units:
            raise UncoveredError("a repack needs 4-bit codes in rows of whole groups", code="repack")
        if not -MOST_ZERO <= fields.get("zero", 0) <= MOST_ZERO:
            raise UncoveredError("zero point too large for exact bf16 codes", code="repack")
        group, zero, offset = 32, 8 if kind == Q4_0 else 0, {Q4_1: "f16", Q4_K: "u8"}.get(kind)
        scale = "u8" if kind == Q4_K else "f16"
        if kind == AFFINE_4:
            group, zero = fields["group_columns"], fields["zero"]
            scale = _exact(fields["scale_type"])
            if "offset" in layout.pointers:  # a zero point becomes a float32 offset, -zero * scale
                offset = _exact(fields["offset_type"]) if fields["bias"] else "f32"
        return cls(
            panels=-(-layout.rows // ROWS), columns=layout.columns, group=group, zero=zero, scale=scale, offset=offset,
            nested=kind == Q4_K,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.panels, self.columns // self.group, ROWS

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        cells = sum(dtypes.nbytes(dtype, self.shape) for dtype in (self.scale, self.offset) if dtype)
        return self.panels * ROWS * (self.columns // 2 + self.nested * self.columns // 64) + cells


def repack(
    layout: Layout, weights: Weights, arrays_by_role: Mapping[str, Array], threads: int
) -> tuple[Weights, Mapping[str, Array]]:
    """Repack a matrix to panels; returns its description and arrays. `arrays_by_role` are the arrays of `weights`."""
    grid = Grid.of(layout)
    codes, scale = _zeros((grid.panels, grid.columns * ROWS // 2), "u8"), _zeros(grid.shape, "f32")
    offset = _zeros(grid.shape, "f32") if grid.offset else None
    offset_pointer = None if offset is None else offset.ctypes.data
    if not library().repack(weights, codes.ctypes.data, scale.ctypes.data, offset_pointer, threads):
        raise UncoveredError("no compiled repack for these codes", code="repack")
    arrays = {"data": codes, "scale": _cells(scale, grid.scale)}
    panel_weights = Weights(
        rows=layout.rows, columns=grid.columns, kind=PANELS, group_rows=1, group_columns=grid.group, zero=grid.zero,
        scale_type=TYPES[grid.scale],
    )  # fmt: skip
    if offset is not None and grid.offset:
        arrays["offset"], panel_weights.offset_type = _cells(offset, grid.offset), TYPES[grid.offset]
    if grid.nested:
        arrays["rest"] = _factors(arrays_by_role["data"], grid, layout.rows)
    for name, array in arrays.items():
        setattr(panel_weights, name, array.ctypes.data)
    return panel_weights, arrays


def _factors(blocks: Array, grid: Grid, rows: int) -> Array:
    """Return d and -dmin of Q4_K blocks as float16 [.., 2, lane]."""
    count = grid.columns // 256
    pairs = _zeros((grid.panels * ROWS, count, 2), "f16")
    pairs[:rows] = blocks.reshape(rows, count, -1)[..., :4].copy().view("<f2")
    np.negative(pairs[..., 1], out=pairs[..., 1])
    factors = aligned((grid.panels, count, 2, ROWS), "f16")
    factors[...] = np.moveaxis(pairs.reshape(grid.panels, ROWS, count, 2), 1, -1)
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
