"""Our own Metal kernels: two bodies for every codec, around its function that gives eight values of a row."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from .layouts import Layout

LANES = 32
"""Threads of one simdgroup, which computes one output value."""

# y[m, row] = sum over k of W[ids[m], row, k] * x[m, k]
PRODUCTS = """
    uint row = thread_position_in_grid.y, batch = thread_position_in_grid.z, lane = thread_index_in_simdgroup;
    uint columns = x_shape[1], rows = threads_per_grid.y;
    uint line = ids[batch] * rows + row;
    float sum = 0.0f;
    for (uint at = lane * 8; at < columns; at += 256) {
        float values[8];
        unpack({arguments}, columns, line, at, values);
        for (uint j = 0; j < 8 && at + j < columns; ++j) sum += values[j] * x[size_t(batch) * columns + at + j];
    }
    sum = simd_sum(sum);
    if (lane == 0) y[size_t(batch) * rows + row] = sum;
"""

# y[i] = W[ids[i]]
ROWS = """
    uint at = thread_position_in_grid.x * 8, line = thread_position_in_grid.y;
    float values[8];
    unpack({arguments}, COLUMNS, ids[line], at, values);
    for (uint j = 0; j < 8 && at + j < COLUMNS; ++j) y[size_t(line) * COLUMNS + at + j] = values[j];
"""


class Kernels:
    """The two kernels of one layout, compiled by MLX when they are first used."""

    def __init__(self, layout: Layout) -> None:
        self._names = [name for name, _ in layout.arrays]
        arguments = ", ".join(self._names)
        name = f"squish_{layout.name}_{zlib.crc32(layout.body.encode()):08x}"
        made: Iterator[Any] = (  # callable, which the stubs do not say
            mx.fast.metal_kernel(
                name=f"{name}_{kind}", input_names=[*self._names, "ids", *extra], output_names=["y"],
                source=body.replace("{arguments}", arguments), header=layout.header,
            )
            for kind, body, extra in (("products", PRODUCTS, ["x"]), ("rows", ROWS, []))
        )  # fmt: skip
        self._products, self._rows = made

    def products(self, stored: dict[str, mx.array], x: mx.array, ids: mx.array, rows: int) -> mx.array:
        """`x[m] @ W[ids[m]].T` for x [n, in]: f32 [n, rows]."""
        (found,) = self._products(
            inputs=[*(stored[name] for name in self._names), ids, x],
            grid=(LANES, rows, len(ids)), threadgroup=(LANES, 1, 1),
            output_shapes=[(len(ids), rows)], output_dtypes=[mx.float32],
        )  # fmt: skip
        return found

    def rows(self, stored: dict[str, mx.array], ids: mx.array, columns: int) -> mx.array:
        """Rows by id: f32 [n, columns]."""
        eighths = -(-columns // 8)
        (found,) = self._rows(
            inputs=[*(stored[name] for name in self._names), ids], template=[("COLUMNS", columns)],
            grid=(eighths, len(ids), 1), threadgroup=(min(eighths, 256), 1, 1),
            output_shapes=[(len(ids), columns)], output_dtypes=[mx.float32],
        )  # fmt: skip
        return found
