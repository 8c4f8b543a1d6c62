"""How our kernels read a codec: for each, the body of one function in Metal, and the arrays that it is given.

`unpack(row, at, out)` gives the values `at .. at + 7` (`at` a multiple of 8) of a row of `columns` values. The same
text is compiled as C++ in the tests, so it keeps to what both languages share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from attrs import frozen
from squish_codecs.tables import Tables

from squish_core.api import Encoding, Parts, TensorSpec, dtypes

Arrays = dict[str, np.ndarray]
BLOCK = 64
"""Elements of a bitmask for which it is kept where their values begin."""

HELPERS = """
inline float half_at(const device uint8_t* bytes) {
    return float(as_type<half>(ushort(bytes[0] | (ushort(bytes[1]) << 8))));
}
inline float bfloat_at(const device uint8_t* bytes) {
    return as_type<float>((uint(bytes[0]) << 16) | (uint(bytes[1]) << 24));
}
"""


@frozen
class Layout:
    """A codec with its parameters: names of its arrays with Metal types, the body of `unpack`, and their bytes."""

    name: str
    arrays: tuple[tuple[str, str], ...]
    body: str
    nbytes: int

    @property
    def header(self) -> str:
        """What stands before a kernel."""
        given = "".join(f"const device {kind}* {name}, " for name, kind in self.arrays)
        given += "uint columns, uint row, uint at, thread float* out"
        return f"{HELPERS}\ninline void unpack({given}) {{{self.body}}}\n"


def layout_of(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    """The layout of a tensor that our kernels read, or None."""
    if len(spec.shape) < 2 or not spec.elements:
        return None
    codec = encoding.codec
    if codec.id in GGML:
        return Layout(codec.id.replace(".", "_"), (("data", "uint8_t"),), GGML[codec.id], encoding.stored)
    made = _OTHERS.get(codec.id)
    return made(encoding, spec) if made else None


def arrays_of(encoding: Encoding, parts: Parts, spec: TensorSpec) -> Arrays:
    """The arrays of a layout: stored bytes as they are, tables and scales in float32."""
    made = {
        role: part[...].astype(np.float32) if role in ("codebook", "scale") else np.asarray(part[...])
        for role, part in parts.items()
    }
    if encoding.codec.id == "bitmask":
        made["starts"] = _starts(made["mask"], spec.shape[-1])
    return {name: _flat(array) for name, array in made.items()}


def _starts(mask: np.ndarray, columns: int) -> np.ndarray:
    """How many values come before each block of a row."""
    ones = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)[mask]
    before = np.cumsum(ones, dtype=np.int64) - ones
    return before.reshape(-1, columns // 8)[:, :: BLOCK // 8].astype(np.uint32)


def _flat(array: np.ndarray) -> np.ndarray:
    """One dimension, bytes unless numbers were made of them, and eight elements or more: MLX hands smaller arrays to
    kernels in another address space."""
    flat = np.ascontiguousarray(array).reshape(-1)
    flat = flat if flat.dtype in (np.float32, np.uint32) else flat.view(np.uint8)
    return np.pad(flat, (0, max(0, 8 - len(flat))))


def _palette(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    tables = Tables.of(encoding.codec.params)
    scheme = tables.scheme
    if tables.table is not None or tables.vector > 1 or tables.nested or scheme.offset != "none":
        return None
    if scheme.order != "lsb" or scheme.word != "u8":
        return None
    columns, bits = spec.shape[-1], scheme.bits
    place = "size_t(row) * columns + at + j" if scheme.flat else "at + j"
    line = "data" if scheme.flat else f"data + size_t(row) * {scheme.packing.words(columns)}"
    book = f"(size_t(row) * columns + at + j) / {tables.codebook_size} * {1 << bits} + " if tables.codebook_size else ""
    group = scheme.group_size or (spec.elements if scheme.flat else columns)
    cell = f"({place}) / {group}" if scheme.flat else f"size_t(row) * {columns // group} + (at + j) / {group}"
    times = f" * scale[{cell}]" if tables.scaled else ""
    body = f"""
    const device uint8_t* line = {line};
    for (uint j = 0; j < 8 && at + j < columns; ++j) {{
        size_t bit = ({place}) * {bits};
        uint code = line[bit / 8] >> (bit % 8);
        if (bit % 8 + {bits} > 8) code |= uint(line[bit / 8 + 1]) << (8 - bit % 8);
        out[j] = codebook[{book}(code & {(1 << bits) - 1})]{times};
    }}
    """
    arrays = [("data", "uint8_t"), ("codebook", "float")] + [("scale", "float")] * tables.scaled
    nbytes = sum(
        part.nbytes if role == "data" else 4 * dtypes.count(part.shape) for role, part in encoding.parts.items()
    )
    return Layout(f"palette{bits}", tuple(arrays), body, nbytes)


def _bitmask(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    params, columns = encoding.codec.params, spec.shape[-1]
    read = {"f16": "half_at", "bf16": "bfloat_at"}.get(params["dtype"])
    if params.get("kept") != "run" or params.get("scale", "none") != "none" or read is None or columns % 8:
        return None
    blocks = -(-columns // BLOCK)
    body = f"""
    const device uint8_t* line = mask + size_t(row) * (columns / 8);
    uint value = starts[size_t(row) * {blocks} + at / {BLOCK}];
    for (uint byte = at / {BLOCK} * {BLOCK // 8}; byte < at / 8; ++byte) value += popcount(uint(line[byte]));
    uint bits = line[at / 8];
    for (uint j = 0; j < 8; ++j) {{
        bool kept = (bits >> j) & 1;
        out[j] = kept ? {read}(data + size_t(value) * 2) : 0.0f;
        value += kept;
    }}
    """
    arrays = (("data", "uint8_t"), ("mask", "uint8_t"), ("starts", "uint"))
    return Layout("bitmask", arrays, body, encoding.stored + 4 * blocks * (spec.elements // columns))


_OTHERS: Mapping[str, Callable[[Encoding, TensorSpec], Layout | None]] = {"palette": _palette, "bitmask": _bitmask}


def _blocks(elements: int, nbytes: int, body: str) -> str:
    """GGML blocks: `b` is the block of the first value, `i` that value's place in it."""
    place = f"""
    const device uint8_t* b = data + (size_t(row) * (columns / {elements}) + at / {elements}) * {nbytes};
    uint i = at % {elements};
    """
    return place + body


_SIX_BITS = """
    uint g = i / 32;
    const device uint8_t* s = b + 4;
    uint scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
    uint least = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
    float d = half_at(b) * float(scale), m = half_at(b + 2) * float(least);
"""

# Source of the layouts: ggml-common.h; the arithmetic is that of squish-ggml's decoders, step for step.
GGML: Mapping[str, str] = {
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
