"""Sparse tensors: codecs that validate indices and decode by region, and conversion to SciPy."""

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
    install_command,
)

Array = np.ndarray


class _Sparse(Codec):
    """Stored values with their positions; all other values are zero. Parameters:

    nnz                        number of stored values
    indices, indptr, coords    dtypes of the index parts

    For encoding, `indices` (u64 or u32) is the dtype of all index parts, and `threshold` (default 0) drops
    values whose magnitude does not exceed it. Without a threshold only +0 is dropped, so that no bit changes.
    """

    encoder_only_params = ("threshold",)
    index_roles: tuple[str, ...] = ()

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        threshold, indices = options.get("threshold", 0), options.get("indices", "u64")
        number = type(threshold) in (int, float) and 0 <= threshold < np.inf
        if not number or indices not in ("u32", "u64") or not options.keys() <= {"threshold", "indices"}:
            raise CodecError(
                f"invalid parameters of {cls.id}",
                expected="threshold=0 or more, indices=u64 or u32",
                found=repr(dict(options))[:120],
                code=ErrorCode.PARAMS,
                hint="Example: sparse_csr:threshold=0.01.",
            )
        return {**dict.fromkeys(cls.index_roles, indices), "threshold": threshold}

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec) -> Params:
        """Count the values to store."""
        return {**self.params, "nnz": sum(int(np.count_nonzero(_is_stored(panel, self.params))) for panel in panels())}

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return the whole tensor: index parts count from its first value."""
        return (None,) * len(spec.shape)

    @property
    def error_bound(self) -> Exactness:
        threshold = self.params.get("threshold", 0)
        return Exactness("bounded", error=threshold) if threshold else Exactness("values")

    def value_dtype(self, spec: TensorSpec) -> str:
        return spec.dtype

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (1,) * len(spec.shape)

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        decode_all(self, parts, spec)


class Csr(_Sparse):
    """Compressed rows: `values` and column `indices` [nnz], `indptr` [rows+1]. A region reads its rows only.

    Source: zTensor 1.1, III.2; v2 `zt.sparse_csr/1` (`ordered`: columns of a row must be ascending).
    """

    index_roles = ("indices", "indptr")

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if len(spec.shape) != 2:
            raise CodecError(
                "sparse_csr requires a matrix",
                tensor=spec.name,
                found=f"shape {list(spec.shape)}",
                code="shape",
                hint="sparse_coo supports any number of dimensions.",
            )
        return {**super().params_for(spec, options), "ordered": True}

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        entries = self.params["nnz"]
        return {
            "values": (spec.dtype, (entries,)),
            "indices": (self.params["indices"], (entries,)),
            "indptr": (self.params["indptr"], (spec.shape[0] + 1,)),
        }

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        rows, columns = region
        values, places, starts = csr_rows(parts, spec.shape, self.params, rows)
        lines = np.repeat(np.arange(rows.stop - rows.start), np.diff(starts))
        _fill(out, values, (lines, places), region=(slice(0, rows.stop - rows.start), columns))

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        stored = _is_stored(panel, self.params)
        columns = np.nonzero(stored)[1]
        starts = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
        return {
            "values": panel[stored],
            "indices": columns.astype(dtypes.to_numpy(self.params["indices"])),
            "indptr": starts.astype(dtypes.to_numpy(self.params["indptr"])),
        }


class Coo(_Sparse):
    """Coordinates: `values` [nnz], `coords` [rank, nnz], in any order: each region reads all of `coords`.

    Source: zTensor 1.1, III.3; v2 `zt.sparse_coo/1`.
    """

    unsliced_parts = ("coords",)
    index_roles = ("coords",)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        entries = self.params["nnz"]
        return {"values": (spec.dtype, (entries,)), "coords": (self.params["coords"], (len(spec.shape), entries))}

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        places = coordinates(parts, spec.shape, region)
        inside = np.flatnonzero(_inside(places, region))
        low, high = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0)
        _fill(out, _values(parts["values"][low:high]), tuple(line[low:high] for line in places), region=region)

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        stored = _is_stored(panel, self.params)
        return {"values": panel[stored], "coords": np.argwhere(stored).T.astype(dtypes.to_numpy(self.params["coords"]))}


def csr_rows(parts: Parts, shape: tuple[int, ...], params: Params, rows: slice) -> tuple[Array, Array, Array]:
    """Return values, columns and row starts (from 0) of some rows; CodecError for invalid indices."""
    entries, indptr = params["nnz"], parts["indptr"]
    ends = (int(indptr[0:1][0]), int(indptr[shape[0] : shape[0] + 1][0]))
    if ends != (0, entries):
        raise _index_error(
            "indptr must start at 0 and end at the number of values", f"0 and {entries}", f"{ends[0]} and {ends[1]}"
        )
    starts = _int64(indptr[rows.start : rows.stop + 1], entries + 1, "indptr")
    if (np.diff(starts) < 0).any():
        row = rows.start + int(np.argmax(np.diff(starts) < 0))
        raise _index_error("indptr must not decrease", "ascending row starts", f"a decrease after row {row}")
    low, high = int(starts[0]), int(starts[-1])
    places = _int64(parts["indices"][low:high], shape[1], "a column index")
    starts = starts - low
    _check_columns(places, starts, ordered=bool(params.get("ordered")))
    return _values(parts["values"][low:high]), places, starts


def coordinates(parts: Parts, shape: tuple[int, ...], region: Region | None = None) -> tuple[Array, ...]:
    """Return one array of positions per axis; CodecError for positions outside the shape and duplicates.

    With `region`, only the positions inside are checked for duplicates.
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
            raise _index_error("duplicate position", "one value per position", str([int(line[at]) for line in own]))
    return places


