"""Custom Metal kernels: two generic bodies around each codec's `unpack`, which decodes eight values of a row."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from .layouts import Layout

LANES = 32
"""Threads per simdgroup; a simdgroup computes one output value."""

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
    """The two kernels of a layout, compiled by MLX on first use."""

    def __init__(self, layout: Layout) -> None:
        self._names = [name for name, _ in layout.arrays]
        arguments = ", ".join(self._names)
        name = f"squish_{layout.name}_{zlib.crc32(layout.body.encode()):08x}"
        kernels: Iterator[Any] = (  # callable, unlike in the stubs
            mx.fast.metal_kernel(
                name=f"{name}_{kind}",
                input_names=[*self._names, "ids", *extra],
                output_names=["y"],
                source=body.replace("{arguments}", arguments),
                header=layout.header,
            )
            for kind, body, extra in (("products", PRODUCTS, ["x"]), ("rows", ROWS, []))
        )
        self._products, self._rows = kernels

    def products(self, arrays: dict[str, mx.array], x: mx.array, ids: mx.array, rows: int) -> mx.array:
        """Compute `x[m] @ W[ids[m]].T` for x [n, in]: f32 [n, rows]."""
        (output,) = self._products(
            inputs=[*(arrays[name] for name in self._names), ids, x],
            grid=(LANES, rows, len(ids)),
            threadgroup=(LANES, 1, 1),
            output_shapes=[(len(ids), rows)],
            output_dtypes=[mx.float32],
        )
        return output

    def rows(self, arrays: dict[str, mx.array], ids: mx.array, columns: int) -> mx.array:
        """Decode rows by id: f32 [n, columns]."""
        eighths = -(-columns // 8)
        (output,) = self._rows(
            inputs=[*(arrays[name] for name in self._names), ids],
            template=[("COLUMNS", columns)],
            grid=(eighths, len(ids), 1),
            threadgroup=(min(eighths, 256), 1, 1),
            output_shapes=[(len(ids), columns)],
            output_dtypes=[mx.float32],
        )
        return output
