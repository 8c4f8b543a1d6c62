"""HQQ: codes of 1, 2, 3, 4 or 8 bits in groups that may span rows of the tensor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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


class Form(NamedTuple):
    """The checked parameters."""

    bits: int
    group_size: int
    axis: int
    scale_dtype: str

    @property
    def packing(self) -> Packing:
        """The packing of codes in words."""
        return HQQ_PACKINGS[self.bits]

    def matrix(self, elements: int) -> tuple[int, int]:
        """Return the shape of the code matrix; CodecError if the groups do not divide the tensor."""
        if elements % self.group_size or not elements:
            raise CodecError(
                "the groups do not divide the tensor",
                expected=f"a multiple of {self.group_size} elements",
                found=elements,
                code="group_size",
            )
        lines = elements // self.group_size
        return (self.group_size, lines) if self.axis == 0 else (lines, self.group_size)


class Hqq(Codec):
    """`(q - zero) * scale` in float32, over a matrix of groups: each column with `axis` 0, each row with 1.

    Parameters: `bits`, `group_size`, `axis`, and `scale_dtype` (f32, f16 or bf16) of stored tensors; the encoder has
    f32. Parts: `data`, the matrix packed along its rows: with s rows of words, a word in row i holds rows i, i + s,
    i + 2s, ..., the first in the highest bits; `scale` and `zero` per group.
    Source: uqff-formats, section 4.
    """

    def bind(self) -> None:
        self.form = _check_params(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, columns = self.form.matrix(spec.elements)
        packing, dtype = self.form.packing, self.form.scale_dtype
        grid = (1, columns) if self.form.axis == 0 else (rows, 1)
        if packing.word == "u8" and rows % packing.codes:
            raise CodecError(
                "the rows of codes do not fill whole bytes",
                code="shape",
                expected=f"a multiple of {packing.codes}",
                found=rows,
            )
        return {
            "data": (packing.word, (-(-rows // packing.codes), columns)),
            "scale": (dtype, grid),
            "zero": (dtype, grid),
        }

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        if not spec.shape:
            return ()
        columns = self.form.matrix(spec.elements)[1]
        inner = dtypes.count(spec.shape[1:])
        return (max(1, columns // math.gcd(columns, inner)), *(None for _ in spec.shape[1:]))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        rows, columns = self.form.matrix(spec.elements)
        packing, by_row = self.form.packing, self.form.axis == 1
        mask = (1 << self.form.bits) - 1
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

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (None,) * len(spec.shape)  # a group spans the whole tensor

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        complete = {"group_size": 64, "axis": 0, **options}
        unknown = sorted(set(complete) - {"bits", "group_size", "axis"})
        if unknown:
            raise CodecError(
                "unknown HQQ parameter",
                expected="bits, group_size, axis",
                found=", ".join(unknown),
                code=ErrorCode.PARAMS,
            )
        cls.from_params(complete).parts(spec)
        return complete

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        rows, columns = self.form.matrix(panel.size)
        matrix, by_row = panel.reshape(rows, columns), self.form.axis == 1
        codes, scale, zero = quantize(matrix.T if by_row else matrix, self.form.bits)
        grid = (rows, 1) if by_row else (1, columns)
        words = _pack(codes.T if by_row else codes, self.form.packing)
        return {"data": words, "scale": scale.reshape(grid), "zero": zero.reshape(grid)}


def _pack(codes: np.ndarray, packing: Packing) -> np.ndarray:
    rows, columns = codes.shape
    word_rows = -(-rows // packing.codes)
    words = np.zeros((word_rows, columns), dtypes.to_numpy(packing.word))
    for slot in range(packing.codes):
        row = codes[slot * word_rows : (slot + 1) * word_rows].astype(words.dtype)
        words[: len(row)] |= row << (packing.first - slot * packing.step)
    return words


def _check_params(params: Params) -> Form:
    """Return the parameters; CodecError if one is invalid."""
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
                f"invalid HQQ {name}",
                expected=expected,
                found=repr(value),
                code=ErrorCode.PARAMS,
                hint="For example hqq:bits=4,group_size=64,axis=0.",
            )
    values: Any = (bits, size, axis, dtype)
    return Form(*values)
