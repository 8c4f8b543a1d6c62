"""Palettes: small indices into a table of values, with or without a scale for each group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import lcm
from typing import Any

import numpy as np
from attrs import evolve

from squish_core.api import (
    STORED_TABLE,
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Exactness,
    Params,
    Parts,
    Region,
    TensorSpec,
    dtypes,
)

from ..affine import repack
from ..affine.decode import PANEL, runs
from ..affine.encode import FLOATS, blocks_of, check_finite, step_of
from ..affine.layout import affine_layout
from .fit import codebook, nearest_vectors
from .tables import Tables

Array = np.ndarray


class Palette(Codec):
    """Indices `i` with `value = table[i] * scale`, in float32, each step rounded once.

    Parts: `data` (the indices); `codebook` unless the table is a parameter; `scale`, `offset` where there are any.

    bits           1..8       width of an index; required
    axis           -1         -1: indices fill words, and groups lie, along the rows; "flat": both run on over the
                              row-major order
    word, order    u8, lsb    as in affine (bitsandbytes: msb)
    table          none       nf4, nf2, or a list of up to 2**bits numbers: a constant table, and no part `codebook`
    codebook_size  0          values of one codebook, in row-major order (a row's length: one each row); 0: one for all
    codebook_dtype f32        f32 f16 bf16 i8 u8, widened to f32 first; part [codebooks,] 2**bits [, vector]
    vector         1          values that one index stands for, neighbors along `vector_axis`
    vector_axis    -1         axis, counted from the end
    scale_dtype    none       as in affine; none: no scale
    group_size     0          values of one scale; 0: a whole row, or all of a flat order
    offset         none       none; zero_point: `(table[i] - offset) * scale`; bias: `table[i] * scale + offset`
    offset_dtype   see affine
    nested         0          scales are u8 indices i themselves, `scale_codebook[i] * scale_scale + scale_offset`, with
                              a `scale_scale` for this many of them; flat only (bitsandbytes' double quantization)

    fit            kmeans     kmeans or uniform: how encoding makes codebooks, one for each `codebook_size` values

    Encoding takes codebooks without scales, and constant tables, symmetric and with a scale: the scale is the group's
    largest magnitude over the table's, rounded up to its dtype; half way between two entries the lower is taken.
    Sources: Core ML constexpr_lut_to_dense; QLoRA (NF4); bitsandbytes; Squish npy directories.
    """

    unsliced_parts = ("codebook", "scale_codebook")  # any row may need any entry

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return Tables.of(params).parts(spec.shape)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        tables = _fitting(spec, params)
        indices = tables.indices.grain(tables.index_shape(spec.shape))
        wide = [step if axis != tables.place(spec.shape) else step and step * tables.vector
                for axis, step in enumerate(indices)]  # fmt: skip
        scales = tables.scheme.grain(spec.shape) if tables.scaled else (1,) * len(wide)
        return tuple(None if a is None or b is None else lcm(a, b) for a, b in zip(wide, scales))

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """A codebook is written once, so its tensor is one panel."""
        tables = _fitting(spec, params)
        if tables.table is None:
            return (None,) * len(spec.shape)
        return tables.scheme.grain(spec.shape, encoding=True)

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        tables = _fitting(spec, params)
        fitted = tables.table is None and not tables.scaled and tables.codebook_dtype in FLOATS
        scaled = tables.table is not None and tables.scaled and not tables.nested and tables.scheme.offset == "none"
        if not fitted and not scaled:
            raise CodecError(
                "a constant table with a scale is encoded, or codebooks of floats without one",
                expected="table=nf4,scale_dtype=f32 or codebook_dtype=f16",
                found=", ".join(f"{key}={value}" for key, value in params.items()), code=ErrorCode.PARAMS,
                hint="Files with other palettes are read all the same.",
            )  # fmt: skip
        return tables.params()

    def canonical(self, params: Params) -> Params:
        return Tables.of(params).params()

    def error_bound(self, params: Params) -> Exactness:
        """Half the widest gap of the table times the group's scale; not one number before the scales are known."""
        return Exactness("bounded")

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: Array) -> None:
        tables = Tables.of(params)
        step, place = tables.vector, tables.place(spec.shape)
        cut = tuple(
            slice(part.start // step, part.stop // step) if axis == place else part for axis, part in enumerate(region)
        )
        if step == 1 or place == len(region) - 1:
            _fill(tables, parts, tables.index_shape(spec.shape), cut, out.reshape(-1, step))
        else:
            sizes = [part.stop - part.start for part in cut]
            entries = np.empty((*sizes, step), np.float32)
            _fill(tables, parts, tables.index_shape(spec.shape), cut, entries.reshape(-1, step))
            out[...] = np.moveaxis(entries, -1, place + 1).reshape(out.shape)
        if tables.scaled:
            with np.errstate(all="ignore"):
                _scale(tables, parts, spec.shape, region, out)

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        tables = Tables.of(params)
        if tables.table is None:
            return _fitted(tables, panel)
        scheme, table = tables.scheme, tables.entries
        values = np.ascontiguousarray(panel.reshape(-1) if scheme.flat else panel, np.float32)
        blocks, axis = blocks_of(scheme, values)
        largest = np.abs(blocks).max(axis=axis, initial=0)
        check_finite(panel, largest)
        scale = step_of(largest.astype(np.float64) / float(np.abs(table).max()), scheme.scale_dtype)
        with np.errstate(all="ignore"):
            steps = blocks / np.expand_dims(scale.astype(np.float32), axis)
        codes = nearest(table, steps)
        codes = codes.reshape(-1)[: values.size].reshape(values.shape)
        return {"data": scheme.packing.pack(codes), "scale": scale}

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        """Indices into one table; None for vectors and several codebooks."""
        tables = _fitting(spec, params)
        if tables.vector > 1 or tables.codebook_size:
            return None
        table = STORED_TABLE if tables.table is None else tuple(tables.constant.tolist())
        return evolve(affine_layout(tables.scheme, spec.shape), table=table)

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        tables, layout = Tables.of(params), self.code_layout(spec, params)
        if layout is None:
            return None
        scaled = {**parts, "scale": tables.scales(parts, spec.shape)}
        indices = repack.affine_codes(tables.scheme, scaled, spec.shape, region)
        return indices and evolve(indices, layout=layout, table=_codebooks(tables, parts)[0, :, 0])

    def from_codes(self, codes: Codes, spec: TensorSpec, params: Params) -> tuple[dict[str, Array], Exactness] | None:
        tables = Tables.of(params)
        if codes.table is None or codes.layout.bits > tables.scheme.bits or tables.vector > 1 or tables.codebook_size:
            return None
        if codes.layout.offset_kind != tables.scheme.offset or codes.layout.zero or tables.nested:
            return None
        entries = np.zeros(1 << tables.scheme.bits, np.float32)
        entries[: len(codes.table)] = codes.table
        made = repack.affine_parts(tables.scheme, evolve(codes, layout=evolve(codes.layout, table=None)))
        book = tables.held(entries)
        if made is None or book is None:
            return None
        if not tables.scaled and not (made.pop("scale") == 1).all():
            return None
        return {**made, **book}, Exactness("values", "f32")


def _fitted(tables: Tables, panel: Array) -> dict[str, Array]:
    """Codebooks of runs of values, and the nearest entry of each; the entries are rounded first."""
    check_finite(panel, panel.min(initial=0), panel.max(initial=0))
    step, place, dtype = tables.vector, tables.place(panel.shape), dtypes.to_numpy(tables.codebook_dtype)
    shape = tables.index_shape(panel.shape)
    split = panel
    if step > 1:
        split = np.moveaxis(panel.reshape(*shape[: place + 1], step, *shape[place + 1 :]), place + 1, -1)
    size = tables.codebook_size or panel.size
    runs_of = np.ascontiguousarray(split, np.float32).reshape(panel.size // size if size else 1, size // step, step)
    books = np.empty((len(runs_of), 1 << tables.scheme.bits, step), dtype)
    codes = np.empty(runs_of.shape[:2], np.uint8)
    for row, run, book in zip(codes, runs_of, books):
        book[...] = codebook(run, len(book), tables.fit)
        entries = book.astype(np.float32)
        look_up = partial(nearest, entries[:, 0]) if step == 1 else partial(nearest_vectors, entries)
        for at in range(0, len(run), PANEL):
            row[at : at + PANEL] = look_up(run[at : at + PANEL, 0] if step == 1 else run[at : at + PANEL])
    lines = codes.reshape(-1 if tables.scheme.flat else shape)
    _, declared = tables.parts(panel.shape)["codebook"]
    return {"data": tables.scheme.packing.pack(lines), "codebook": books.reshape(declared)}


def nearest(table: Array, values: Array) -> Array:
    """The index (u8) of the entry nearest to each value; half way between two, that of the lower."""
    ranked, order = np.unique(table.astype(np.float64), return_index=True)
    exact = (ranked[1:] + ranked[:-1]) / 2
    # A value on a bound stays below it, so bounds may be rounded down.
    bounds = exact.astype(np.float32)
    bounds = np.where(bounds > exact, np.nextafter(bounds, np.float32(-np.inf)), bounds)
    for count in (64, 512, 4096):
        cells = _cells(bounds, ranked, count)
        if len(np.unique(cells)) == len(cells):  # then the cell leaves one comparison
            first = np.searchsorted(cells, np.arange(count)).astype(np.uint8)
            found = first[_cells(values, ranked, count)]
            found += values > np.append(bounds, np.float32(np.inf))[found]
            return order.astype(np.uint8)[found]
    return order.astype(np.uint8)[np.searchsorted(bounds, values)]


def _cells(values: Array, ranked: Array, count: int) -> Array:
    """Which of equal cells between the smallest and the largest entry; never falls as the values rise."""
    width = max(float(ranked[-1] - ranked[0]), 1e-30)
    steps = values - np.float32(ranked[0])
    steps *= np.float32(count / width)
    return np.clip(steps, 0, count - 1, out=steps).astype(np.int16)


def _fitting(spec: TensorSpec, params: Params) -> Tables:
    """The tables, once it is known that the shape divides."""
    tables = Tables.of(params)
    tables.parts(spec.shape)
    return tables


def _codebooks(tables: Tables, parts: Parts) -> Array:
    """All codebooks, f32 [codebooks, entries, vector]."""
    if tables.table is not None:
        return tables.constant[None, :, None]
    return parts["codebook"][...].astype(np.float32).reshape(-1, 1 << tables.scheme.bits, tables.vector)


def _fill(tables: Tables, parts: Parts, shape: tuple[int, ...], region: Region, out: Array) -> None:
    """The entries, f32 [indices, vector], of a region of indices."""
    books = _codebooks(tables, parts)
    size = tables.codebook_size // tables.vector
    for start, lines, target in _lines(tables, parts["data"], shape, region, out):
        if not size:
            _look_up(tables, books[0], lines, target)
            continue
        codes = tables.scheme.packing.unpack(lines, len(target) // len(lines)).reshape(-1)
        for low in _cuts(start, len(target), size):
            high = min(low + size - (start + low) % size, len(target))
            np.take(books[(start + low) // size], codes[low:high], axis=0, out=target[low:high], mode="clip")


def _cuts(start: int, count: int, size: int) -> Iterator[int]:
    """Where, in a run from `start`, codebooks begin; the first one at 0."""
    yield 0
    yield from range(size - start % size, count, size)


def _lines(
    tables: Tables, data: Any, shape: tuple[int, ...], region: Region, out: Array
) -> Iterator[tuple[int, Array, Array]]:
    """Place in row-major order, words [lines, words] and their part of `out`, of stretches of a region."""
    scheme, done = tables.indices, 0
    packing = scheme.packing
    if not scheme.flat and (not tables.codebook_size or len(region) < 2):
        *lead, last = region
        words = data[(*lead, packing.span(last.start, last.stop))]
        yield last.start, words.reshape(-1, words.shape[-1]), out
        return
    for start, stop in runs(shape, region) if scheme.flat else _rows(shape, region):
        target = out[done : done + stop - start]
        done += stop - start
        if scheme.flat:
            words = data[packing.span(start, stop)]
        else:
            *row, first = (int(place) for place in np.unravel_index(start, shape))
            words = data[(*row, packing.span(first, first + stop - start))]
        yield start, words[None], target


def _rows(shape: tuple[int, ...], region: Region) -> Iterator[tuple[int, int]]:
    """The stretch of row-major order of each row of a region."""
    *lead, last = region
    for index in np.ndindex(*(part.stop - part.start for part in lead)):
        row = 0
        for place, part, size in zip(index, lead, shape):
            row = row * size + part.start + place
        yield row * shape[-1] + last.start, row * shape[-1] + last.stop


def _look_up(tables: Tables, book: Array, lines: Array, out: Array) -> None:
    """Entries of one codebook; where a byte holds whole indices, all of its values are looked up at once."""
    packing = tables.scheme.packing
    count = len(out) // max(len(lines), 1)
    each = packing.unit
    if packing.width == 8 and tables.vector == 1 and each > 1 and lines.size * each == len(out):
        every = packing.unpack(np.arange(256, dtype=np.uint8)[:, None], each)
        entries, found, flat = book[every, 0], out.reshape(-1, each), lines.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), PANEL):  # NumPy widens indices to eight bytes
            np.take(entries, flat[at : at + PANEL], axis=0, out=found[at : at + PANEL], mode="clip")
    else:
        np.take(book, packing.unpack(lines, count).reshape(-1), axis=0, out=out, mode="clip")


def _scale(tables: Tables, parts: Parts, shape: tuple[int, ...], region: Region, out: Array) -> None:
    """Multiply, and shift, each group in place."""
    scheme, scales = tables.scheme, tables.scales(parts, shape)
    offsets = parts.get("offset")
    if not scheme.flat:
        size = scheme.group_size or max(shape[-1], 1)
        *lead, last = region
        cells = (*lead, slice(last.start // size, -(-last.stop // size)))
        _apply(scheme.offset, out.reshape(*out.shape[:-1], -1, min(size, out.shape[-1])), scales, offsets, cells)
        return
    size, done, values = scheme.group_size or max(int(np.prod(shape)), 1), 0, out.reshape(-1)
    for start, stop in runs(shape, region):
        run = values[done : done + stop - start]
        done += stop - start
        whole = len(run) // size * size
        middle = (start + whole) // size
        _apply(scheme.offset, run[:whole].reshape(-1, size), scales, offsets, (slice(start // size, middle),))
        if whole < len(run):  # the last group is short, or a region within one that spans the whole tensor
            _apply(scheme.offset, run[None, whole:], scales, offsets, (slice(middle, middle + 1),))


def _apply(kind: str, blocks: Array, scales: Any, offsets: Any, cells: tuple[slice, ...]) -> None:
    if kind == "zero_point":
        blocks -= offsets[cells].astype(np.float32)[..., None]
    blocks *= scales[cells].astype(np.float32, copy=False)[..., None]
    if kind == "bias":
        blocks += offsets[cells].astype(np.float32)[..., None]
