"""The backend: weights stay as they are stored, and compiled loops read them in place."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from attrs import evolve, frozen

from squish_core.api import (
    Availability,
    Backend,
    BoundEncoding,
    Chain,
    CodecError,
    Cost,
    ErrorCode,
    Offer,
    Refusal,
    Region,
    Request,
    SquishError,
    Statistics,
    TensorSpec,
    check_expert_args,
    check_ids,
    check_input,
    dtypes,
    full,
    require_rank,
)  # fmt: skip

from .layouts.base import DENSE, PANELS, TYPES, Layout, UncoveredError, aligned, layout_of
from .layouts.panels import Grid, repacked
from .library import Tally, Weights, library, threads

Array = np.ndarray
ROUNDED = {"f32": "", "bf16": "activations in bf16", "int8": "activations in 8 bits"}
NUMBERS = {"f32": TYPES["f32"], "bf16": TYPES["bf16"], "int8": TYPES["i8"]}


@frozen(kw_only=True, eq=False)
class Handle:
    """A tensor that the loops can read; `arrays` keeps alive what `weights` points to. `columns`: where the loops have
    the tensor's columns in another order, which one each of theirs is. `products`: what `linear` and `experts` read,
    with `activations` prepared once a call, unless they are None."""

    spec: TensorSpec
    layout: Layout
    dtype: str
    arrays: Mapping[str, Array]
    weights: Weights
    products: Weights
    threads: int
    activations: str | None
    columns: Array | None = None


class CpuBackend(Backend):
    """Compiled loops over the stored codes, chosen for this processor; everything else is left to NumPy."""

    id = "cpu"

    def __init__(self, threads: Any = None, activations: str = "f32", repack: str = "none") -> None:
        self.threads, self.activations, self.repack = threads, activations, repack == "rows"

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """`threads`, a number; `activations`, f32 (the default), int8: codes of 8 bits and a scale for each 32, or,
        with a repack, bf16; `repack`, none (the default) or rows: a copy for products, sixteen rows side by side."""
        known = {"activations": tuple(ROUNDED), "repack": ("none", "rows")}
        if any(value not in known.get(name, ()) for name, value in options.items() if name != "threads"):
            raise SquishError(
                "cpu takes no such option",
                expected="threads=NUMBER, activations=f32, bf16 or int8, repack=none or rows",
                found=", ".join(f"{name}={value}" for name, value in options.items()), code=ErrorCode.BACKEND,
            )  # fmt: skip
        made = CpuBackend(**options)
        made.id = self.id
        return made

    def probe(self) -> Availability:
        try:
            found, count = library(), threads(self.threads)
        except SquishError as error:
            return Availability(ok=False, reason=str(error))
        return _availability(found.chosen, found.instructions, count)

    def offer(self, request: Request) -> Offer | Refusal:
        encoding, spec, codec = request.encoding, request.spec, request.codec
        assert codec is not None
        shown = spec or TensorSpec(name="", shape=(256, 256), dtype="f32")
        try:
            reordered = codec.column_permuted(shown, encoding.codec.params)
            layout = layout_of(reordered or encoding.codec, shown)
            if self.activations == "int8":
                layout.check_int8()
            if self.activations == "bf16" and not (self.repack or layout.in_panels):
                raise UncoveredError("panels alone (repack=rows) take activations in bf16", code="activations")
            copied = Grid.of(layout).nbytes if self.repack and not layout.in_panels else 0
        except CodecError as error:
            return Refusal(backend=self.id, encoding=encoding, code=ErrorCode.UNCOVERED, why=error.message)
        cost = None
        if spec is not None:
            own = layout.resident + sum(part.nbytes for part in encoding.parts.values() if part.filters or reordered)
            cost = Cost(stored=encoding.stored, resident=own + copied, moved=copied or encoding.stored)
        ops = ("dense", *{2: ("linear", "embed"), 3: ("experts",)}.get(len(shown.shape), ()))
        how = (
            "the stored panels of 16 rows in place" if layout.in_panels else "the stored codes in place",
            *(("a copy in panels of 16 rows for products",) if copied else ()),
            ROUNDED[self.activations] or "decoded in registers",
        )
        return Offer(
            backend=self.id, encoding=encoding, mode="stream", ops=ops, cost=cost, storage=", ".join(how),
            exact=not ROUNDED[self.activations],
        )  # fmt: skip

    def load(self, chain: Chain, bound: BoundEncoding) -> Handle:
        spec, codec, parts, columns = bound.spec, bound.codec, bound.parts, None
        reordered = codec.column_permuted(spec, bound.params)
        if reordered is not None:
            codec, parts, columns = codec.permute_columns(parts, spec, bound.params)
        codec_spec = reordered or bound.encoding.codec
        stored = {role: _whole(role, parts[role], shape, spec)
                  for role, (_, shape) in codec.parts(spec, codec_spec.params).items()}  # fmt: skip
        layout = layout_of(codec_spec, spec)
        weights, arrays = weights_of(layout, stored)
        products, count = weights, threads(self.threads)
        if self.repack and not layout.in_panels:
            products, copies = repacked(layout, weights, arrays, count)
            arrays |= {f"repacked {name}": array for name, array in copies.items()}
        return Handle(
            spec=spec, layout=layout, dtype=bound.dtype, arrays=arrays, weights=weights, products=products,
            threads=count, columns=columns,
            activations=self.activations if products.kind == PANELS or ROUNDED[self.activations] else None,
        )  # fmt: skip

    def dense(
        self, handle: Handle, *, region: Region | None = None, dtype: str | None = None, out: Array | None = None
    ) -> Array:
        """Values of a region (all of it) as f32, f16 or bf16 (the codec's own), into `out` where it is given."""
        region, dtype = region or full(handle.spec.shape), dtype or handle.dtype
        shape = tuple(part.stop - part.start for part in region)
        if dtype not in DENSE:
            raise CodecError(
                "values are given in another dtype only", expected=", ".join(DENSE), found=dtype, code="dtype"
            )
        if out is None:
            out = aligned(shape, dtype)
        elif out.shape != shape or out.dtype != dtypes.to_numpy(dtype) or not out.flags.writeable:
            raise CodecError(
                "`out` does not fit", expected=f"writable {dtype} {shape}", found=f"{out.dtype} {out.shape}", code="out"
            )
        if out.size:
            rows = np.ravel_multi_index(
                np.ix_(*(range(part.start, part.stop) for part in region[:-1])), handle.spec.shape[:-1]
            ).reshape(-1) if len(region) > 1 else np.zeros(1, np.int64)  # fmt: skip
            _decode(handle, rows, region[-1], dtype, out)
        return out

    def linear(self, handle: Handle, x: Array) -> Array:
        rows, columns = require_rank(handle.spec, 2)
        x = check_input(x, columns, handle.spec)
        return _multiply(handle, x.reshape(-1, columns), 0, rows).reshape(*x.shape[:-1], rows)

    def embed(self, handle: Handle, ids: Array) -> Array:
        rows, columns = require_rank(handle.spec, 2)
        ids = check_ids(ids, rows, handle.spec)
        out = np.empty((*ids.shape, columns), np.float32)
        if out.size:
            _decode(handle, ids.reshape(-1), slice(0, columns), "f32", out)
        return out

    def experts(self, handle: Handle, x: Array, ids: Array) -> Array:
        x, ids = check_expert_args(x, ids, handle.spec)
        rows = handle.spec.shape[1]
        out = np.empty((len(ids), rows), np.float32)
        for expert in np.unique(ids):
            chosen = np.flatnonzero(ids == expert)
            out[chosen] = _multiply(handle, x[chosen], int(expert) * rows, rows)
        return out

    def statistics(self, handle: Handle) -> Statistics:
        found = Tally()
        library().tally(handle.weights, found, handle.threads)
        powers = np.array(found.powers, np.int64).reshape(2, 256)
        zeros = np.array((found.zeros, found.minus_zeros))
        return Statistics.of(powers, zeros, found.nan, found.least, found.greatest)


@lru_cache(16)
def _availability(chosen: str, instructions: tuple[str, ...], count: int) -> Availability:
    others = ", ".join(name for name in instructions if name != chosen)
    facts = {"instructions": chosen, "threads": count, **({"also runs": others} if others else {})}
    return Availability(ok=True, device="CPU", facts=facts)


def weights_of(layout: Layout, stored: Mapping[str, Array]) -> tuple[Weights, dict[str, Array]]:
    """What the loops are told about a tensor, and the arrays that it points to."""
    arrays = {name: np.ascontiguousarray(make(stored)) for name, make in layout.pointers.items()}
    weights = Weights(rows=layout.rows, columns=layout.columns)
    for name, value in layout.fields.items():
        setattr(weights, name, (ctypes.c_uint8 * 64)(*value) if name == "order" else int(value))
    for name, array in arrays.items():
        setattr(weights, name, array.ctypes.data)
    return weights, arrays


def _whole(role: str, stored: Any, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    """A part as one contiguous array of the shape that the codec declares: what the loops read is inside it."""
    array: Array = stored[...]
    if array.shape != shape:
        raise CodecError(
            "a part has another shape than its codec declares", tensor=spec.name, part=role,
            expected=str(shape), found=str(array.shape), code="shape",
        )  # fmt: skip
    return np.ascontiguousarray(array)


def _decode(handle: Handle, rows: Array, columns: slice, dtype: str, out: Array) -> None:
    """Rows by number, some of their columns, into `out` in order."""
    if handle.columns is not None:
        whole = aligned((len(rows), handle.layout.columns), dtype)
        _decode(evolve(handle, columns=None), rows, slice(0, handle.layout.columns), dtype, whole)
        out[...] = whole[:, np.argsort(handle.columns)[columns]].reshape(out.shape)
        return
    grain, end = math.lcm(handle.layout.grain, 16), handle.layout.columns
    low, high = columns.start // grain * grain, min(-(-columns.stop // grain) * grain, end)
    width = columns.stop - columns.start
    exact = (low, high) == (columns.start, columns.stop) and out.flags.c_contiguous and out.flags.aligned
    target = out if exact else aligned((len(rows), high - low), dtype)
    ids = np.ascontiguousarray(rows, np.int64)
    library().decode(
        handle.weights, ids.ctypes.data, 0, len(ids), low, high, target.ctypes.data,
        (high - low) * target.itemsize, DENSE[dtype], handle.threads,
    )  # fmt: skip
    if not exact:
        first = columns.start - low
        out[...] = target[:, first : first + width].reshape(out.shape)


def _multiply(handle: Handle, x: Array, first: int, rows: int) -> Array:
    if handle.columns is not None:
        x = x.take(handle.columns, axis=1)
    x = np.require(x, requirements=["C", "A"])
    count, columns = x.shape
    out = np.empty((count, rows), np.float32)
    if out.size and handle.activations:
        kind = NUMBERS[handle.activations]
        padded = -(-columns // 512) * 16  # numbers, a scale for each 32 columns, and up to twice as many sums
        room = np.empty(count * (columns // (4 if kind == NUMBERS["int8"] else 1) + 3 * padded), np.float32)
        multiplied = library().multiply_as(
            handle.products, kind, first, rows, x.ctypes.data, count, room.ctypes.data, out.ctypes.data, rows,
            handle.threads,
        )  # fmt: skip
        if not multiplied:
            raise UncoveredError("the compiled kernels have no loop for these activations", code="activations")
    elif out.size:
        library().multiply(
            handle.products, first, rows, x.ctypes.data, columns, count, out.ctypes.data, rows, handle.threads
        )
    return out
