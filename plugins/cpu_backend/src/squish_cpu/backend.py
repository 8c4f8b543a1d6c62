"""The CPU backend: compiled kernels read stored weights in place."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
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
    Counts,
    ErrorCode,
    Offer,
    Refusal,
    Region,
    Request,
    SquishError,
    TensorSpec,
    check_expert_args,
    check_ids,
    check_input,
    dtypes,
    full,
    require_rank,
)

from .layouts import layout_of
from .layouts.base import DENSE, TYPES, Layout, UncoveredError, aligned
from .layouts.panels import Grid, repack
from .library import Product, Tally, Weights, library, threads

Array = np.ndarray
ACTIVATION_NOTES = {"f32": "", "bf16": "bf16 activations", "int8": "int8 activations"}
NUMBERS = {"f32": TYPES["f32"], "bf16": TYPES["bf16"], "int8": TYPES["i8"]}


@frozen(kw_only=True, eq=False)
class Handle:
    """A tensor loaded for the kernels.

    `arrays` owns the memory `weights` points to. `columns` is the column order of permuted weights. `linear` and
    `experts` read `products`; unless `activations` is None, they convert activations once per call.
    """

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
    """Compiled kernels over stored codes, for this processor's instruction set; NumPy handles everything else."""

    id = "cpu"

    def __init__(self, threads: Any = None, activations: str = "f32", repack: str = "none") -> None:
        self.threads, self.activations, self.repack = threads, activations, repack == "rows"

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """Set `threads`; `activations`, f32 (default), int8 (one scale per 32) or, with a repack, bf16; `repack`,
        none (default) or rows: a copy for products with 16 interleaved rows."""
        choices = {"activations": tuple(ACTIVATION_NOTES), "repack": ("none", "rows")}
        if any(value not in choices.get(name, ()) for name, value in options.items() if name != "threads"):
            raise SquishError(
                "invalid cpu option",
                expected="threads=NUMBER, activations=f32, bf16 or int8, repack=none or rows",
                found=", ".join(f"{name}={value}" for name, value in options.items()),
                code=ErrorCode.BACKEND,
            )
        backend = CpuBackend(**options)
        backend.id = self.id
        return backend

    def probe(self) -> Availability:
        try:
            native, count = library(), threads(self.threads)
        except SquishError as error:
            return Availability(ok=False, reason=str(error))
        return _availability(native.active, native.instructions, count)

    def offer(self, request: Request) -> Offer | Refusal:
        encoding, spec, codec = request.encoding, request.spec, request.codec
        assert codec is not None
        example = spec or TensorSpec(name="", shape=(256, 256), dtype="f32")
        try:
            reordered = codec.column_permuted(example)
            layout = layout_of(reordered or encoding.codec, example)
            if self.activations == "int8":
                layout.check_int8()
            if self.activations == "bf16" and not (self.repack or layout.in_panels):
                raise UncoveredError("bf16 activations need panels (repack=rows)", code="activations")
            copy_bytes = Grid.of(layout).nbytes if self.repack and not layout.in_panels else 0
        except CodecError as error:
            return Refusal(backend=self.id, encoding=encoding, code=ErrorCode.UNCOVERED, why=error.message)
        cost = None
        if spec is not None:
            parts = encoding.parts.values()
            copied = sum(part.nbytes for part in parts if part.filters or reordered)
            cost = Cost(
                stored=encoding.stored,
                resident=layout.resident + copied + copy_bytes,
                moved=copy_bytes or encoding.stored,
                mapped=sum(part.nbytes for part in parts) - copied,
            )
        ops = ("dense", *{2: ("linear", "embed"), 3: ("experts",)}.get(len(example.shape), ()))
        how = (
            "the stored panels of 16 rows in place" if layout.in_panels else "the stored codes in place",
            *(("a copy in panels of 16 rows for products",) if copy_bytes else ()),
            ACTIVATION_NOTES[self.activations] or "decoded in registers",
        )
        return Offer(
            backend=self.id,
            encoding=encoding,
            mode="stream",
            ops=ops,
            cost=cost,
            storage=", ".join(how),
            exact=not ACTIVATION_NOTES[self.activations],
        )

    def load(self, chain: Chain, bound: BoundEncoding) -> Handle:
        spec, codec, parts, columns = bound.spec, bound.codec, bound.parts, None
        reordered = codec.column_permuted(spec)
        if reordered is not None:
            codec, parts, columns = codec.permute_columns(parts, spec)
        codec_spec = reordered or bound.encoding.codec
        arrays_by_role = {
            role: _contiguous(role, parts[role], shape, spec) for role, (_, shape) in codec.parts(spec).items()
        }
        layout = layout_of(codec_spec, spec)
        weights, arrays = weights_of(layout, arrays_by_role)
        products, count, in_panels = weights, threads(self.threads), self.repack or layout.in_panels
        if self.repack and not layout.in_panels:
            products, copies = repack(layout, weights, arrays, count)
            arrays |= {f"repacked {name}": array for name, array in copies.items()}
        return Handle(
            spec=spec,
            layout=layout,
            dtype=bound.dtype,
            arrays=arrays,
            weights=weights,
            products=products,
            threads=count,
            columns=columns,
            activations=self.activations if in_panels or ACTIVATION_NOTES[self.activations] else None,
        )

    def dense(
        self, handle: Handle, *, region: Region | None = None, dtype: str | None = None, out: Array | None = None
    ) -> Array:
        """Decode a region (default: all) to f32, f16 or bf16 (default: the codec's dtype), optionally into `out`."""
        region, dtype = region or full(handle.spec.shape), dtype or handle.dtype
        shape = tuple(part.stop - part.start for part in region)
        if dtype not in DENSE:
            raise CodecError("unsupported output dtype", expected=", ".join(DENSE), found=dtype, code="dtype")
        if out is None:
            out = aligned(shape, dtype)
        elif out.shape != shape or out.dtype != dtypes.to_numpy(dtype) or not out.flags.writeable:
            raise CodecError(
                "`out` does not match",
                expected=f"writable {dtype} {shape}",
                found=f"{out.dtype} {out.shape}",
                code="out",
            )
        if out.size:
            rows = (
                np.ravel_multi_index(
                    np.ix_(*(range(part.start, part.stop) for part in region[:-1])), handle.spec.shape[:-1]
                ).reshape(-1)
                if len(region) > 1
                else np.zeros(1, np.int64)
            )
            _decode(handle, rows, region[-1], dtype, out)
        return out

    def linear(self, handle: Handle, x: Array) -> Array:
        rows, columns = require_rank(handle.spec, 2)
        x = check_input(x, columns, handle.spec)
        return _multiply(handle, x.reshape(-1, columns), 0, rows).reshape(*x.shape[:-1], rows)

    def linear_pointers(self, handle: Handle, dtype: str = "f32") -> Callable[[int, int, int], None] | None:
        if handle.columns is not None or dtype not in DENSE or len(handle.spec.shape) != 2:
            return None
        prepared = NUMBERS[handle.activations] if handle.activations else -1
        arguments = Product(ctypes.pointer(handle.products), prepared, DENSE[dtype], handle.threads)
        address, product = ctypes.addressof(arguments), library().product
        if not product(address, None, 0, None):  # no kernel for these activations
            return None

        def multiply(x: int, number: int, out: int, _: Product = arguments) -> None:
            if not product(address, x, number, out):
                raise MemoryError

        return multiply

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
            positions = np.flatnonzero(ids == expert)
            out[positions] = _multiply(handle, x[positions], int(expert) * rows, rows)
        return out

    def counts(self, handle: Handle) -> Counts:
        tally = Tally()
        library().tally(handle.weights, tally, handle.threads)
        powers = np.array(tally.powers, np.int64).reshape(2, 256)
        zeros = np.array((tally.zeros, tally.minus_zeros))
        return Counts(powers, zeros, tally.nan, tally.least, tally.greatest)


