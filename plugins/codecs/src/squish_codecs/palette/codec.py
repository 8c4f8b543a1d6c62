"""Palettes: small indices into a codebook, optionally with a scale per group."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Indices `i` with `value = table[i] * scale` in float32, each operation rounded once.

    Parts: `data` (the indices); `codebook` unless the table is a parameter; optional `scale` and `offset`.

    bits           1..8       width of an index; required
    axis           -1         -1: indices and groups are along the rows; "flat": both cover the flattened row-major
                              tensor
    word, order    u8, lsb    see affine (bitsandbytes: msb)
    table          none       nf4, nf2, or a list of up to 2**bits numbers: a constant table without a `codebook`
    codebook_size  0          values per codebook, in row-major order (a row's length: one per row); 0: one for all
    codebook_dtype f32        f32 f16 bf16 i8 u8, converted to f32 first; part [codebooks,] 2**bits [, vector]
    vector         1          values per index, neighbors along `vector_axis`
    vector_axis    -1         axis, counted from the end
    scale_dtype    none       see affine; none: no scale
    group_size     0          values per scale; 0: a whole row, or the whole flattened tensor
    offset         none       none; zero_point: `(table[i] - offset) * scale`; bias: `table[i] * scale + offset`
    offset_dtype   see affine
    nested         0          scales are u8 indices i, `scale_codebook[i] * scale_scale + scale_offset`, with one
                              `scale_scale` per this many scales; flat only (bitsandbytes' double quantization)

    fit            kmeans     kmeans or uniform: the encoder's fit, per `codebook_size` values

    The encoder supports codebooks without scales, and symmetric constant tables with a scale: the group's largest
    magnitude over the table's, rounded up to its dtype. A value halfway between two entries gets the lower one.
    Sources: Core ML constexpr_lut_to_dense; QLoRA (NF4); bitsandbytes; Squish npy directories.
    """

    unsliced_parts = ("codebook", "scale_codebook")  # any row may use any entry

    def bind(self) -> None:
        self.tables = Tables.of(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.tables.parts(spec.shape)

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        tables = self._fitting(spec)
        indices = tables.indices.grain(tables.index_shape(spec.shape))
        wide = [
            step if axis != tables.place(spec.shape) else step and step * tables.vector
            for axis, step in enumerate(indices)
        ]
        scales = tables.scheme.grain(spec.shape) if tables.scaled else (1,) * len(wide)
        return tuple(None if a is None or b is None else lcm(a, b) for a, b in zip(wide, scales))

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return one panel for a fitted codebook, which covers the whole tensor."""
        tables = self._fitting(spec)
        if tables.table is None:
            return (None,) * len(spec.shape)
        return tables.scheme.grain(spec.shape, encoding=True)

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        tables = cls.from_params(options)._fitting(spec)
        fitted = tables.table is None and not tables.scaled and tables.codebook_dtype in FLOATS
        scaled = tables.table is not None and tables.scaled and not tables.nested and tables.scheme.offset == "none"
        if not fitted and not scaled:
            raise CodecError(
                "the encoder supports a constant table with a scale, or float codebooks without one",
                expected="table=nf4,scale_dtype=f32 or codebook_dtype=f16",
                found=", ".join(f"{key}={value}" for key, value in options.items()),
                code=ErrorCode.PARAMS,
                hint="Other palettes can be read.",
            )
        return tables.params()

    @property
    def canonical(self) -> Params:
        return self.tables.params()

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        tables = self.tables
        step, vector_axis = tables.vector, tables.place(spec.shape)
        cut = tuple(
            slice(part.start // step, part.stop // step) if axis == vector_axis else part
            for axis, part in enumerate(region)
        )
        if step == 1 or vector_axis == len(region) - 1:
            _fill(tables, parts, tables.index_shape(spec.shape), cut, out.reshape(-1, step))
        else:
            sizes = [part.stop - part.start for part in cut]
            entries = np.empty((*sizes, step), np.float32)
            _fill(tables, parts, tables.index_shape(spec.shape), cut, entries.reshape(-1, step))
            out[...] = np.moveaxis(entries, -1, vector_axis + 1).reshape(out.shape)
        if tables.scaled:
            with np.errstate(all="ignore"):
                _scale(tables, parts, spec.shape, region, out)

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        tables = self.tables
        if tables.table is None:
            return _fit_codebooks(tables, panel)
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

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Return the layout of indices into one table; None for vectors or several codebooks."""
        tables = self._fitting(spec)
        if tables.vector > 1 or tables.codebook_size:
            return None
        table = STORED_TABLE if tables.table is None else tuple(tables.constant.tolist())
        return evolve(affine_layout(tables.scheme, spec.shape), table=table)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        tables, layout = self.tables, self.code_layout(spec)
        if layout is None:
            return None
        scaled = {**parts, "scale": tables.scales(parts, spec.shape)}
        indices = repack.affine_codes(tables.scheme, scaled, spec.shape, region)
        return indices and evolve(indices, layout=layout, table=_codebooks(tables, parts)[0, :, 0])

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, Array], Exactness] | None:
        tables = self.tables
        if codes.table is None or codes.layout.bits > tables.scheme.bits or tables.vector > 1 or tables.codebook_size:
            return None
        if (
            codes.global_scale is not None
            or codes.layout.offset_kind != tables.scheme.offset
            or codes.layout.zero
            or tables.nested
        ):
            return None
        entries = np.zeros(1 << tables.scheme.bits, np.float32)
        entries[: len(codes.table)] = codes.table
        parts = repack.affine_parts(tables.scheme, evolve(codes, layout=evolve(codes.layout, table=None)))
        book = tables.table_parts(entries)
        if parts is None or book is None:
            return None
        if not tables.scaled and not (parts.pop("scale") == 1).all():
            return None
        return {**parts, **book}, Exactness("values", "f32")

    def _fitting(self, spec: TensorSpec) -> Tables:
        """Return the tables; CodecError if they do not divide the shape."""
        self.tables.parts(spec.shape)
        return self.tables


