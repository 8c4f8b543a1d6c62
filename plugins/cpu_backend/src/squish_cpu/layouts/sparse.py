"""Layouts of TCA-TBE and bitmasks, whose elements are in several arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from squish_core.api import CodecError, ErrorCode, TensorSpec, dtypes

from .base import (
    BITMASK,
    LISTED,
    TRIPLE,
    TYPES,
    Array,
    Arrays,
    Layout,
    UncoveredError,
    byte_floats,
    part,
    scale_type,
)

PLANES = ("plane0", "plane1", "plane2")
STEP = 1 << 20
"""Bitmap bytes per iteration."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1).astype(np.uint8)


def triple_layout(params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """Return the layout of TCA-TBE: three bitmaps, a byte per coded element, and full values."""
    rows, columns = dtypes.count(spec.shape[:-1]), spec.shape[-1]
    words = -(-columns // 64)

    def starts(arrays: Arrays) -> Array:
        bits = np.bitwise_or(arrays["plane0"], arrays["plane1"])
        bits |= arrays["plane2"]
        if columns % 64 and (bits[:, -1] >> np.uint64(columns % 64)).any():
            raise CodecError("nonzero padding bits in a bitmap [P5]", code="P5")
        return _starts(
            _counts(bits.view(np.uint8)), params["n_high"], "the bitmaps do not match the number of values [P5]"
        )

    fields = {
        "kind": TRIPLE, "pitch": 8 * words, "zero": params["base_exponent"], "stored": params["n_high"],
    }  # fmt: skip
    pointers: dict[str, Callable[[Arrays], Array]] = {name: part(name) for name in PLANES}
    pointers |= {"data": part("high"), "rest": part("full"), "starts": starts}
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, resident=8 * rows)


def bitmask_layout(params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """Return the layout of nonzero elements under a bitmap with byte-aligned or contiguous rows."""
    rows, columns = dtypes.count(spec.shape[:-1]), spec.shape[-1]
    dtype, kept, scale = params["dtype"], params.get("kept", "any"), params.get("scale", "none")
    if scale == "none" and dtype not in ("f32", "f16", "bf16"):
        raise UncoveredError(f"no compiled kernel for dense {dtype}", code="dtype")
    run = kept == "run"
    if run and scale != "none":
        raise UncoveredError("contiguous values with scales", code=ErrorCode.PARAMS)
    if "bits" in params:
        raise UncoveredError("indices into a codebook under a mask", code=ErrorCode.PARAMS)
    n_values = params.get("count", 0) if isinstance(kept, str) else rows * kept
    pitch = columns if run else -(-columns // 8) * 8

    def starts(arrays: Arrays) -> Array:
        if run:
            bits = np.unpackbits(arrays["mask"], count=rows * columns, bitorder="little").reshape(rows, columns)
            counts = bits.sum(axis=1, dtype=np.int64)
        else:
            mask = arrays["mask"]
            if columns % 8:
                mask = mask.copy()
                mask[:, -1] &= np.uint8((1 << columns % 8) - 1)
            counts = _counts(mask)
        wrong = "the mask does not match the stored values"
        if not isinstance(kept, str) and (counts != kept).any():
            raise CodecError(
                wrong, expected=f"{kept} values per row", found=f"{counts.min()} to {counts.max()}", code="mask"
            )
        first = _starts(counts, n_values, wrong)
        if kept == "any" and (arrays["starts"].reshape(-1) != first).any():
            raise CodecError(wrong, expected="contiguous rows", found="other starts", code="mask")
        return first

    value_type = TYPES.get(dtype, LISTED)
    fields = {"kind": BITMASK, "pitch": pitch, "offset_type": value_type, "stored": n_values}
    pointers: dict[str, Callable[[Arrays], Array]] = {"plane0": part("mask"), "data": part("data"), "starts": starts}
    if value_type == LISTED:
        pointers["listed"] = lambda arrays: byte_floats(dtype)
    if scale != "none":
        fields["scale_type"], _ = scale_type(scale)
        fields["grid_row"] = int(params.get("scales") != "all")
        pointers["scale"] = part("scale")
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, resident=8 * rows)


def _counts(bits: Array) -> Array:
    """Count the bits set in each row of bytes."""
    rows = max(1, STEP // max(bits.shape[1], 1))
    counts = [_ONES[bits[at : at + rows]].sum(axis=1, dtype=np.int64) for at in range(0, len(bits), rows)]
    return np.concatenate(counts) if counts else np.zeros(0, np.int64)


def _starts(counts: Array, n_values: int, wrong: str) -> Array:
    total = int(counts.sum())
    if total != n_values:
        raise CodecError(wrong, expected=f"{n_values} values", found=f"{total} bits set", code="mask")
    starts: Array = np.cumsum(counts) - counts
    return starts


LAYOUTS: dict[str, Callable[[Mapping[str, Any], TensorSpec], Layout]] = {
    "tca_tbe": triple_layout, "bitmask": bitmask_layout,
}  # fmt: skip
