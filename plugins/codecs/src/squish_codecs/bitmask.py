"""Bitmask: the values that are not zero, and a bit for each element that says where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np

from squish_core.api import Codec, CodecError, Params, Parts, Region, TensorSpec, dtypes

SCALES = ("none", "f32", "f16", "bf16")
TYPES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8")


class Bitmask(Codec):
    """A matrix whose zeros are not stored. Parts: `data`, the other values row by row; `mask` u8 [rows, columns / 8],
    the first column in the lowest bit; with `kept=any` also `starts` i64 [rows, 1], where each row begins in `data`.
    Parameters:

    dtype    f32 f16 bf16 f8_e4m3 f8_e5m2 i8: that of `data`; required
    kept     any: `data` [count]; a number: so many values in every row, `data` [rows, kept] (2:4: half of them)
    count    with kept=any: values in all
    scale    none    f32 f16 bf16: values times `scale` [rows, 1], in float32; none: values as they are, in their dtype
    scales   row     row; all: one `scale` [1, 1] for all rows

    Source: compressed-tensors 0.11, sparse-bitmask and sparse-24-bitmask.
    """

    scanned = ("starts",)

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        dtype, kept, scale = _checked(params)
        if len(spec.shape) != 2:
            raise CodecError("a bitmask needs a matrix", found=f"shape {list(spec.shape)}", code="shape")
        rows, columns = spec.shape
        shape = (int(params.get("count", 0)),) if kept is None else (rows, kept)
        made: dict[str, tuple[str, tuple[int, ...]]] = {
            "data": (dtype, shape),
            "mask": ("u8", (rows, -(-columns // 8))),
        }
        if kept is None:
            made["starts"] = ("i64", (rows, 1))
        if scale != "none":
            made["scale"] = (scale, (1 if params.get("scales") == "all" else rows, 1))
        return made

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (1, None)

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        dtype, _, scale = _checked(params)
        return dtype if scale == "none" else "f32"

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        _, kept, scale = _checked(params)
        rows = region[0]
        mask = np.unpackbits(parts["mask"][rows], axis=1, count=spec.shape[1], bitorder="little").view(bool)
        counts = mask.sum(axis=1)
        if kept is None:
            values = self._between(parts, params, rows, counts)
        else:
            _check(bool((counts == kept).all()), f"{kept} values in every row", f"{counts.min()} to {counts.max()}")
            values = parts["data"][rows].reshape(-1)
        out[...] = 0
        if scale == "none":
            out[mask] = values
            return
        with np.errstate(all="ignore"):
            out[mask] = values.astype(np.float32)
            out *= parts["scale"][slice(0, 1) if params.get("scales") == "all" else rows].astype(np.float32)

    def _between(self, parts: Parts, params: Params, rows: slice, counts: np.ndarray) -> np.ndarray:
        """The values of rows that lie one after the other, from where the first begins."""
        starts = parts["starts"][rows].reshape(-1)
        if not starts.size:
            return np.empty(0, dtypes.to_numpy(params["dtype"]))
        total = int(params["count"])
        wanted = starts[0] + np.cumsum(counts) - counts
        inside = int(starts[0]) >= 0 and int(wanted[-1]) + int(counts[-1]) <= total
        _check(
            inside and bool((starts == wanted).all()), "rows one after the other", f"starts {starts[:4].tolist()}..."
        )
        values: np.ndarray = parts["data"][int(starts[0]) : int(wanted[-1]) + int(counts[-1])]
        return values


def _check(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise CodecError("the mask does not fit the stored values", expected=expected, found=found, code="mask")


def _checked(params: Params) -> tuple[Any, int | None, Any]:
    """dtype, values kept in a row (None: any number) and dtype of the scale."""
    dtype, kept, scale = params.get("dtype"), params.get("kept", "any"), params.get("scale", "none")
    count = params.get("count", 0)
    legal = params.get("scales", "row") in ("row", "all")
    legal = legal and dtype in TYPES and scale in SCALES and type(count) is int and count >= 0
    if not legal or not (kept == "any" or (type(kept) is int and kept >= 0)):
        raise CodecError("bitmask cannot take these parameters", found=repr(dict(params))[:120], code="params")
    return dtype, None if kept == "any" else kept, scale
