"""Layouts of codecs that keep some elements of a row apart: TCA-TBE and bitmasks."""

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
"""Bytes of a bitmap whose bits are counted at a time."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1).astype(np.uint8)


def triple_layout(params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """Three bitmaps of codes, a byte for each coded element, the others whole."""
    rows, columns = dtypes.count(spec.shape[:-1]), spec.shape[-1]
    words = -(-columns // 64)

    def starts(arrays: Arrays) -> Array:
        bits = np.bitwise_or(arrays["plane0"], arrays["plane1"])
        bits |= arrays["plane2"]
        if columns % 64 and (bits[:, -1] >> np.uint64(columns % 64)).any():
            raise CodecError("padding bits of a bitmap are set [P5]", code="P5")
        return _starts(
            _counts(bits.view(np.uint8)), params["n_high"], "the bitmaps do not fit the number of values [P5]"
        )

    fields = {
        "kind": TRIPLE, "pitch": 8 * words, "zero": params["base_exponent"], "stored": params["n_high"],
    }  # fmt: skip
    pointers: dict[str, Callable[[Arrays], Array]] = {name: part(name) for name in PLANES}
    pointers |= {"data": part("high"), "rest": part("full"), "starts": starts}
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, resident=8 * rows)


def bitmask_layout(params: Mapping[str, Any], spec: TensorSpec) -> Layout:
    """The elements that are not zero, under a bitmap whose rows begin at a byte or run on."""
    rows, columns = dtypes.count(spec.shape[:-1]), spec.shape[-1]
    dtype, kept, scale = params["dtype"], params.get("kept", "any"), params.get("scale", "none")
    if scale == "none" and dtype not in ("f32", "f16", "bf16"):
        raise UncoveredError(f"plain {dtype} has no compiled loop", code="dtype")
    run = kept == "run"
    if run and scale != "none":
        raise UncoveredError("a run of values with scales", code=ErrorCode.PARAMS)
    if "bits" in params:
        raise UncoveredError("indices into a codebook under a mask", code=ErrorCode.PARAMS)
    stored = params.get("count", 0) if isinstance(kept, str) else rows * kept
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
        wrong = "the mask does not fit the stored values"
        if not isinstance(kept, str) and (counts != kept).any():
            raise CodecError(
                wrong, expected=f"{kept} values in every row", found=f"{counts.min()} to {counts.max()}", code="mask"
            )
        first = _starts(counts, stored, wrong)
        if kept == "any" and (arrays["starts"].reshape(-1) != first).any():
            raise CodecError(wrong, expected="rows one after the other", found="other starts", code="mask")
        return first

    value_type = TYPES.get(dtype, LISTED)
    fields = {"kind": BITMASK, "pitch": pitch, "offset_type": value_type, "stored": stored}
    pointers: dict[str, Callable[[Arrays], Array]] = {"plane0": part("mask"), "data": part("data"), "starts": starts}
    if value_type == LISTED:
        pointers["listed"] = lambda arrays: byte_floats(dtype)
    if scale != "none":
        fields["scale_type"], _ = scale_type(scale)
        fields["grid_row"] = int(params.get("scales") != "all")
        pointers["scale"] = part("scale")
    return Layout(rows=rows, columns=columns, fields=fields, pointers=pointers, resident=8 * rows)


def _counts(bits: Array) -> Array:
    """Bits set in each row of bytes."""
    rows = max(1, STEP // max(bits.shape[1], 1))
    found = [_ONES[bits[at : at + rows]].sum(axis=1, dtype=np.int64) for at in range(0, len(bits), rows)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _starts(counts: Array, stored: int, wrong: str) -> Array:
    total = int(counts.sum())
    if total != stored:
        raise CodecError(wrong, expected=f"{stored} values", found=f"{total} bits set", code="mask")
    starts: Array = np.cumsum(counts) - counts
    return starts


LAYOUTS: dict[str, Callable[[Mapping[str, Any], TensorSpec], Layout]] = {
    "tca_tbe": triple_layout, "bitmask": bitmask_layout,
}  # fmt: skip
