"""Squish's rotated 2-bit weights: a palette, a low-rank and a sparse term, then the inverse rotation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from squish_codecs.api import Palette

from squish_core.api import Codec, CodecError, Params, Parts, Region, TensorError, TensorSpec

META = 16


class Sqint2(Codec):
    """`Hl.T @ ((nf2[code] - zero) * scale + left @ right + sparse) @ Hr` in float32; a matrix, decoded at once.

    Parameters: `group_size`, `rank`, `nonzero`, and `left_start`, `right_start`: the seeds of the rotations'
    signs (-1: not rotated). Part `meta` f64 [16] holds these numbers as the directory stores them. H is
    Sylvester's Hadamard matrix over sqrt(n), its columns times the signs.
    Source: observed behavior of Squish; docs/formats/npydir.md.
    """

    def bind(self) -> None:
        self.palette = Palette.from_params(_palette(self.params))  # the first term

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, columns = _matrix(spec)
        inner = self.palette.parts(spec)
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {**inner, "meta": ("f64", (META,))}
        if self.params["rank"]:
            arrays |= {"left": ("f16", (rows, self.params["rank"])), "right": ("f16", (self.params["rank"], columns))}
        if self.params["nonzero"]:
            count = (self.params["nonzero"],)
            arrays |= {"rows": ("i32", count), "columns": ("i32", count), "values": ("f16", count)}
        return arrays

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (None,) * len(spec.shape)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.palette.decode(parts, spec, region=region, out=out)
        if self.params["rank"]:
            out += parts["left"][...].astype(np.float32) @ parts["right"][...].astype(np.float32)
        if self.params["nonzero"]:
            np.add.at(out, _places(parts, spec), parts["values"][...].astype(np.float32))
        if self.params["left_start"] >= 0:
            out[...] = _hadamard(out.T).T * _signs(self.params["left_start"], len(out))[:, None]
        if self.params["right_start"] >= 0:
            out[...] = _hadamard(out) * _signs(self.params["right_start"], out.shape[1])

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        if self.params["nonzero"]:
            _places(parts, spec)


def _places(parts: Parts, spec: TensorSpec) -> tuple[np.ndarray, ...]:
    """Return rows and columns of the sparse values, checked against the matrix."""
    places = parts["rows"][...], parts["columns"][...]
    for indices, size in zip(places, spec.shape):
        if indices.min() < 0 or indices.max() >= size:
            raise CodecError("a sparse value is outside the matrix", expected=f"0 to {size - 1}", code="sparse")
    return places


def sqint2_params(meta: Sequence[float], nonzero: int, shape: tuple[int, ...]) -> dict[str, int]:
    """Parse the sixteen numbers of `__sqint2_meta`; TensorError if unsupported."""
    if not np.isfinite(meta).all():
        raise TensorError("invalid description in __sqint2_meta: not finite", code="meta")
    version, columns, rows, group, start, _, left, right, rank = (int(number) for number in meta[:9])
    if version != 1 or (rows, columns) != shape:
        raise TensorError(
            "the description in __sqint2_meta does not match the tensor",
            expected=f"version 1, {list(shape)}",
            found=f"version {version}, {[rows, columns]}",
            code="meta",
        )
    for flag, size in ((left, rows), (right, columns)):
        if flag and size & (size - 1):
            raise TensorError(
                "unsupported rotation, whose matrix depends on the writer",
                expected="a size of a power of 2",
                found=size,
                code="rotation",
                hint="Decode it with the software that wrote it.",
            )
    return {
        "group_size": group,
        "rank": rank,
        "nonzero": nonzero,
        "left_start": start if left else -1,
        "right_start": start + 1 if right else -1,
    }


def _matrix(spec: TensorSpec) -> tuple[int, int]:
    if len(spec.shape) != 2:
        raise TensorError("rotated 2-bit weights must be a matrix", found=f"shape {list(spec.shape)}", code="rank")
    return spec.shape[0], spec.shape[1]


def _palette(params: Params) -> dict[str, object]:
    return {
        "bits": 2,
        "table": "nf2",
        "group_size": params["group_size"],
        "scale_dtype": "f32",
        "offset": "zero_point",
        "offset_dtype": "f32",
    }


def _signs(start: int, size: int) -> np.ndarray:
    return np.random.default_rng(start).choice([-1, 1], size=size).astype(np.float32)


def _hadamard(matrix: np.ndarray) -> np.ndarray:
    """Apply the normalized Sylvester-Hadamard transform to rows, by halves."""
    rows, size = matrix.shape
    out = np.ascontiguousarray(matrix, np.float32)
    half = 1
    while half < size:
        pairs = out.reshape(rows, -1, 2, half)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return out.reshape(rows, size) / np.float32(np.sqrt(size))
