"""HQQ: codes of 1, 2, 3, 4 or 8 bits in groups that may span rows of the tensor."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec, dtypes

from .optimizer import quantize

MAX_GROUP = 1 << 20
SCALE_DTYPES = ("f32", "f16", "bf16")


class Packing(NamedTuple):
    """The packing of codes in a word: dtype, shift of the first code, shift decrement, codes per word."""

    word: str
    first: int
    step: int
    codes: int


HQQ_PACKINGS = {
    8: Packing("u8", 0, 0, 1), 4: Packing("u8", 4, 4, 2), 2: Packing("u8", 6, 2, 4), 1: Packing("u8", 7, 1, 8),
    3: Packing("i32", 27, 3, 10),
}  # fmt: skip


class Hqq(Codec):
    """`(q - zero) * scale` in float32, over a matrix of groups: each column with `axis` 0, each row with 1.

    Parameters: `bits`, `group_size`, `axis`, and `scale_dtype` (f32, f16 or bf16) of stored tensors; the encoder has
    f32. Parts: `data`, the matrix packed along its rows: with s rows of words, a word in row i holds rows i, i + s,
    i + 2s, ..., the first in the highest bits; `scale` and `zero` per group.
    Source: uqff-formats, section 4.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, columns = _matrix(spec, params)
        packing = HQQ_PACKINGS[params["bits"]]
        grid, dtype = (1, columns) if params["axis"] == 0 else (rows, 1), params.get("scale_dtype", "f32")
        if packing.word == "u8" and rows % packing.codes:
            raise CodecError(
                "the rows of codes do not fill whole bytes", code="shape",
                expected=f"a multiple of {packing.codes}", found=rows,
            )  # fmt: skip
        return {
            "data": (packing.word, (-(-rows // packing.codes), columns)),
            "scale": (dtype, grid),
            "zero": (dtype, grid),
        }

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        if not spec.shape:
            return ()
        columns = _matrix(spec, params)[1]
        inner = dtypes.count(spec.shape[1:])
        return (max(1, columns // math.gcd(columns, inner)), *(None for _ in spec.shape[1:]))

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        rows, columns = _matrix(spec, params)
        packing, by_row = HQQ_PACKINGS[params["bits"]], params["axis"] == 1
        mask = (1 << params["bits"]) - 1
        inner = dtypes.count(spec.shape[1:])
        first, last = (
            (0, rows) if not region else (region[0].start * inner // columns, region[0].stop * inner // columns)
        )
        matrix = out.reshape(last - first, columns)
        word_rows = parts["data"].shape[0]
        scale, zero = (np.asarray(parts[role][...], np.float32) for role in ("scale", "zero"))
        for slot in range(packing.codes):
            low, high = max(first, slot * word_rows), min(last, (slot + 1) * word_rows, rows)
            if low >= high:
                continue
            words = parts["data"][low - slot * word_rows : high - slot * word_rows]
            codes = words if packing.codes == 1 else (words >> (packing.first - slot * packing.step)) & mask
            groups = slice(low, high) if by_row else slice(None)
            values = matrix[low - first : high - first]
            # NaN and infinite scales or zeros are legal contents of a file.
            with np.errstate(all="ignore"):
                np.subtract(codes, zero[groups], out=values, dtype=np.float32, casting="unsafe")
                values *= scale[groups]

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (None,) * len(spec.shape)  # a group spans the whole tensor

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        complete = {"group_size": 64, "axis": 0, **params}
        unknown = sorted(set(complete) - {"bits", "group_size", "axis"})
        if unknown:
            raise CodecError(
                "unknown HQQ parameter",
                expected="bits, group_size, axis",
                found=", ".join(unknown),
                code=ErrorCode.PARAMS,
            )
        self.parts(spec, complete)
        return complete

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        rows, columns = _matrix(TensorSpec(name="", shape=panel.shape, dtype="f32"), params)
        matrix, by_row = panel.reshape(rows, columns), params["axis"] == 1
        codes, scale, zero = quantize(matrix.T if by_row else matrix, params["bits"])
        grid = (rows, 1) if by_row else (1, columns)
        words = _pack(codes.T if by_row else codes, HQQ_PACKINGS[params["bits"]])
        return {"data": words, "scale": scale.reshape(grid), "zero": zero.reshape(grid)}


def _pack(codes: np.ndarray, packing: Packing) -> np.ndarray:
    rows, columns = codes.shape
    word_rows = -(-rows // packing.codes)
    words = np.zeros((word_rows, columns), dtypes.to_numpy(packing.word))
    for slot in range(packing.codes):
        row = codes[slot * word_rows : (slot + 1) * word_rows].astype(words.dtype)
        words[: len(row)] |= row << (packing.first - slot * packing.step)
    return words


def _matrix(spec: TensorSpec, params: Params) -> tuple[int, int]:
    """Return the shape of the code matrix; CodecError if the parameters are invalid or do not divide the tensor."""
    bits, size, axis = params.get("bits"), params.get("group_size", 0), params.get("axis")
    dtype = params.get("scale_dtype", SCALE_DTYPES[0])
    for name, value, legal, expected in (
        ("bits", bits, bits in HQQ_PACKINGS, "1, 2, 3, 4 or 8"),
        ("group_size", size, type(size) is int and 0 < size <= MAX_GROUP, f"1 to {MAX_GROUP}"),
        ("axis", axis, axis in (0, 1), "0 or 1"),
        ("scale_dtype", dtype, dtype in SCALE_DTYPES, " or ".join(SCALE_DTYPES)),
    ):
        if not legal:
            raise CodecError(
                f"invalid HQQ {name}", expected=expected, found=repr(value), code=ErrorCode.PARAMS,
                hint="For example hqq:bits=4,group_size=64,axis=0.",
            )  # fmt: skip
    elements = spec.elements
    if elements % size or not elements:
        raise CodecError(
            "the groups do not divide the tensor", expected=f"a multiple of {size} elements",
            found=elements, code="group_size",
        )  # fmt: skip
    return (size, elements // size) if axis == 0 else (elements // size, size)