@lru_cache(16)
def _availability(active: str, instructions: tuple[str, ...], count: int) -> Availability:
    others = ", ".join(name for name in instructions if name != active)
    facts = {"instructions": active, "threads": count, **({"also runs": others} if others else {})}
    return Availability(ok=True, device="CPU", facts=facts)


def weights_of(layout: Layout, parts: Mapping[str, Array]) -> tuple[Weights, dict[str, Array]]:
    """Return the kernels' description of a tensor, and the arrays it points to."""
    arrays = {name: np.ascontiguousarray(make(parts)) for name, make in layout.pointers.items()}
    weights = Weights(rows=layout.rows, columns=layout.columns)
    for name, value in layout.fields.items():
        setattr(weights, name, (ctypes.c_uint8 * 64)(*value) if name == "order" else int(value))
    for name, array in arrays.items():
        setattr(weights, name, array.ctypes.data)
    return weights, arrays


def _contiguous(role: str, part: Any, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    """Return a part as a contiguous array, checked against the codec's shape: kernels do not check bounds."""
    array: Array = part[...]
    if array.shape != shape:
        raise CodecError(
            "part shape mismatch",
            tensor=spec.name,
            part=role,
            expected=str(shape),
            found=str(array.shape),
            code="shape",
        )
    return np.ascontiguousarray(array)


def _decode(handle: Handle, rows: Array, columns: slice, dtype: str, out: Array) -> None:
    """Decode columns of the numbered rows into `out`."""
    if handle.columns is not None:
        full_rows = aligned((len(rows), handle.layout.columns), dtype)
        _decode(evolve(handle, columns=None), rows, slice(0, handle.layout.columns), dtype, full_rows)
        out[...] = full_rows[:, np.argsort(handle.columns)[columns]].reshape(out.shape)
        return
    grain, end = math.lcm(handle.layout.grain, 16), handle.layout.columns
    low, high = columns.start // grain * grain, min(-(-columns.stop // grain) * grain, end)
    width = columns.stop - columns.start
    exact = (low, high) == (columns.start, columns.stop) and out.flags.c_contiguous and out.flags.aligned
    target = out if exact else aligned((len(rows), high - low), dtype)
    ids = np.ascontiguousarray(rows, np.int64)
    library().decode(
        handle.weights,
        ids.ctypes.data,
        0,
        len(ids),
        low,
        high,
        target.ctypes.data,
        (high - low) * target.itemsize,
        DENSE[dtype],
        handle.threads,
    )
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
        padded = -(-columns // 512) * 16  # activations, a scale per 32 columns, and up to twice as many sums
        room = np.empty(count * (columns // (4 if kind == NUMBERS["int8"] else 1) + 3 * padded), np.float32)
        multiplied = library().multiply_as(
            handle.products,
            kind,
            first,
            rows,
            x.ctypes.data,
            count,
            room.ctypes.data,
            out.ctypes.data,
            rows,
            handle.threads,
        )
        if not multiplied:
            raise UncoveredError("no compiled kernel for these activations", code="activations")
    elif out.size:
        library().multiply(
            handle.products, first, rows, x.ctypes.data, columns, count, out.ctypes.data, rows, handle.threads
        )
    return out
