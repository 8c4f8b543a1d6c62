"""Masked: another codec's values with zeroed tiles."""

from __future__ import annotations

from math import gcd, lcm
from typing import ClassVar

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec

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
        first, last = start // side * across, -(-stop // side) * across
        packed = parts[ROLE][first // 8 : -(-last // 8)]
        keep = np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + last - first].reshape(-1, across)
        matrix = out.reshape(stop - start, -1)
        for row in np.flatnonzero(~keep.all(axis=1)):
            tile = start // side + int(row)
            rows = matrix[max(tile * side - start, 0) : (tile + 1) * side - start]
            zeroed = np.repeat(keep[row] == 0, side)[columns]
            rows[:, zeroed] = 0

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
