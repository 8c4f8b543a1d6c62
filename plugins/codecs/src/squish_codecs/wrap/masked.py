"""Masked: another codec's values with zeroed tiles."""

from __future__ import annotations

from math import gcd, lcm

import numpy as np
from attrs import evolve

from squish_core.api import (
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

from .correction import Corrected, rows_and_columns, rows_of

ROLE = "mask"


class Masked(Corrected):
    """Block sparsity over another codec.

    Tiles of `block_size` x `block_size` over the matrix (leading axes are rows), smaller at the edges. Part `mask` u8:
    row-major tiles, least significant bit first, 1 = keep. `sparsity` (encoding only): fraction of tiles to zero in
    each row of tiles, least energy first; by default only all-zero tiles.
    """

    unsliced_parts = (ROLE,)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        down, across = self._tiles(spec.shape)
        return {**self.inner.parts(spec), ROLE: ("u8", (-(-down * across // 8),))}

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Use whole mask bytes, so that panels concatenate."""
        grain = self.inner.encode_grain(spec)
        if len(grain) != 2 or grain[0] is None:
            return (None,) * len(grain)
        across = max(self._tiles(spec.shape)[1], 1)
        return (lcm(grain[0], self.params["block_size"] * (8 // gcd(8, across))), None)

    @property
    def error_bound(self) -> Exactness:
        return Exactness("bounded") if "sparsity" in self.params else self.inner.error_bound

    @property
    def lossless_params(self) -> Params:
        return {"block_size": self.params["block_size"]}

    def zero_share(self, parts: Parts, spec: TensorSpec) -> float:
        """Return the fraction of elements in zeroed tiles."""
        (rows, columns), side = rows_and_columns(spec.shape), self.params["block_size"]
        down, across = self._tiles(spec.shape)
        pruned = np.unpackbits(np.asarray(parts[ROLE]), count=down * across, bitorder="little") == 0
        heights = np.minimum(side, rows - side * np.arange(down))
        widths = np.minimum(side, columns - side * np.arange(across))
        zeros = int(heights @ pruned.reshape(down, across) @ widths)
        return zeros / spec.elements if spec.elements else 0.0

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(parts, spec, region=region, out=out)
        if not out.size:
            return
        side, across = self.params["block_size"], self._tiles(spec.shape)[1]
        start, stop, columns = rows_of(region, spec.shape)
        keep = _kept(parts, start // side, -(-stop // side), across)
        matrix = out.reshape(stop - start, -1)
        for row in np.flatnonzero(~keep.all(axis=1)):
            tile = start // side + int(row)
            rows = matrix[max(tile * side - start, 0) : (tile + 1) * side - start]
            zeroed = np.repeat(keep[row] == 0, side)[columns]
            rows[:, zeroed] = 0

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Return the inner layout with groups that lie within tiles; None if no scale of it can be 0."""
        layout = self.inner.code_layout(spec)
        if layout is None or layout.table is not None or layout.global_scale or layout.scale_dtype == "f8_e8m0":
            return None
        columns = layout.group_sizes(spec.shape)[-1:]
        group = (*(1 for _ in spec.shape[1:]), *(gcd(size, self.params["block_size"]) for size in columns))
        return evolve(layout, group=group, run=0)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        """Return the inner codes; scales and offsets are 0 in masked tiles."""
        layout = self.code_layout(spec)
        codes = None if layout is None else self.inner.codes(parts, spec, region)
        if codes is None or layout is None or not spec.shape:
            return None
        side, across = self.params["block_size"], self._tiles(spec.shape)[1]
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
            layout=layout,
            shape=codes.shape,
            group=(*(1 for _ in lead), cell),
            scale=masked(codes.scale),
            offset=None if codes.offset is None else masked(codes.offset),
            unpack=lambda: codes.values,
            pack=lambda: codes.words,
        )

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        side = self.params["block_size"]
        down, across = self._tiles(panel.shape)
        matrix = panel.reshape(rows_and_columns(panel.shape))
        if "sparsity" in self.params:
            energy = _energy(matrix, side, down, across)
            count = round(self.params["sparsity"] * across)
            keep = np.ones((down, across), np.uint8)
            np.put_along_axis(keep, np.argsort(energy, axis=1, kind="stable")[:, :count], 0, axis=1)
        else:
            keep = _nonzero(matrix, side, down, across)
        return {
            **self.inner.encode(panel, activations=activations),
            ROLE: np.packbits(keep.reshape(-1), bitorder="little"),
        }

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        side, share = options.get("block_size", 0), options.get("sparsity", -1)
        legal = type(side) is int and side > 0 and type(share) in (int, float) and 0 <= share <= 1
        if not legal or len(options) > 2:
            raise CodecError(
                "invalid masked parameters",
                code=ErrorCode.PARAMS,
                expected="block_size of 1 or more, optionally sparsity from 0 to 1",
                found=", ".join(f"{key}={value}" for key, value in options.items()) or "no parameters",
                hint="For example masked:block_size=16,sparsity=0.5(int4).",
            )
        return options

    def _tiles(self, shape: tuple[int, ...]) -> tuple[int, int]:
        (rows, columns), side = rows_and_columns(shape), self.params["block_size"]
        return -(-rows // side), -(-columns // side)


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
