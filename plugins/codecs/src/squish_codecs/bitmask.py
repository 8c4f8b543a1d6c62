"""Bitmask: the nonzero values, and a bit per element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import Any

import numpy as np

from squish_core.api import (
    Codec,
    CodecError,
    ErrorCode,
    Params,
    PartArray,
    Parts,
    Region,
    TensorSpec,
    decode_all,
    dtypes,
)

from .affine.decode import PANEL
from .affine.encode import check_finite, step_of
from .packing.bits import BIT_COUNTS, Packing
from .palette.codec import nearest
from .palette.fit import FITS, codebook

BITMASK_SCALES = ("none", "f32", "f16", "bf16")
RUN = "run"
NAMES = frozenset(("dtype", "kept", "count", "scale", "scales", "bits", "sparsity"))
BITMASK_DTYPES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8")


class Bitmask(Codec):
    """A sparse matrix. Parts: `data`, the nonzero values row by row; `mask` u8 [rows, columns / 8], first column in the
    lowest bit; with `kept=any` also `starts` i64 [rows, 1], the start of each row in `data`. With `kept=run`, `mask`
    [elements / 8] is contiguous across rows, and the tensor may have any rank (a row shares the first index).
    Parameters:

    dtype    f32 f16 bf16 f8_e4m3 f8_e5m2 i8: dtype of `data`; required
    kept     any, run: `data` [count]; a number: values per row, `data` [rows, kept] (2:4: half of the columns)
    count    with kept=any and kept=run: the total number of values
    scale    none    f32 f16 bf16: values times `scale` [rows, 1] in float32; none: values in their own dtype.
                     Without kept=run zeros are multiplied too, like in compressed-tensors: -0.0 for a negative scale,
                     NaN for an infinite one
    scales   row     row; all: one `scale` [1, 1] for all rows
    bits     none    1..8, with kept=run and no scale: `data` u8 [count * bits / 8] are indices of this width, first
                     lowest, into `codebook` [2**bits] of `dtype`

    The encoder supports kept=run: floats, indices into a codebook fitted to the nonzero values, or dtype=i8 with a
    scale. `sparsity` drops this fraction of each row (an output channel of a convolution), smallest magnitudes first;
    by default only zeros are dropped.
    Sources: compressed-tensors 0.11, sparse-bitmask and sparse-24-bitmask; Core ML constexpr_sparse_to_dense,
    constexpr_lut_to_sparse and constexpr_sparse_blockwise_shift_scale.
    """

    unsliced_parts = ("starts", "mask", "codebook")  # without `starts`, counting the bits before a row gives its start

    def bind(self) -> None:
        self.form = _check_params(self.params)  # dtype, values per row (None: any number; RUN), scale dtype

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        dtype, per_row, scale = self.form
        if per_row == RUN:
            run: dict[str, tuple[str, tuple[int, ...]]] = {
                "data": (dtype, (self.params.get("count", 0),)),
                "mask": ("u8", (-(-spec.elements // 8),)),
            }
            if bits := self.params.get("bits"):
                indices = ("u8", (_indices(bits).words(self.params.get("count", 0)),))
                return {"data": indices, "mask": run["mask"], "codebook": (dtype, (1 << bits,))}
            return run if scale == "none" else {**run, "scale": (scale, (*spec.shape[:1], 1))}
        if len(spec.shape) != 2:
            raise CodecError("a bitmask needs a matrix", found=f"shape {list(spec.shape)}", code="shape")
        rows, columns = spec.shape
        shape = (int(self.params.get("count", 0)),) if per_row is None else (rows, per_row)
        parts: dict[str, tuple[str, tuple[int, ...]]] = {
            "data": (dtype, shape),
            "mask": ("u8", (rows, -(-columns // 8))),
        }
        if per_row is None:
            parts["starts"] = ("i64", (rows, 1))
        if scale != "none":
            parts["scale"] = (scale, (1 if self.params.get("scales") == "all" else rows, 1))
        return parts

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (1, *(None,) * (len(spec.shape) - 1)) if spec.shape else ()

    def value_dtype(self, spec: TensorSpec) -> str:
        dtype, _, scale = self.form
        return dtype if scale == "none" else "f32"

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        _, per_row, scale = self.form
        if per_row == RUN:
            _decode_run(parts, spec, self.params, region, out)
            return
        rows = region[0]
        mask = np.unpackbits(parts["mask"][rows], axis=1, count=spec.shape[1], bitorder="little").view(bool)
        counts = mask.sum(axis=1)
        if per_row is None:
            values = self._between(parts, self.params, rows, counts)
        else:
            _check(bool((counts == per_row).all()), f"{per_row} values per row", f"{counts.min()} to {counts.max()}")
            values = parts["data"][rows].reshape(-1)
        out[...] = 0
        if scale == "none":
            out[mask] = values
            return
        with np.errstate(all="ignore"):
            out[mask] = values.astype(np.float32)
            out *= parts["scale"][slice(0, 1) if self.params.get("scales") == "all" else rows].astype(np.float32)

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        decode_all(self, parts, spec)

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        complete = {"kept": RUN, "dtype": "f16", **options}
        _, per_row, scale = _check_params(complete)
        encodable = (
            complete["dtype"] in BITMASK_SCALES[1:]
            if scale == "none"
            else complete["dtype"] == "i8" and "scales" not in complete
        )
        if per_row != RUN or not encodable:
            raise CodecError(
                "the encoder supports kept=run, with floats without a scale or i8 with one",
                code=ErrorCode.PARAMS,
                expected="such as bitmask:sparsity=0.5",
                found=repr(dict(options))[:120],
            )
        return complete

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec) -> Params:
        """Count the values after pruning."""
        return {**self.params, "count": sum(int(np.count_nonzero(_prune(panel, self.params))) for panel in panels())}

    def params_of_panel(self, arrays: Mapping[str, np.ndarray]) -> Params:
        return {**self.params, "count": int(BIT_COUNTS[arrays["mask"]].sum(dtype=np.int64))}

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Use whole mask bytes, so that panels concatenate."""
        if self.params.get("bits"):  # one codebook per tensor
            return (None,) * len(spec.shape)
        grain = self.grain(spec)
        return (8 // gcd(8, max(dtypes.count(spec.shape[1:]), 1)), *grain[1:]) if grain else grain

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        values = _prune(panel, self.params)
        mask = values.reshape(-1) != 0
        nonzero, packed = values.reshape(-1)[mask], np.packbits(mask, bitorder="little")
        if bits := self.params.get("bits"):
            check_finite(panel, nonzero)
            book = codebook(nonzero[:, None].astype(np.float32), 1 << bits, FITS[0]).astype(nonzero.dtype)
            codes = nearest(book[:, 0].astype(np.float32), nonzero.astype(np.float32))
            return {"data": _indices(bits).pack(codes), "mask": packed, "codebook": book[:, 0]}
        if self.params["dtype"] != "i8":
            return {"data": nonzero, "mask": packed}
        rows = values.reshape(panel.shape[0] if panel.ndim else 1, dtypes.count(panel.shape[1:]))
        check_finite(panel, np.abs(rows).max(axis=1, initial=0))
        scale = step_of(np.abs(rows).max(axis=1, initial=0).astype(np.float64) / 127, self.params["scale"])
        codes = np.rint(rows / scale.astype(np.float32)[:, None]).astype(np.int8)
        return {"data": codes.reshape(-1)[mask], "mask": packed, "scale": scale[:, None]}

    def _between(self, parts: Parts, params: Params, rows: slice, counts: np.ndarray) -> np.ndarray:
        """Return the values of consecutive rows; CodecError if their starts are inconsistent."""
        starts = parts["starts"][rows].reshape(-1)
        if not starts.size:
            return np.empty(0, dtypes.to_numpy(params["dtype"]))
        total = int(params["count"])
        expected = starts[0] + np.cumsum(counts) - counts
        inside = int(starts[0]) >= 0 and int(expected[-1]) + int(counts[-1]) <= total
        _check(inside and bool((starts == expected).all()), "contiguous rows", f"starts {starts[:4].tolist()}...")
        values: np.ndarray = parts["data"][int(starts[0]) : int(expected[-1]) + int(counts[-1])]
        return values


def _decode_run(parts: Parts, spec: TensorSpec, params: Params, region: Region, out: np.ndarray) -> None:
    """Decode rows of a contiguous mask; at the end, the number of bits must equal the number of values."""
    inner = dtypes.count(spec.shape[1:])
    first, last = (region[0].start * inner, region[0].stop * inner) if region else (0, 1)
    start, mask = mask_bits(parts["mask"], first, last, spec.elements, params.get("count", 0))
    count = int(mask.sum())
    values = _stored_values(parts, params, start, count)
    if params.get("scale", "none") != "none":
        scale = parts["scale"][region[:1]].astype(np.float32).reshape(-1)
        with np.errstate(all="ignore"):
            values = values.astype(np.float32) * np.repeat(scale, mask.reshape(len(scale), inner).sum(axis=1))
    flat = out.reshape(-1)
    flat[...] = 0
    flat[mask] = values


def mask_bits(mask: PartArray, first: int, last: int, elements: int, total: int) -> tuple[int, np.ndarray]:
    """Return the number of bits set before `first`, and a bool per element up to `last`; CodecError if the mask does
    not have `total` bits."""
    start = int(BIT_COUNTS[mask[: first // 8]].sum(dtype=np.int64))
    bits = np.unpackbits(mask[first // 8 : -(-last // 8)], bitorder="little")
    start += int(bits[: first % 8].sum())
    bits_set = bits[first % 8 : first % 8 + last - first].view(bool)
    stop = start + int(bits_set.sum())
    _check(stop == total if last == elements else stop <= total, f"{total} values", f"{stop} bits set")
    return start, bits_set


def _stored_values(parts: Parts, params: Params, start: int, count: int) -> np.ndarray:
    """Return `count` stored values from position `start`."""
    bits = params.get("bits")
    if not bits:
        values: np.ndarray = parts["data"][start : start + count]
        return values
    first = start // 8 * 8  # eight indices start at a byte
    packing = _indices(bits)
    words = parts["data"][packing.words(first) : packing.words(start + count)]
    codes = packing.unpack(words, start + count - first)[start - first :]
    return np.asarray(parts["codebook"][...][codes])


def _indices(bits: int) -> Packing:
    return Packing(bits, "u8", "lsb")


def _prune(panel: np.ndarray, params: Params) -> np.ndarray:
    """Return the values in their dtype (float32 for int8), with the smallest of each row set to zero.

    A row shares the first index: runs along the last axis of a convolution have three values, and half of three is two.
    """
    dtype = params["dtype"] if params["dtype"] != "i8" else "f32"
    values: np.ndarray = panel.astype(dtypes.to_numpy(dtype))
    columns = dtypes.count(panel.shape[1:]) if panel.ndim > 1 else panel.size
    dropped = round(params.get("sparsity", 0) * columns) if panel.ndim else 0
    if dropped:
        rows, source = values.reshape(-1, columns), panel.reshape(-1, columns)
        step = max(1, PANEL // columns)
        for start in range(0, len(rows), step):
            rows[start : start + step][_smallest(np.abs(source[start : start + step]), dropped)] = 0
    return values


def _smallest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the smallest values of each row; the first on ties."""
    bound = np.partition(magnitudes, count - 1, axis=1)[:, count - 1 : count]
    below: np.ndarray = magnitudes < bound
    equal = magnitudes == bound
    remaining = count - below.sum(axis=1, keepdims=True)
    if (equal.sum(axis=1, keepdims=True) > remaining).any():
        equal &= np.cumsum(equal, axis=1) <= remaining
    return below | equal


def _check(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise CodecError("the mask does not match the stored values", expected=expected, found=found, code="mask")


def _check_params(params: Params) -> tuple[Any, Any, Any]:
    """Return the dtype, the values per row (None: any number; RUN) and the scale dtype."""
    dtype, kept, scale = params.get("dtype"), params.get("kept", "any"), params.get("scale", "none")
    count, bits, sparsity = params.get("count", 0), params.get("bits"), params.get("sparsity", 0)
    legal = params.get("scales", "row") in ("row", "all") and set(params) <= NAMES
    legal = legal and type(sparsity) in (int, float) and 0 <= sparsity < 1
    if bits is not None:
        legal = legal and type(bits) is int and 1 <= bits <= 8 and kept == RUN and scale == "none" and dtype != "i8"
    legal = legal and dtype in BITMASK_DTYPES and scale in BITMASK_SCALES and type(count) is int and count >= 0
    if not legal or not (kept in ("any", RUN) or (type(kept) is int and kept >= 0)):
        raise CodecError(
            "invalid bitmask parameters",
            expected=f"legal values of {', '.join(sorted(NAMES))}",
            found=repr(dict(params))[:120],
            code=ErrorCode.PARAMS,
        )
    return dtype, None if kept == "any" else kept, scale
