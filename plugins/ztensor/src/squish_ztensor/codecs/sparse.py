"""Sparse tensors: codecs that validate indices, densify region by region and encode, and SciPy matrices."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from squish_core.api import (
    Codec,
    CodecError,
    ErrorCode,
    Exactness,
    MissingPluginError,
    Params,
    Part,
    Parts,
    Region,
    SquishError,
    TensorSpec,
    decode_all,
    dtypes,
)

Array = np.ndarray


class _Sparse(Codec):
    """Values with their positions; everything else is zero. Parameters:

    nnz                        number of stored values
    indices, indptr, coords    dtypes of the index parts

    When encoding, `indices` (u64; or u32) sets the dtype of all index parts, and `threshold` (0) drops values whose
    magnitude is not above it. Without a threshold only +0 is dropped, so every bit is kept.
    """

    encoder_only_params = ("threshold",)
    index_roles: tuple[str, ...] = ()

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        threshold, indices = params.get("threshold", 0), params.get("indices", "u64")
        number = type(threshold) in (int, float) and 0 <= threshold < np.inf
        if not number or indices not in ("u32", "u64") or not params.keys() <= {"threshold", "indices"}:
            raise CodecError(
                f"{self.id} cannot take these parameters", expected="threshold=, 0 or more, and indices=u64 or u32",
                found=repr(dict(params))[:120], code=ErrorCode.PARAMS, hint="For example sparse_csr:threshold=0.01.",
            )  # fmt: skip
        return {**dict.fromkeys(self.index_roles, indices), "threshold": threshold}

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec, params: Params) -> Params:
        """Count the values to store."""
        return {**params, "nnz": sum(int(np.count_nonzero(_is_stored(panel, params))) for panel in panels())}

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """The whole tensor: its index parts count from its first value."""
        return (None,) * len(spec.shape)

    def error_bound(self, params: Params) -> Exactness:
        threshold = params.get("threshold", 0)
        return Exactness("bounded", error=threshold) if threshold else Exactness("values")

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return spec.dtype

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (1,) * len(spec.shape)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        decode_all(self, parts, spec, params)


class Csr(_Sparse):
    """Compressed rows: `values` and column `indices` [nnz], `indptr` [rows+1]. A region reads its rows only.

    Source: zTensor 1.1, III.2; v2 `zt.sparse_csr/1` (`ordered`: the columns of a row must rise).
    """

    index_roles = ("indices", "indptr")

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if len(spec.shape) != 2:
            raise CodecError(
                "sparse rows need a matrix", tensor=spec.name, found=f"shape {list(spec.shape)}", code="shape",
                hint="sparse_coo takes tensors of any rank.",
            )  # fmt: skip
        return {**super().params_for(spec, params), "ordered": True}

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        entries = params["nnz"]
        return {
            "values": (spec.dtype, (entries,)), "indices": (params["indices"], (entries,)),
            "indptr": (params["indptr"], (spec.shape[0] + 1,)),
        }  # fmt: skip

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: Array) -> None:
        rows, columns = region
        values, places, starts = csr_rows(parts, spec.shape, params, rows)
        lines = np.repeat(np.arange(rows.stop - rows.start), np.diff(starts))
        _fill(out, values, (lines, places), region=(slice(0, rows.stop - rows.start), columns))

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        stored = _is_stored(panel, params)
        columns = np.nonzero(stored)[1]
        starts = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
        return {
            "values": panel[stored], "indices": columns.astype(dtypes.to_numpy(params["indices"])),
            "indptr": starts.astype(dtypes.to_numpy(params["indptr"])),
        }  # fmt: skip


class Coo(_Sparse):
    """Coordinates: `values` [nnz], `coords` [rank, nnz], in any order: a region reads all of `coords` to find its own.

    Source: zTensor 1.1, III.3; v2 `zt.sparse_coo/1`.
    """

    unsliced_parts = ("coords",)
    index_roles = ("coords",)

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        entries = params["nnz"]
        return {"values": (spec.dtype, (entries,)), "coords": (params["coords"], (len(spec.shape), entries))}

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: Array) -> None:
        places = coordinates(parts, spec.shape, region)
        inside = np.flatnonzero(_inside(places, region))
        low, high = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0)
        _fill(out, _values(parts["values"][low:high]), tuple(line[low:high] for line in places), region=region)

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        stored = _is_stored(panel, params)
        return {"values": panel[stored], "coords": np.argwhere(stored).T.astype(dtypes.to_numpy(params["coords"]))}


def csr_rows(parts: Parts, shape: tuple[int, ...], params: Params, rows: slice) -> tuple[Array, Array, Array]:
    """Values, columns and row starts (from 0) of some rows, validated; CodecError naming the first fault."""
    entries, indptr = params["nnz"], parts["indptr"]
    ends = (int(indptr[0:1][0]), int(indptr[shape[0] : shape[0] + 1][0]))
    if ends != (0, entries):
        raise _wrong(
            "indptr does not run from 0 to the number of values", f"0 and {entries}", f"{ends[0]} and {ends[1]}"
        )
    starts = _int64(indptr[rows.start : rows.stop + 1], entries + 1, "indptr")
    if (np.diff(starts) < 0).any():
        row = rows.start + int(np.argmax(np.diff(starts) < 0))
        raise _wrong("indptr falls", "row starts that do not fall", f"a fall after row {row}")
    low, high = int(starts[0]), int(starts[-1])
    places = _int64(parts["indices"][low:high], shape[1], "a column index")
    starts = starts - low
    _check_columns(places, starts, ordered=bool(params.get("ordered")))
    return _values(parts["values"][low:high]), places, starts


def coordinates(parts: Parts, shape: tuple[int, ...], region: Region | None = None) -> tuple[Array, ...]:
    """One validated array of positions for each axis; CodecError for a place outside the shape, or named twice.

    Every place of the tensor lies in one of the regions that cover it, so with `region` only its own are compared.
    """
    coords = parts["coords"][...]
    places = tuple(
        _int64(line, size, f"a coordinate of axis {axis}") for axis, (line, size) in enumerate(zip(coords, shape))
    )
    own = places if region is None else tuple(line[_inside(places, region)] for line in places)
    if own[0].size > 1:
        order = np.lexsort(own[::-1])
        same = np.logical_and.reduce([np.diff(line[order]) == 0 for line in own])
        if same.any():
            at = int(order[int(np.argmax(same))])
            raise _wrong("a cell is stored twice", "one value for each cell", str([int(line[at]) for line in own]))
    return places


def to_scipy(tensor: Any) -> Any:
    """A sparse tensor of an open file as `scipy.sparse.csr_array` or `coo_array`, indices validated first.

    Raises CodecError for invalid indices and other layouts, MissingPluginError without SciPy.
    """
    try:
        scipy_sparse = importlib.import_module("scipy.sparse")
    except ImportError:
        raise MissingPluginError(
            "a SciPy matrix needs SciPy",
            tensor=tensor.name,
            code=ErrorCode.NOT_INSTALLED,
            hint="Run `pip install scipy`.",
        ) from None
    bound = tensor.bound
    encoding, parts, params, shape = bound.encoding, bound.parts, bound.params, tensor.shape
    try:
        if encoding.codec.id == "zt.sparse_csr":
            rows = csr_rows(parts, shape, params, slice(0, shape[0]))
            return scipy_sparse.csr_array(rows, shape=shape)
        if encoding.codec.id == "zt.sparse_coo":
            return scipy_sparse.coo_array((_values(parts["values"][:]), coordinates(parts, shape)), shape=shape)
    except SquishError as error:
        raise error.within(file=tensor.file.name, tensor=tensor.name) from error.__cause__
    raise CodecError("is not a sparse tensor", tensor=tensor.name, found=encoding.codec.id, code="layout")


def array(data: bytes, part: Part) -> Array:
    """A part's bytes as an array."""
    return np.frombuffer(data, dtypes.to_numpy(part.dtype)).reshape(part.shape)