def _fit_codebooks(tables: Tables, panel: Array) -> dict[str, Array]:
    """Fit a codebook per run of values, round its entries, and return the nearest indices."""
    check_finite(panel, panel.min(initial=0), panel.max(initial=0))
    step, vector_axis, dtype = tables.vector, tables.place(panel.shape), dtypes.to_numpy(tables.codebook_dtype)
    shape = tables.index_shape(panel.shape)
    split = panel
    if step > 1:
        split = np.moveaxis(
            panel.reshape(*shape[: vector_axis + 1], step, *shape[vector_axis + 1 :]), vector_axis + 1, -1
        )
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
    _, book_shape = tables.parts(panel.shape)["codebook"]
    return {"data": tables.scheme.packing.pack(lines), "codebook": books.reshape(book_shape)}


def nearest(table: Array, values: Array) -> Array:
    """Return the index (u8) of the nearest entry for each value; the lower one at a midpoint."""
    ranked, order = np.unique(table.astype(np.float64), return_index=True)
    exact = (ranked[1:] + ranked[:-1]) / 2
    # A value on a bound belongs to the lower entry, so bounds may round down.
    bounds = exact.astype(np.float32)
    bounds = np.where(bounds > exact, np.nextafter(bounds, np.float32(-np.inf)), bounds)
    for count in (64, 512, 4096):
        cells = _cells(bounds, ranked, count)
        if len(np.unique(cells)) == len(cells):  # each cell has at most one bound
            first = np.searchsorted(cells, np.arange(count)).astype(np.uint8)
            rank = first[_cells(values, ranked, count)]
            rank += values > np.append(bounds, np.float32(np.inf))[rank]
            return order.astype(np.uint8)[rank]
    return order.astype(np.uint8)[np.searchsorted(bounds, values)]


def _cells(values: Array, ranked: Array, count: int) -> Array:
    """Return the cell number of each value between the smallest and largest entry; monotonic."""
    width = max(float(ranked[-1] - ranked[0]), 1e-30)
    steps = values - np.float32(ranked[0])
    steps *= np.float32(count / width)
    return np.clip(steps, 0, count - 1, out=steps).astype(np.int16)


def _codebooks(tables: Tables, parts: Parts) -> Array:
    """Return all codebooks, f32 [codebooks, entries, vector]."""
    if tables.table is not None:
        return tables.constant[None, :, None]
    return parts["codebook"][...].astype(np.float32).reshape(-1, 1 << tables.scheme.bits, tables.vector)