def to_scipy(tensor: Any) -> Any:
    """Return a sparse tensor as a SciPy matrix.

    Parameters
    ----------
    tensor
        A tensor of an open file.

    Returns
    -------
    scipy.sparse.csr_array or scipy.sparse.coo_array
        The matrix, with validated indices.

    Raises
    ------
    CodecError
        The indices are invalid, or the tensor is not sparse.
    MissingPluginError
        SciPy is not installed.
    """
    try:
        scipy_sparse = importlib.import_module("scipy.sparse")
    except ImportError:
        raise MissingPluginError(
            "SciPy is not installed",
            tensor=tensor.name,
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('scipy')}`.",
        ) from None
    bound = tensor.bound
    encoding, parts, params, shape = bound.encoding, bound.parts, bound.codec.params, tensor.shape
    try:
        if encoding.codec.id == "zt.sparse_csr":
            rows = csr_rows(parts, shape, params, slice(0, shape[0]))
            return scipy_sparse.csr_array(rows, shape=shape)
        if encoding.codec.id == "zt.sparse_coo":
            return scipy_sparse.coo_array((_values(parts["values"][:]), coordinates(parts, shape)), shape=shape)
    except SquishError as error:
        raise error.within(file=tensor.file.name, tensor=tensor.name) from error.__cause__
    raise CodecError("not a sparse tensor", tensor=tensor.name, found=encoding.codec.id, code="layout")


def array(data: bytes, part: Part) -> Array:
    """Return a part's bytes as an array."""
    return np.frombuffer(data, dtypes.to_numpy(part.dtype)).reshape(part.shape)


def _is_stored(panel: Array, params: Params) -> Array:
    """Return a mask of the values to store. NaN is never dropped, -0.0 only by a threshold."""
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
        raise _index_error("invalid bool value", "0 or 1", str(int(values.view("u1").max())))
    return values


def _int64(indices: Array, limit: int, label: str) -> Array:
    """Return indices as i64; CodecError unless they are in [0, limit)."""
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= limit):
        worst = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise _index_error(f"{label} is out of range", f"0 to {limit - 1}", str(worst))
    return indices.astype(np.int64)


def _check_columns(places: Array, starts: Array, *, ordered: bool) -> None:
    """Raise CodecError if a row has duplicate columns or, with `ordered`, columns that are not ascending."""
    if places.size < 2:
        return
    rows = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    if not ordered:
        order = np.lexsort((places, rows))
        places, rows = places[order], rows[order]
    invalid = (np.diff(rows) == 0) & (np.diff(places) <= 0)
    if invalid.any():
        at = int(np.argmax(invalid))
        found = f"{int(places[at])} before {int(places[at + 1])}"
        raise _index_error(
            "the columns of a row must be ascending" if ordered else "duplicate position", "ascending columns", found
        )


def _index_error(fault: str, expected: str, found: str) -> CodecError:
    return CodecError(
        fault, expected=expected, found=found, code="index", hint="The file is damaged; download it again."
    )
