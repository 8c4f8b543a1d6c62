"""Masked: another codec's values with zeroed tiles."""

from __future__ import annotations

from math import gcd, lcm
from typing import ClassVar

import numpy as np
from attrs import evolve

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Exactness,
    Params,
    Parts,
    Region,
    TensorSpec,
)

from .base import Wrapper, Wrapping, rows_and_columns, rows_of

ROLE = "mask"


class Masked(Wrapper):
    """Block sparsity over another codec.

    Tiles of `block_size` x `block_size` over the matrix (leading axes are rows), smaller at the edges. Part `mask` u8:
    row-major tiles, least significant bit first, 1 = keep. `sparsity` (encoding only): fraction of tiles to zero in
    each row of tiles, least energy first; by default only all-zero tiles.
    """

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Wrapping):
    """`Masked` around one codec."""

    id = "masked"
    added_part: ClassVar[str] = ROLE

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        down, across = self._tiles(spec.shape, params)
        return {**self.inner.parts(spec, self.own), ROLE: ("u8", (-(-down * across // 8),))}

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Use whole mask bytes, so that panels concatenate."""
        grain = self.inner.encode_grain(spec, self.own)
        if len(grain) != 2 or grain[0] is None:
            return (None,) * len(grain)
        across = max(self._tiles(spec.shape, params)[1], 1)
        return (lcm(grain[0], params["block_size"] * (8 // gcd(8, across))), None)

    def error_bound(self, params: Params) -> Exactness:
        return Exactness("bounded") if "sparsity" in params else self.inner.error_bound(self.own)

    def lossless_params(self, params: Params) -> Params:
        return {"block_size": params["block_size"]}

    def zero_share(self, parts: Parts, spec: TensorSpec, params: Params) -> float:
        """Return the fraction of elements in zeroed tiles."""
        (rows, columns), side = rows_and_columns(spec.shape), params["block_size"]
        down, across = self._tiles(spec.shape, params)
        pruned = np.unpackbits(np.asarray(parts[ROLE]), count=down * across, bitorder="little") == 0
        heights = np.minimum(side, rows - side * np.arange(down))
        widths = np.minimum(side, columns - side * np.arange(across))
        zeros = int(heights @ pruned.reshape(down, across) @ widths)
        return zeros / spec.elements if spec.elements else 0.0

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(parts, spec, self.own, region=region, out=out)
        if not out.size:
            return
        side, across = params["block_size"], self._tiles(spec.shape, params)[1]
        start, stop, columns = rows_of(region, spec.shape)
        keep = _kept(parts, start // side, -(-stop // side), across)
        matrix = out.reshape(stop - start, -1)
        for row in np.flatnonzero(~keep.all(axis=1)):
            tile = start // side + int(row)
            rows = matrix[max(tile * side - start, 0) : (tile + 1) * side - start]
            zeroed = np.repeat(keep[row] == 0, side)[columns]
            rows[:, zeroed] = 0

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        """Return the inner layout with groups that lie within tiles; None if no scale of it can be 0."""
        layout = self.inner.code_layout(spec, self.own)
        if layout is None or layout.table is not None or layout.global_scale or layout.scale_dtype == "f8_e8m0":
            return None
        columns = layout.group_sizes(spec.shape)[-1:]
        group = (*(1 for _ in spec.shape[1:]), *(gcd(size, params["block_size"]) for size in columns))
        return evolve(layout, group=group, run=0)

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        """Return the inner codes; scales and offsets are 0 in masked tiles."""
        layout = self.code_layout(spec, params)
        codes = None if layout is None else self.inner.codes(parts, spec, self.own, region)
        if codes is None or layout is None or not spec.shape:
            return None
        side, across = params["block_size"], self._tiles(spec.shape, params)[1]
        start, stop, columns = rows_of(region, spec.shape)
        cell = gcd(layout.group[-1], columns.start, codes.group[-1])
        lead = codes.shape[:-1]
        tiles = (columns.start + np.arange(0, codes.shape[-1], cell)) // side
        keep = _kept(parts, start // side, -(-stop // side), across)[np.arange(start, stop) // side - start // side]
        keep = keep[:, tiles].reshape(*lead, len(tiles)) != 0

        def masked(grid: np.ndarray) -> np.ndarray:
            for axis, size in enumerate((*codes.group[:-1], codes.group[-1] // cell)):
                grid = np.repeat(grid, size, axis=axis) if size > 1 else grid
            return np.where(keep, grid[tuple(slice(size) for size in keep.shape)], np.zeros((), grid.dtype))

        return Codes(
            layout=layout, shape=codes.shape, group=(*(1 for _ in lead), cell), scale=masked(codes.scale),
            offset=None if codes.offset is None else masked(codes.offset),
            unpack=lambda: codes.values, pack=lambda: codes.words,
        )  # fmt: skip

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        side = params["block_size"]
        down, across = self._tiles(panel.shape, params)
        matrix = panel.reshape(rows_and_columns(panel.shape))
        if "sparsity" in params:
            energy = _energy(matrix, side, down, across)
            count = round(params["sparsity"] * across)
            keep = np.ones((down, across), np.uint8)
            np.put_along_axis(keep, np.argsort(energy, axis=1, kind="stable")[:, :count], 0, axis=1)
        else:
            keep = _nonzero(matrix, side, down, across)
        return {
            **self.inner.encode(panel, self.own, activations=activations),
            ROLE: np.packbits(keep.reshape(-1), bitorder="little"),
        }

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        side, share = params.get("block_size", 0), params.get("sparsity", -1)
        legal = type(side) is int and side > 0 and type(share) in (int, float) and 0 <= share <= 1
        if not legal or len(params) > 2:
            raise CodecError(
                "invalid masked parameters", code=ErrorCode.PARAMS,
                expected="block_size of 1 or more, optionally sparsity from 0 to 1",
                found=", ".join(f"{key}={value}" for key, value in params.items()) or "no parameters",
                hint="For example masked:block_size=16,sparsity=0.5(int4).",
            )  # fmt: skip
        return params

    def _tiles(self, shape: tuple[int, ...], params: Params) -> tuple[int, int]:
        rows, columns = rows_and_columns(shape)
        return -(-rows // params["block_size"]), -(-columns // params["block_size"])


def _kept(parts: Parts, first: int, last: int, across: int) -> np.ndarray:
    """Return the bits of rows of tiles, [rows, across]: 1 for a tile that is kept."""
    start, stop = first * across, last * across
    packed = parts[ROLE][start // 8 : -(-stop // 8)]
    return np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + stop - start].reshape(-1, across)


def _nonzero(matrix: np.ndarray, side: int, down: int, across: int) -> np.ndarray:
    """Return 1 for each tile with a value other than +0.0, the value of zeroed tiles."""
    padded = np.zeros((down * side, across * side), bool)
    padded[: matrix.shape[0], : matrix.shape[1]] = (matrix != 0) | np.signbit(matrix)
    return np.any(padded.reshape(down, side, across, side), axis=(1, 3)).astype(np.uint8)


def _energy(matrix: np.ndarray, side: int, down: int, across: int) -> np.ndarray:
    padded = np.zeros((down * side, across * side), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    energy: np.ndarray = np.square(padded, dtype=np.float64).reshape(down, side, across, side).sum(axis=(1, 3))
    return energy