def _fill(tables: Tables, parts: Parts, shape: tuple[int, ...], region: Region, out: Array) -> None:
    """Look up the entries, f32 [indices, vector], of a region of indices."""
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
    """Yield the positions in a run at which a codebook starts, beginning with 0."""
    yield 0
    yield from range(size - start % size, count, size)


def _lines(
    tables: Tables, data: Any, shape: tuple[int, ...], region: Region, out: Array
) -> Iterator[tuple[int, Array, Array]]:
    """Yield row-major position, words [lines, words] and slice of `out` for each contiguous range of a region."""
    scheme, position = tables.indices, 0
    packing = scheme.packing
    if not scheme.flat and (not tables.codebook_size or len(region) < 2):
        *lead, last = region
        words = data[(*lead, packing.span(last.start, last.stop))]
        yield last.start, words.reshape(-1, words.shape[-1]), out
        return
    for start, stop in runs(shape, region) if scheme.flat else _rows(shape, region):
        target = out[position : position + stop - start]
        position += stop - start
        if scheme.flat:
            words = data[packing.span(start, stop)]
        else:
            *row, first = map(int, np.unravel_index(start, shape))
            words = data[(*row, packing.span(first, first + stop - start))]
        yield start, words[None], target


def _rows(shape: tuple[int, ...], region: Region) -> Iterator[tuple[int, int]]:
    """Yield the row-major range of each row of a region."""
    *lead, last = region
    for index in np.ndindex(*(part.stop - part.start for part in lead)):
        row = 0
        for offset, part, size in zip(index, lead, shape):
            row = row * size + part.start + offset
        yield row * shape[-1] + last.start, row * shape[-1] + last.stop


def _look_up(tables: Tables, book: Array, lines: Array, out: Array) -> None:
    """Look up indices in one codebook; a byte with several whole indices is looked up at once."""
    packing = tables.scheme.packing
    count = len(out) // max(len(lines), 1)
    codes_per_byte = packing.unit
    if packing.width == 8 and tables.vector == 1 and codes_per_byte > 1 and lines.size * codes_per_byte == len(out):
        codes = packing.unpack(np.arange(256, dtype=np.uint8)[:, None], codes_per_byte)
        entries, target, flat = book[codes, 0], out.reshape(-1, codes_per_byte), lines.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), PANEL):  # NumPy converts indices to 64 bits
            np.take(entries, flat[at : at + PANEL], axis=0, out=target[at : at + PANEL], mode="clip")
    else:
        np.take(book, packing.unpack(lines, count).reshape(-1), axis=0, out=out, mode="clip")


def _scale(tables: Tables, parts: Parts, shape: tuple[int, ...], region: Region, out: Array) -> None:
    """Apply scale and offset to each group in place."""
    scheme, scales = tables.scheme, tables.scales(parts, shape)
    offsets = parts.get("offset")
    if not scheme.flat:
        size = scheme.group_size or max(shape[-1], 1)
        *lead, last = region
        cells = (*lead, slice(last.start // size, -(-last.stop // size)))
        _apply(scheme.offset, out.reshape(*out.shape[:-1], -1, min(size, out.shape[-1])), scales, offsets, cells)
        return
    size, position, values = scheme.group_size or max(int(np.prod(shape)), 1), 0, out.reshape(-1)
    for start, stop in runs(shape, region):
        run = values[position : position + stop - start]
        position += stop - start
        full_groups = len(run) // size * size
        middle = (start + full_groups) // size
        _apply(scheme.offset, run[:full_groups].reshape(-1, size), scales, offsets, (slice(start // size, middle),))
        if full_groups < len(run):  # a short last group, or part of a group
            _apply(scheme.offset, run[None, full_groups:], scales, offsets, (slice(middle, middle + 1),))


def _apply(kind: str, blocks: Array, scales: Any, offsets: Any, cells: tuple[slice, ...]) -> None:
    if kind == "zero_point":
        blocks -= offsets[cells].astype(np.float32)[..., None]
    blocks *= scales[cells].astype(np.float32, copy=False)[..., None]
    if kind == "bias":
        blocks += offsets[cells].astype(np.float32)[..., None]
