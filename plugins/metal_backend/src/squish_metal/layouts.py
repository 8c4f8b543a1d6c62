"""Kernel layouts: for each codec, the arrays and the Metal body of `unpack`.

`unpack(row, at, out)` decodes the values `at .. at + 7` (`at` a multiple of 8) of a row of `columns` values. Tests
compile the same text as C++, so it must be valid in both languages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from attrs import frozen
from squish_codecs.api import BIT_COUNTS, Tables

from squish_core.api import CodecError, Encoding, Parts, TensorSpec, dtypes

from .ggml_blocks import GGML

Arrays = dict[str, np.ndarray]
BLOCK = 64
"""Elements of a bitmask per entry in `starts`."""

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
    """A codec's kernel inputs: array names with Metal types, the body of `unpack`, and the size in bytes."""

    name: str
    arrays: tuple[tuple[str, str], ...]
    body: str
    nbytes: int

    @property
    def header(self) -> str:
        """The source before a kernel: helpers and `unpack`."""
        arguments = "".join(f"const device {kind}* {name}, " for name, kind in self.arrays)
        arguments += "uint columns, uint row, uint at, thread float* out"
        return f"{HELPERS}\ninline void unpack({arguments}) {{{self.body}}}\n"


def layout_of(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    """Return the kernel layout of a tensor, or None."""
    if len(spec.shape) < 2 or not spec.elements:
        return None
    codec = encoding.codec
    if codec.id in GGML:
        return Layout(codec.id.replace(".", "_"), (("data", "uint8_t"),), GGML[codec.id], encoding.stored)
    layout = _LAYOUTS.get(codec.id)
    return layout(encoding, spec) if layout else None


def arrays_of(layout: Layout, encoding: Encoding, parts: Parts, spec: TensorSpec) -> Arrays:
    """Return the arrays of a layout: stored bytes, and tables, scales and zero points in float32.

    Raise CodecError if bitmaps do not match the number of values, because a kernel would read out of bounds.
    """
    arrays = {role: np.asarray(part[...]) for role, part in parts.items()}
    derived = _DERIVED.get(encoding.codec.id)
    arrays |= derived(encoding, parts, spec) if derived else {}
    return {name: _flat(arrays[name], kind) for name, kind in layout.arrays}


def _flat(array: np.ndarray, kind: str) -> np.ndarray:
    """Flatten to a Metal type with at least eight elements; MLX passes smaller arrays in another address space."""
    flat = np.ascontiguousarray(array).reshape(-1)
    flat = flat.astype(np.float32, copy=False) if kind == "float" else flat.view(_WORDS[kind])
    return np.pad(flat, (0, max(0, 8 - len(flat))))


_WORDS = {"uint8_t": np.uint8, "uint": np.uint32}


def _palette(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    tables = Tables.of(encoding.codec.params)
    scheme, columns, size = tables.scheme, spec.shape[-1], tables.vector
    bits, fills_bytes = scheme.bits, 8 % scheme.bits == 0
    if scheme.offset != "none" or scheme.word != "u8" or tables.place(spec.shape) < len(spec.shape) - 2:
        return None
    if scheme.order != "lsb" and not (scheme.order == "msb" and fills_bytes):
        return None
    # An index covers `size` neighbors in a row or a column: its position, and the lane within it.
    across = tables.vector_axis == -1
    wide = columns // size if across else columns
    line, place, lane = ("row", f"(at + j) / {size}", f"(at + j) % {size}")
    if not across:
        line, place, lane = (f"row / {size}", "at + j", f"row % {size}")
    index = f"(size_t({line}) * {wide} + {place})"
    start = "data" if scheme.flat else f"data + size_t({line}) * {scheme.packing.words(wide)}"
    book = f"{index} / {tables.codebook_size // size} * {1 << bits} + " if tables.codebook_size else ""
    group = scheme.group_size or (spec.elements if scheme.flat else columns)
    value = f"(size_t(row) * columns + at + j) / {group}"
    cell = value if scheme.flat else f"size_t(row) * {columns // group} + (at + j) / {group}"
    body = f"""
    const device uint8_t* line = {start};
    for (uint j = 0; j < 8 && at + j < columns; ++j) {{
        size_t bit = size_t({index if scheme.flat else place}) * {bits};
        uint code = line[bit / 8] >> ({f"{8 - bits} - bit % 8" if scheme.order == "msb" else "bit % 8"});
        {"" if fills_bytes else f"if (bit % 8 + {bits} > 8) code |= uint(line[bit / 8 + 1]) << (8 - bit % 8);"}
        out[j] = codebook[({book}(code & {(1 << bits) - 1})) * {size} + {lane}]{f" * scale[{cell}]" * tables.scaled};
    }}
    """
    arrays = [("data", "uint8_t"), ("codebook", "float")] + [("scale", "float")] * tables.scaled
    numbers = dtypes.count(encoding.parts["codebook"].shape) if tables.table is None else 1 << bits
    numbers += dtypes.count(encoding.parts["scale"].shape) if tables.scaled else 0
    return Layout(f"palette{bits}", tuple(arrays), body, encoding.parts["data"].nbytes + 4 * numbers)


def _palette_arrays(encoding: Encoding, parts: Parts, spec: TensorSpec) -> Arrays:
    """Return a constant table, and nested scales as numbers."""
    tables = Tables.of(encoding.codec.params)
    arrays = {} if tables.table is None else {"codebook": tables.constant}
    if tables.nested:
        arrays["scale"] = tables.scales(parts, spec.shape)[slice(0, parts["scale"].shape[0]),]
    return arrays


def _bitmask(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    params, columns = encoding.codec.params, spec.shape[-1]
    reader = {"f16": "half_at", "bf16": "bfloat_at"}.get(params["dtype"])
    unscaled_run = params.get("kept") == "run" and params.get("scale", "none") == "none"
    if not unscaled_run or reader is None or columns % 8 or not _countable(spec):
        return None
    blocks = -(-columns // BLOCK)
    body = f"""
    const device uint8_t* line = mask + size_t(row) * (columns / 8);
    uint value = starts[size_t(row) * {blocks} + at / {BLOCK}];
    for (uint byte = at / {BLOCK} * {BLOCK // 8}; byte < at / 8; ++byte) value += popcount(uint(line[byte]));
    uint bits = line[at / 8];
    for (uint j = 0; j < 8; ++j) {{
        bool kept = (bits >> j) & 1;
        out[j] = kept ? {reader}(data + size_t(value) * 2) : 0.0f;
        value += kept;
    }}
    """
    arrays = (("data", "uint8_t"), ("mask", "uint8_t"), ("starts", "uint"))
    return Layout("bitmask", arrays, body, encoding.stored + 4 * blocks * (spec.elements // columns))


def _bitmask_arrays(encoding: Encoding, parts: Parts, spec: TensorSpec) -> Arrays:
    return {"starts": _starts(parts["mask"][...].reshape(-1, spec.shape[-1] // 8), parts["data"].shape[0], spec)}


def _tca_tbe(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    """Return the layout of three bitmaps of codes: a short value's exponent, or 0 for a full value (SQUIZD P5)."""
    if not _countable(spec):
        return None
    words, rows = encoding.parts["plane0"].shape[1], spec.elements // spec.shape[-1]
    body = f"""
    size_t line = size_t(row) * {8 * words}, here = line + at / 8;
    uint value = starts[size_t(row) * {words} + at / {BLOCK}];
    for (size_t byte = line + at / {BLOCK} * 8; byte < here; ++byte)
        value += popcount(uint(plane0[byte] | plane1[byte] | plane2[byte]));
    for (uint j = 0; j < 8 && at + j < columns; ++j) {{
        uint code = ((plane0[here] >> j) & 1) | ((plane1[here] >> j) & 1) << 1 | ((plane2[here] >> j) & 1) << 2;
        if (code) {{
            uint rest = high[value++];
            uint bits = (({encoding.codec.params["base_exponent"]} + code) << 7) | (rest & 127) | ((rest & 128) << 8);
            out[j] = as_type<float>(bits << 16);
        }} else {{
            out[j] = bfloat_at(full + (size_t(row) * columns + at + j - value) * 2);
        }}
    }}
    """
    arrays = (*((role, "uint8_t") for role in (*_PLANES, "high", "full")), ("starts", "uint"))
    return Layout("tca_tbe", arrays, body, encoding.stored + 4 * words * rows)


_PLANES = ("plane0", "plane1", "plane2")


def _tca_tbe_arrays(encoding: Encoding, parts: Parts, spec: TensorSpec) -> Arrays:
    one, two, three = (np.ascontiguousarray(parts[role][...]).view(np.uint8) for role in _PLANES)
    coded = one | two | three
    columns = spec.shape[-1]
    if np.unpackbits(coded[:, columns // 8 :], axis=1, bitorder="little")[:, columns % 8 :].any():
        raise CodecError("nonzero padding bits in a bitmap [P5]", tensor=spec.name, part="plane0", code="P5")
    return {"starts": _starts(coded, parts["high"].shape[0], spec)}


def _countable(spec: TensorSpec) -> bool:
    """Return whether positions of values fit 32 bits."""
    return spec.elements < 1 << 32


def _starts(mask: np.ndarray, count: int, spec: TensorSpec) -> np.ndarray:
    """Return the number of values before each block, for a mask u8 [rows, bytes] with `count` bits set."""
    ones = BIT_COUNTS[mask]
    before = np.cumsum(ones.reshape(-1), dtype=np.int64).reshape(mask.shape)
    if before.size and int(before[-1, -1]) != count:
        raise CodecError(
            "the mask does not match the stored values",
            tensor=spec.name,
            part="mask",
            expected=f"{count} values",
            found=f"{int(before[-1, -1])} bits set",
            code="mask",
        )
    return (before - ones)[:, :: BLOCK // 8].astype(np.uint32)


def _hqq(encoding: Encoding, spec: TensorSpec) -> Layout | None:
    """Return the layout of HQQ: a matrix with each column (`axis` 0) or row (1) as a group, in the tensor's order.

    A word holds codes of rows `lines` apart, the first in the highest bits.
    """
    params = encoding.codec.params
    if params.get("scale_dtype", "f32") != "f32":
        return None
    bits, by_row, data = params["bits"], params["axis"] == 1, encoding.parts["data"]
    lines, wide = data.shape
    first, step = (27, 3) if bits == 3 else (8 - bits, bits)
    cell = "line" if by_row else "column"
    body = f"""
    size_t place = size_t(row) * columns + at;
    size_t line = place / {wide}, column = place % {wide};
    for (uint j = 0; j < 8 && at + j < columns; ++j) {{
        uint word = data[line % {lines} * {wide} + column];
        uint code = (word >> ({first} - uint(line / {lines}) * {step})) & {(1 << bits) - 1};
        out[j] = (float(code) - zero[{cell}]) * scale[{cell}];
        if (++column == {wide}) {{
            column = 0;
            ++line;
        }}
    }}
    """
    word = "uint" if bits == 3 else "uint8_t"
    return Layout(f"hqq{bits}", (("data", word), ("scale", "float"), ("zero", "float")), body, encoding.stored)


_LAYOUTS: Mapping[str, Callable[[Encoding, TensorSpec], Layout | None]] = {
    "palette": _palette, "bitmask": _bitmask, "tca_tbe": _tca_tbe, "hqq": _hqq,
}  # fmt: skip
_DERIVED: Mapping[str, Callable[[Encoding, Parts, TensorSpec], Arrays]] = {
    "palette": _palette_arrays, "bitmask": _bitmask_arrays, "tca_tbe": _tca_tbe_arrays,
}  # fmt: skip
