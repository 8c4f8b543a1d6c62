"""Codes of 4 bits repacked when a tensor is loaded: panels of sixteen rows, one a lane, as native/panels.h has them."""

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
    """What panels are made of: the groups of a row, and the dtypes in which scales and offsets are exact. `nested`:
    those are integers, with factors in float16 for eight groups."""

    panels: int
    columns: int
    group: int
    zero: int
    scale: str
    offset: str | None
    nested: bool

    @classmethod
    def of(cls, layout: Layout) -> Grid:
        """UncoveredError unless codes have 4 bits and lie in rows of whole groups of a multiple of 32."""
        kind, fields = layout.fields["kind"], layout.fields
        if kind not in (Q4_0, Q4_1, Q4_K, AFFINE_4) or not layout.in_units:
            raise UncoveredError("only 4-bit codes in rows of whole groups are repacked", code="repack")
        if not -MOST_ZERO <= fields.get("zero", 0) <= MOST_ZERO:
            raise UncoveredError("a zero that codes are not exact in bf16 beside", code="repack")
        group, zero, offset = 32, 8 if kind == Q4_0 else 0, {Q4_1: "f16", Q4_K: "u8"}.get(kind)
        scale = "u8" if kind == Q4_K else "f16"
        if kind == AFFINE_4:
            group, zero = fields["group_columns"], fields["zero"]
            scale = _exact(fields["scale_type"])
            if "offset" in layout.pointers:  # a zero point becomes one of float32, less its product with the scale
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
        """Bytes in memory."""
        cells = sum(dtypes.nbytes(dtype, self.shape) for dtype in (self.scale, self.offset) if dtype)
        return self.panels * ROWS * (self.columns // 2 + self.nested * self.columns // 64) + cells


def repacked(
    layout: Layout, weights: Weights, stored: Mapping[str, Array], threads: int
) -> tuple[Weights, Mapping[str, Array]]:
    """The same matrix in panels, and the arrays that it points to; `stored`: those of `weights`."""
    grid = Grid.of(layout)
    codes, scale = _zeros((grid.panels, grid.columns * ROWS // 2), "u8"), _zeros(grid.shape, "f32")
    offset = _zeros(grid.shape, "f32") if grid.offset else None
    offset_pointer = None if offset is None else offset.ctypes.data
    if not library().repack(weights, codes.ctypes.data, scale.ctypes.data, offset_pointer, threads):
        raise UncoveredError("the compiled kernels have no panels for these codes", code="repack")
    arrays = {"data": codes, "scale": _cells(scale, grid.scale)}
    made = Weights(
        rows=layout.rows, columns=grid.columns, kind=PANELS, group_rows=1, group_columns=grid.group, zero=grid.zero,
        scale_type=TYPES[grid.scale],
    )  # fmt: skip
    if offset is not None and grid.offset:
        arrays["offset"], made.offset_type = _cells(offset, grid.offset), TYPES[grid.offset]
    if grid.nested:
        arrays["rest"] = _factors(stored["data"], grid, layout.rows)
    for name, array in arrays.items():
        setattr(made, name, array.ctypes.data)
    return made, arrays


def _factors(blocks: Array, grid: Grid, rows: int) -> Array:
    """The first two numbers of blocks of Q4_K, the second (of what is taken off) negative, as float16 [.., 2, lane]."""
    count = grid.columns // 256
    pairs = _zeros((grid.panels * ROWS, count, 2), "f16")
    pairs[:rows] = blocks.reshape(rows, count, -1)[..., :4].copy().view("<f2")
    np.negative(pairs[..., 1], out=pairs[..., 1])
    made = aligned((grid.panels, count, 2, ROWS), "f16")
    made[...] = np.moveaxis(pairs.reshape(grid.panels, ROWS, count, 2), 1, -1)
    return made


def _exact(kind: int) -> str:
    name = NAMES.get(kind, "f32")
    return name if name in ("f16", "bf16") else "f32"


def _cells(values: Array, dtype: str) -> Array:
    if dtype == "f32":
        return values
    made = aligned(values.shape, dtype)
    with np.errstate(all="ignore"):  # they came from this dtype, NaNs too
        made[...] = values.astype(dtypes.to_numpy(dtype))
    return made


def _zeros(shape: tuple[int, ...], dtype: str) -> Array:
    made = aligned(shape, dtype)
    made[...] = 0
    return made
