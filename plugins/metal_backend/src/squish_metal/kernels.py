"""Our own Metal kernels: two bodies for every codec, around one function that gives eight values of a row.

Each entry of `UNPACK` is the body of `unpack(row, at, out)`: the values `at .. at + 7` (`at` a multiple of 8) of a
row of `columns` values. The same text is compiled as C++ in the tests, so it keeps to what both languages share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from . import device

if TYPE_CHECKING:
    import mlx.core as mx

LANES = 32
"""Threads of one simdgroup, which computes one output value."""

HEADER = """
inline float half_at(const device uint8_t* bytes) {
    return float(as_type<half>(ushort(bytes[0] | (ushort(bytes[1]) << 8))));
}
"""

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


@frozen
class Layout:
    """How a codec's parts are read: their roles with Metal types, and the body of `unpack`."""

    parts: tuple[tuple[str, str], ...]
    body: str


def _blocks(elements: int, nbytes: int, body: str) -> Layout:
    """GGML blocks: `b` is the block of the first value, `i` that value's place in it."""
    place = f"""
    const device uint8_t* b = data + (size_t(row) * (columns / {elements}) + at / {elements}) * {nbytes};
    uint i = at % {elements};
    """
    return Layout((("data", "uint8_t"),), place + body)


_SIX_BITS = """
    uint g = i / 32;
    const device uint8_t* s = b + 4;
    uint scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
    uint least = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
    float d = half_at(b) * float(scale), m = half_at(b + 2) * float(least);
"""

# Source of the layouts: ggml-common.h; the arithmetic is that of squish-ggml's decoders, step for step.
UNPACK: dict[str, Layout] = {
    "ggml.q4_0": _blocks(32, 18, """
    float d = half_at(b);
    for (uint j = 0; j < 8; ++j) out[j] = d * (float((b[2 + i % 16 + j] >> (i / 16 * 4)) & 15) - 8.0f);
    """),
    "ggml.q4_1": _blocks(32, 20, """
    float d = half_at(b), m = half_at(b + 2);
    for (uint j = 0; j < 8; ++j) out[j] = d * float((b[4 + i % 16 + j] >> (i / 16 * 4)) & 15) + m;
    """),
    "ggml.q8_0": _blocks(32, 34, """
    float d = half_at(b);
    for (uint j = 0; j < 8; ++j) out[j] = d * float(as_type<int8_t>(b[2 + i + j]));
    """),
    "ggml.q4_k": _blocks(256, 144, _SIX_BITS + """
    for (uint j = 0; j < 8; ++j) {
        uint q = (b[16 + g / 2 * 32 + i % 32 + j] >> (g % 2 * 4)) & 15;
        out[j] = d * float(q) - m;
    }
    """),
    "ggml.q5_k": _blocks(256, 176, _SIX_BITS + """
    for (uint j = 0; j < 8; ++j) {
        uint low = (b[48 + g / 2 * 32 + i % 32 + j] >> (g % 2 * 4)) & 15;
        uint q = low | (((b[16 + i % 32 + j] >> g) & 1) << 4);
        out[j] = d * float(q) - m;
    }
    """),
    "ggml.q6_k": _blocks(256, 210, """
    uint h = i / 128, quarter = i / 32 % 4;
    float d = half_at(b + 208) * float(as_type<int8_t>(b[192 + i / 16]));
    for (uint j = 0; j < 8; ++j) {
        uint low = (b[h * 64 + quarter % 2 * 32 + i % 32 + j] >> (quarter / 2 * 4)) & 15;
        uint high = (b[128 + h * 32 + i % 32 + j] >> (quarter * 2)) & 3;
        out[j] = d * (float(low | (high << 4)) - 32.0f);
    }
    """),
}  # fmt: skip


def header(layout: Layout) -> str:
    """What stands before the kernel: the helper and this codec's `unpack`."""
    parameters = "".join(f"const device {kind}* {role}, " for role, kind in layout.parts)
    parameters += "uint columns, uint row, uint at, thread float* out"
    return f"{HEADER}\ninline void unpack({parameters}) {{{layout.body}}}\n"


class Kernels:
    """The two kernels of one codec; made on first use, compiled by MLX."""

    def __init__(self, codec: str) -> None:
        self._layout = UNPACK[codec]
        self._roles = [role for role, _ in self._layout.parts]
        name = codec.replace(".", "_")
        arguments = ", ".join(self._roles)
        self._products, self._rows = (
            device.metal_kernel(
                name=f"squish_{name}_{kind}", input_names=[*self._roles, "ids", *extra], output_names=["y"],
                source=body.replace("{arguments}", arguments), header=header(self._layout),
            )
            for kind, body, extra in (("products", PRODUCTS, ["x"]), ("rows", ROWS, []))
        )  # fmt: skip

    def products(self, stored: dict[str, mx.array], x: mx.array, ids: mx.array, rows: int) -> mx.array:
        """`x[m] @ W[ids[m]].T` for x [n, in]: f32 [n, rows]."""
        import mlx.core as mx

        (found,) = self._products(
            inputs=[*(stored[role] for role in self._roles), ids, x],
            grid=(LANES, rows, len(ids)), threadgroup=(LANES, 1, 1),
            output_shapes=[(len(ids), rows)], output_dtypes=[mx.float32],
        )  # fmt: skip
        return found

    def rows(self, stored: dict[str, mx.array], ids: mx.array, columns: int) -> mx.array:
        """Rows by id: f32 [n, columns]."""
        import mlx.core as mx

        eighths = -(-columns // 8)
        (found,) = self._rows(
            inputs=[*(stored[role] for role in self._roles), ids], template=[("COLUMNS", columns)],
            grid=(eighths, len(ids), 1), threadgroup=(min(eighths, 256), 1, 1),
            output_shapes=[(len(ids), columns)], output_dtypes=[mx.float32],
        )  # fmt: skip
        return found
