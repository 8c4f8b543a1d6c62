"""AWQ for GEMV: codes in order along the input, with scales and zero points padded to whole words; and the layout of
its fast kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import frozen
from squish_codecs.api import Packing, Scheme, decode_affine

from squish_core.api import Codec, CodecError, Params, Parts, Region, TensorSpec

TILE, ROWS = 64, 4
"""Columns and rows of a tile of the fast kernel."""
LANES = np.array([0, 4, 8, 12], np.uint16)
NIBBLES = Packing(4, "i32", "lsb")


class AwqGemv(Codec):
    """`(q - zero) * scale`: parts `data` i32 [out, in / 8], `scale` f16 [out, 8 * padded], `offset` i32 [out, padded].

    Parameters: `group_size`; `padded`, the number of words per row of zero points.
    Source: autoawq 0.2.9, WQLinear_GEMV.
    """

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        padded, groups = self.params["padded"], _groups(spec, self.params)
        if 8 * padded < groups:
            raise CodecError("too few zero points", expected=f"{groups} per row", found=8 * padded, code="shape")
        rows, columns = spec.shape
        return {
            "data": ("i32", (rows, columns // 8)),
            "scale": ("f16", (rows, 8 * padded)),
            "offset": ("i32", (rows, padded)),
        }

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (1, self.params["group_size"])

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        size = self.params["group_size"]
        scheme = Scheme.of({"bits": 4, "group_size": size, "word": "i32", "offset": "zero_point", "scale_dtype": "f16"})
        decode_affine(scheme, {**parts, "offset": _Zeros(parts["offset"])}, spec.shape, region, out)


class AwqFast(Codec):
    """`q * scale + offset`: parts `data` i16 [out / 4, in], `scale` and `offset` f16 [8 * padded, out].

    Parameters: see `AwqGemv`. In tiles of 4 rows by 64 columns, row by row, each word has four consecutive codes; 32
    columns are in the order of nibble extraction.
    Source: autoawq 0.2.9, WQLinear_GEMVFast; gptqmodel 7.7, pack_intweight.
    """

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        padded, groups = self.params["padded"], _groups(spec, self.params)
        if 8 * padded < groups:
            raise CodecError("too few scales", expected=f"{groups} per column", found=8 * padded, code="shape")
        rows, columns = spec.shape
        if rows % ROWS or columns % TILE:
            raise CodecError(
                "the shape is not a multiple of the kernel's tiles",
                expected=f"multiples of {ROWS} rows and {TILE} columns",
                found=f"shape {list(spec.shape)}",
                code="shape",
            )
        grid = ("f16", (8 * padded, rows))
        return {"data": ("i16", (rows // ROWS, columns)), "scale": grid, "offset": grid}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (ROWS, math.lcm(TILE, self.params["group_size"]))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        (rows, columns), size = region, self.params["group_size"]
        words = parts["data"][rows.start // ROWS : rows.stop // ROWS, columns].view(np.uint16)
        lanes = (words[..., None] >> LANES & 15).astype(np.uint8)
        tiles = lanes.reshape(len(words), -1, ROWS, TILE).swapaxes(1, 2)
        out[...] = tiles.reshape(-1, 4, 2, 4).transpose(0, 3, 1, 2).reshape(out.shape)
        groups = slice(columns.start // size, columns.stop // size)
        scale, offset = (parts[role][groups, rows].T.astype(np.float32) for role in ("scale", "offset"))
        blocks = out.reshape(len(out), -1, size)
        with np.errstate(all="ignore"):
            blocks *= scale[..., None]
            blocks += offset[..., None]


def _groups(spec: TensorSpec, params: Params) -> int:
    if len(spec.shape) != 2 or spec.shape[1] % params["group_size"] or params["group_size"] % 8:
        raise CodecError(
            "invalid group size",
            expected=f"a matrix, with columns divisible by {params['group_size']}",
            found=f"shape {list(spec.shape)}",
            code="group_size",
        )
    return spec.shape[1] // params["group_size"]


@frozen
class _Zeros:
    """Packed zero points, unpacked on access."""

    words: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.words.shape[0], 8 * self.words.shape[1])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8)

    def __getitem__(self, key: tuple[slice, slice]) -> np.ndarray:
        rows, groups = key
        return NIBBLES.unpack(self.words[rows], self.shape[1])[:, groups]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:, :], dtype)