def _is_stored(panel: Array, params: Params) -> Array:
    """Mask of the values to store. NaN is never dropped, -0.0 only by a threshold."""
    if threshold := params.get("threshold", 0):
        return ~(np.abs(panel) <= threshold)
    elements = np.ascontiguousarray(panel)[..., None].view(np.uint8)
    return np.asarray(elements.any(axis=-1))


def _fill(out: Array, values: Array, places: tuple[Array, ...], *, region: Region) -> None:
    out[...] = 0
    inside = _inside(places, region)
    out[tuple(line[inside] - part.start for line, part in zip(places, region))] = values[inside]


def _inside(places: tuple[Array, ...], region: Region) -> Array:
    inside = np.ones(places[0].shape, bool)
    for line, part in zip(places, region):
        inside &= (line >= part.start) & (line < part.stop)
    return inside


def _values(values: Array) -> Array:
    if values.dtype == bool and values.size and int(values.view("u1").max()) > 1:
        raise _wrong("a bool is stored as something else", "0 or 1", str(int(values.view("u1").max())))
    return values


def _int64(indices: Array, limit: int, what: str) -> Array:
    """Indices as i64, once they are known to lie in [0, limit)."""
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= limit):
        worst = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise _wrong(f"{what} is out of range", f"0 to {limit - 1}", str(worst))
    return indices.astype(np.int64)


def _check_columns(places: Array, starts: Array, *, ordered: bool) -> None:
    """No column twice in a row; rising ones where the format demands it."""
    if places.size < 2:
        return
    rows = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    if not ordered:
        order = np.lexsort((places, rows))
        places, rows = places[order], rows[order]
    bad = (np.diff(rows) == 0) & (np.diff(places) <= 0)
    if bad.any():
        at = int(np.argmax(bad))
        found = f"{int(places[at])} before {int(places[at + 1])}"
        raise _wrong(
            "the columns of a row do not rise" if ordered else "a cell is stored twice", "rising columns", found
        )


def _wrong(what: str, expected: str, found: str) -> CodecError:
    return CodecError(what, expected=expected, found=found, code="index", hint="The file is damaged; fetch it again.")
