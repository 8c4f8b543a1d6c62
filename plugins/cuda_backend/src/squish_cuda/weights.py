"""The arrays of a weight on a device: its stored bits in the order of `form`, which can be undone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from attrs import asdict, evolve, frozen
from torch import Tensor

from squish_core.api import BoundEncoding, CodecError, Codes, MissingPluginError, TensorSpec, dtypes

from .blocks import BLOCKS, DIGIT_WORDS, DIGITS, GRIDS, HIGH, NBYTES, Bits, Block, Float, Grid, Pieces
from .form import ALL, BLOCK, RUN, Form, form_of, planes, runs, two_bytes, uncovered, words_of

STEP = 16 << 20
"""Codes to rearrange at once."""
ROLES = (
    "codes", "table", "registers", "grid", "signs", "high", "scale", "factor", "offset", "offset_factor", "order",
)  # fmt: skip
"""The arrays of a weight, in their order in `layout`."""
SHARED = ("table", "registers", "grid", "order")
"""The arrays that are not by rows."""
TORCH = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
}


@frozen(kw_only=True, eq=False)
class Weight:
    """A weight on a device.

    Attributes
    ----------
    shape
        Of the tensor; leading axes are flattened to rows.
    codes
        Planes of words (i32).
    table, scale, factor, offset, offset_factor
        What `form` names; None without.
    registers
        A stored table as eight words of integers (`form.two_bytes`), and the bits of their unit.
    grid
        The words of a grid's entries, four integers each; weights of one type share it.
    signs, high
        As `blocks.Grid` says.
    order
        The column of x for each column of the weight (act-order); None: the same.
    """

    form: Form
    shape: tuple[int, ...]
    codes: Tensor
    table: Tensor | None = None
    registers: Tensor | None = None
    grid: Tensor | None = None
    signs: Tensor | None = None
    high: Tensor | None = None
    scale: Tensor | None = None
    factor: Tensor | None = None
    offset: Tensor | None = None
    offset_factor: Tensor | None = None
    order: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of all matrices."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of a row."""
        return self.shape[-1]

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The arrays by role; offsets that are the scales are left out."""
        arrays = {role: getattr(self, role) for role in ROLES}
        shared = self.offset is self.scale
        return {
            role: array for role, array in arrays.items() if array is not None and not (shared and role == "offset")
        }

    @property
    def layout(self) -> str:
        """What `of_layout` makes the weight of, besides its arrays; as text, which an operation takes."""
        return json.dumps([asdict(self.form), self.shape, list(self.arrays)], separators=(",", ":"))

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(array.numel() * array.element_size() for array in self.arrays.values())


def of_layout(layout: str, arrays: Sequence[Tensor]) -> Weight:
    """The weight that has this layout and these arrays, in their order."""
    form, shape, roles = _read_layout(layout)
    named = dict(zip(roles, arrays))
    if form.offset is not None and "offset" not in named:
        named["offset"] = named["scale"]
    return Weight(form=form, shape=shape, **named)


@lru_cache(4096)
def _read_layout(layout: str) -> tuple[Form, tuple[int, ...], list[str]]:
    form, shape, roles = json.loads(layout)
    form = {name: tuple(value) if isinstance(value, list) else value for name, value in form.items()}
    return Form(**form), tuple(shape), roles


def load(bound: BoundEncoding, device: torch.device) -> Weight:
    """The weight of an encoding, rearranged on the device; CodecError if its data have no such form."""
    spec, codec, parts, order = bound.spec, bound.codec, bound.parts, None
    if codec.column_permuted(spec) is not None:
        codec, parts, columns = codec.permute_columns(parts, spec)
        order = None if columns is None else torch.from_numpy(columns.astype(np.int64)).to(device)
        encoding = bound.encoding
        bound = BoundEncoding(codec, spec, encoding, parts, bound.limits)
    form = form_of(codec, spec)
    kind, _, name = codec.id.partition(".")
    if kind == "ggml" and name in BLOCKS:
        arrays = _of_blocks(BLOCKS[name], NBYTES[name], bound, device)
    elif form.grid:
        arrays = _of_grid(name, form.grid, bound, device)
    elif form.packing == "digits":
        raw = _raw_blocks(bound, NBYTES[DIGITS], device)
        size = 4 * DIGIT_WORDS
        arrays = {"codes": _as(raw[..., :size], torch.int32), "scale": _as(raw[..., size:], torch.float16)}
    else:
        arrays = _OTHERS.get(codec.id, _of_codes)(form, bound, device)
    return Weight(form=form, shape=spec.shape, order=order, **arrays)


def stacked(weights: Sequence[Weight]) -> tuple[Weight, list[Weight]] | None:
    """Matrices as one stack, and again each of them as a view of it; None if they differ in more than their data."""
    first, count = weights[0], len(weights)
    form, height = first.form, first.shape[0]
    together = [role for role in first.arrays if role not in SHARED]
    for other in weights[1:]:
        if (other.form, other.shape, *other.arrays) != (form, first.shape, *first.arrays):
            return None
        if any(not torch.equal(other.arrays[role], first.arrays[role]) for role in SHARED if role in first.arrays):
            return None
    if any(rows < ALL and height % rows for rows in (form.group[0], form.outer[0])):
        return None
    group, outer = ((min(rows, height), columns) for rows, columns in (form.group, form.outer))
    arrays = dict(first.arrays)
    arrays.update({role: torch.cat([each.arrays[role] for each in weights]) for role in together})

    def of(form: Form, shape: tuple[int, ...], arrays: dict[str, Tensor]) -> Weight:
        return of_layout(json.dumps([asdict(form), shape, list(arrays)]), list(arrays.values()))

    pieces = {role: arrays[role].chunk(count) if role in together else [arrays[role]] * count for role in arrays}
    views = [of(form, first.shape, {role: pieces[role][number] for role in arrays}) for number in range(count)]
    return of(evolve(form, group=group, outer=outer), (count, *first.shape), arrays), views


# Words.


def pack(codes: Tensor, bits: int) -> list[Tensor]:
    """Codes (u8 [rows, whole runs]) as planes of words i32 [rows, runs, width]."""
    words, low = [], 0
    for width in planes(bits):
        field = (codes >> low) & ((1 << width) - 1)
        low += width
        quads = field.reshape(len(codes), -1, 8 // width, width, 4)
        word = quads[:, :, 0].clone()
        for step in range(1, 8 // width):
            word |= quads[:, :, step] << (width * step)
        words.append(word.view(torch.int32)[..., 0])
    return words


def unpack(words: list[Tensor], bits: int) -> Tensor:
    """The inverse of `pack`."""
    rows, low, codes = len(words[0]), 0, None
    for width, plane in zip(planes(bits), words):
        word = plane.contiguous()[..., None].view(torch.uint8)
        steps = [(word >> (width * step)) & ((1 << width) - 1) for step in range(8 // width)]
        field = torch.stack(steps, 2).reshape(rows, -1) << low
        codes, low = field if codes is None else codes | field, low + width
    assert codes is not None
    return codes


def planes_of(codes: Tensor, shape: tuple[int, ...], widths: Sequence[int]) -> list[Tensor]:
    """The planes of a weight's words, as views [matrices, rows, runs, width]; those of a matrix follow each other."""
    matrices, (height, columns), start, views = prod(shape[:-2]), shape[-2:], 0, []
    words = codes.view(matrices, -1)
    for width in widths:
        size = height * runs(columns) * width
        views.append(words[:, start : start + size].view(matrices, height, runs(columns), width))
        start += size
    return views


class _Planes:
    """Words of all rows, filled by runs of rows."""

    def __init__(self, shape: tuple[int, ...], bits: int, device: torch.device) -> None:
        self.bits, self.height, self.short = bits, shape[-2], runs(shape[-1]) * RUN - shape[-1]
        self.codes = torch.empty(prod(shape[:-1]) * runs(shape[-1]) * bits, dtype=torch.int32, device=device)
        self._views = planes_of(self.codes, shape, planes(bits))

    def fill(self, start: int, codes: Tensor) -> None:
        """Fill rows from `start` on (leading axes flattened) with codes u8 [rows, columns]."""
        if self.short:
            codes = torch.nn.functional.pad(codes, (0, self.short))
        for view, words in zip(self._views, pack(codes.contiguous(), self.bits)):
            done = 0
            while done < len(words):
                matrix, row = divmod(start + done, self.height)
                piece = words[done : done + self.height - row]
                view[matrix, row : row + len(piece)] = piece
                done += len(piece)


def _steps(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(1, STEP // max(columns, 1))
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


# GGML's blocks: all is computed on the device.


def _of_blocks(block: Block, nbytes: int, bound: BoundEncoding, device: torch.device) -> dict[str, Any]:
    rows, columns = prod(bound.spec.shape[:-1]), bound.spec.shape[-1]
    raw = _raw_blocks(bound, nbytes, device)
    words = _Planes(bound.spec.shape, block.bits, device)
    for start, stop in _steps(rows, columns):
        codes = _gather(raw[start:stop], block.codes)
        words.fill(start, (codes ^ (1 << (block.bits - 1)) if block.signed else codes).reshape(stop - start, -1))
    arrays: dict[str, Any] = {"codes": words.codes}
    for role, field in (
        ("scale", block.scale),
        ("offset", block.offset),
        ("factor", block.factor),
        ("offset_factor", block.offset_factor),
    ):
        if field is not None:
            arrays[role] = _numbers(raw, field).reshape(-1)
    if isinstance(block.scale, Bits) and isinstance(block.offset, Bits) and block.scale.pieces == block.offset.pieces:
        arrays["offset"] = arrays["scale"]
    if block.table is not None:
        arrays["table"] = torch.tensor(block.table, dtype=torch.float32, device=device)
    return arrays


def _raw_blocks(bound: BoundEncoding, nbytes: int, device: torch.device) -> Tensor:
    """The stored blocks, u8 [rows, blocks, bytes]."""
    return _bytes(np.asarray(bound.parts["data"][...]), device).reshape(prod(bound.spec.shape[:-1]), -1, nbytes)


def _as(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as flat numbers of another type."""
    return data.contiguous().view(dtype).reshape(-1)


def _of_grid(name: str, grid: Grid, bound: BoundEncoding, device: torch.device) -> dict[str, Any]:
    raw = _raw_blocks(bound, NBYTES[name], device)
    arrays = {
        "codes": _as(_gather(raw, grid.codes), torch.int32),
        "factor": _as(_gather(raw, grid.factor), torch.float16),
        "grid": _entries(name, bound, device),
    }
    if grid.signs:
        arrays["signs"] = _as(_gather(raw, grid.signs), torch.int32)
    if grid.high:
        high = _gather(raw, grid.high)
        arrays["high"] = _as(high, torch.uint8 if high.shape[-1] == BLOCK // RUN else torch.int16)
    if grid.scale:
        scale = _gather(raw, grid.scale)
        arrays["scale"] = (scale[..., ::2] | scale[..., 1::2] << 4).reshape(-1)
    return arrays


_grids: dict[tuple[str, torch.device], Tensor] = {}


def _entries(name: str, bound: BoundEncoding, device: torch.device) -> Tensor:
    """The entries of a grid as words: what the codec decodes blocks to that have all indices."""
    if (name, device) not in _grids:
        grid = GRIDS[name]
        parts: Any = {"data": _blocks_of_all(grid, NBYTES[name]).reshape(1, -1)}
        columns = grid.entries * grid.size
        spec, values = TensorSpec(name="", shape=(1, columns), dtype="f32"), np.empty((1, columns), np.float32)
        region = (slice(0, 1), slice(0, columns))
        try:
            bound.codec.decode(parts, spec, region=region, out=values)
        except MissingPluginError as error:
            raise uncovered(error.message) from error
        _grids[name, device] = _as(_bytes(values.astype(np.int8), device), torch.int32)
    return _grids[name, device]


def _blocks_of_all(grid: Grid, nbytes: int) -> np.ndarray:
    """Blocks [blocks, bytes] with all indices one after the other, and a scale by which values are integers."""
    indices = np.arange(grid.entries).reshape(-1, BLOCK // RUN, RUN // grid.size)
    raw, high, at = np.zeros((len(indices), nbytes), np.uint8), indices >> 8, np.arange(RUN // grid.size)
    low = indices.reshape(*indices.shape[:2], 4, -1).swapaxes(2, 3).reshape(len(indices), -1)
    scatter(raw, grid.codes, low & 255)
    kind, width = grid.high_kind, {"quads": 1, "octets": 2, "threes": 3}.get(grid.high_kind, 4)
    if kind == "signs":
        words = (high << (28 + at)).sum(-1).astype("<u4")
    else:
        last = high[..., :1] >> 3 << 15 if kind == "threes" else high[..., :1] * 0
        words = ((high & ((1 << width) - 1)) << (width * at)).sum(-1) | last[..., 0]
        words = words.astype("<u2" if width > 2 else np.uint8)
    if HIGH[kind].bits:
        pieces = grid.signs if kind == "signs" else grid.high
        assert pieces is not None
        scatter(raw, pieces, words.view(np.uint8).reshape(len(indices), -1))
    factor = np.full(len(indices), 1 / grid.unit, "<f2")
    scatter(raw, grid.factor, factor.view(np.uint8).reshape(-1, 2))
    return raw


def scatter(blocks: np.ndarray, pieces: Pieces, numbers: np.ndarray) -> None:
    """The inverse of `_gather`, into zeros [blocks, bytes]."""
    low = 0
    for width, places in pieces:
        byte, shift = np.divmod(np.array(places), 8)
        field = (((numbers >> low) & ((1 << width) - 1)) << shift).astype(np.uint8)
        np.bitwise_or.at(blocks.T, byte, field.T)  # a byte may have several numbers
        low += width


@lru_cache(256)
def _indices(places: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    place = torch.tensor(places, device=device)
    return place // 8, (place % 8).to(torch.uint8)


def _gather(blocks: Tensor, pieces: Pieces) -> Tensor:
    """Numbers [rows, blocks, numbers] of blocks [rows, blocks, bytes]."""
    numbers, low = None, 0
    for width, places in pieces:
        byte, shift = _indices(places, blocks.device)
        piece = ((blocks[..., byte] >> shift) & ((1 << width) - 1)) << low
        numbers, low = piece if numbers is None else numbers | piece, low + width
    assert numbers is not None
    return numbers


def _numbers(blocks: Tensor, field: Float | Bits) -> Tensor:
    if isinstance(field, Float):
        size = dtypes.nbytes(field.dtype, (1,))
        return blocks[..., field.start : field.start + size].contiguous().view(TORCH[field.dtype])
    numbers = _gather(blocks, field.pieces)
    return (numbers - field.minus).view(torch.int8) if field.dtype == "i8" else numbers


# All others: the codec's own codes, panel by panel.


def _of_codes(form: Form, bound: BoundEncoding, device: torch.device) -> dict[str, Any]:
    spec = bound.spec
    columns = spec.shape[-1]
    words, grids, start, last = _Planes(spec.shape, form.bits, device), _Grids(form, spec), 0, None
    for region in bound.panels(whole_rows=True, budget=STEP):
        try:
            codes = bound.codes(region)
        except CodecError as error:  # it depends on the data, such as zero points out of range
            raise uncovered(error.message, tensor=spec.name) from error
        if codes is None:
            raise uncovered("its codes have no form of their own", tensor=spec.name)
        count = prod(codes.shape[:-1])
        words.fill(start, _codes(codes, form, device).reshape(count, columns))
        grids.add(codes, count)
        start, last = start + count, codes
    assert last is not None
    arrays = {"codes": words.codes, **grids.arrays(device)}
    if form.table and last.table is not None:
        table = np.resize(last.table, 1 << form.bits)
        arrays["table"] = _floats(table, device)
        if form.has_registers:
            arrays["registers"] = _registers(table, spec.name, device)
    if form.factor:
        scales = np.broadcast_to(np.asarray(last.global_scale, np.float32).reshape(-1), prod(spec.shape[:-2]))
        arrays["factor"] = _floats(scales, device)
    return arrays


def _registers(table: np.ndarray, name: str, device: torch.device) -> Tensor:
    if not np.isfinite(table).all():
        raise uncovered("its table has numbers that are not finite", tensor=name)
    integers, fine, unit = two_bytes(table.astype(np.float64).tolist())
    words = [*words_of(integers), *words_of(fine), int(np.float32(unit).view(np.int32))]
    return torch.tensor(words, dtype=torch.int32, device=device)


def _codes(codes: Codes, form: Form, device: torch.device) -> Tensor:
    """Codes without a sign, u8 [..., columns]: unpacked on the device where the codec has packed rows."""
    words = codes.words
    if words is not None and form.bits < 8:
        line = _bytes(np.ascontiguousarray(words), device).reshape(prod(codes.shape[:-1]), -1)
        values = _stream(line, form.bits, codes.shape[-1])
    else:
        values = _bytes(np.ascontiguousarray(codes.values), device)
        values = values & ((1 << form.bits) - 1)
    return values ^ (1 << (form.bits - 1)) if codes.layout.signed and not (form.table or form.element) else values


def _stream(line: Tensor, bits: int, count: int) -> Tensor:
    """Codes of bit streams [rows, bytes], the first in the lowest bits: eight codes in `bits` bytes."""
    size = -(-count // 8) * bits
    short = size - line.shape[1]
    line = torch.nn.functional.pad(line, (0, short)) if short > 0 else line[:, :size]
    octets = line.reshape(len(line), -1, bits)
    pieces = tuple((1, tuple(range(bit, 8 * bits, bits))) for bit in range(bits))
    if 8 % bits == 0:
        pieces = ((bits, tuple(range(0, 8 * bits, bits))),)
    return _gather(octets, pieces).reshape(len(line), -1)[:, :count]


class _Grids:
    """Scales and offsets of all panels, each row with as many numbers as the form says."""

    def __init__(self, form: Form, spec: TensorSpec) -> None:
        self.form, self.columns = form, spec.shape[-1]
        self._pieces: dict[str, list[np.ndarray]] = {"scale": [], "offset": []}

    def add(self, codes: Codes, rows: int) -> None:
        """Add the numbers of a panel of so many rows."""
        offset = codes.offset
        for role, grid in (("scale", codes.scale), ("offset", offset)):
            if grid is not None and getattr(self.form, role):
                self._pieces[role].append(self._rows(grid, codes, rows))

    def _rows(self, grid: np.ndarray, codes: Codes, rows: int) -> np.ndarray:
        """Numbers [rows, numbers] out of a grid over the region."""
        size = self.form.group[1] or max(self.columns, 1)
        step = codes.group[-1]
        if grid.ndim != len(codes.shape) or (step != size and grid.shape[-1] > 1 and size % step):
            raise uncovered("its groups are not those that its layout declares")
        for axis, group in enumerate(codes.group[:-1]):
            if group > 1 and grid.shape[axis] != codes.shape[axis]:
                grid = np.repeat(grid, group, axis)
            grid = grid.take(range(codes.shape[axis]), axis) if grid.shape[axis] > codes.shape[axis] else grid
        flat = np.ascontiguousarray(grid).reshape(rows, -1)
        if flat.shape[1] > 1 and step < size:
            if (flat.reshape(rows, -1, size // step) != flat[:, :: size // step, None]).any():
                raise uncovered("its groups are smaller than its layout declares")
            flat = flat[:, :: size // step]
        short = self.form.numbers(self.columns) - flat.shape[1]
        return np.pad(flat, ((0, 0), (0, short))) if short > 0 else flat

    def arrays(self, device: torch.device) -> dict[str, Tensor]:
        """The arrays by role."""
        arrays = {}
        for role, pieces in self._pieces.items():
            dtype = getattr(self.form, role)
            if dtype is not None and pieces:
                grid = np.concatenate(pieces)
                arrays[role] = _typed(grid, dtype, device).reshape(-1)
        return arrays


def _of_float8(form: Form, bound: BoundEncoding, device: torch.device) -> dict[str, Any]:
    spec, parts = bound.spec, bound.parts
    rows, columns = prod(spec.shape[:-1]), spec.shape[-1]
    words = _Planes(spec.shape, 8, device)
    raw = _bytes(np.asarray(parts["data"][...]), device).reshape(rows, columns)
    for start, stop in _steps(rows, columns):
        words.fill(start, raw[start:stop])
    scale = np.atleast_1d(np.asarray(parts["scale"][...]))
    scale = scale.reshape(-1, scale.shape[-1])
    short = form.numbers(columns) - scale.shape[1]
    if short > 0:
        scale = np.pad(scale, ((0, 0), (0, short)))
    arrays = {"codes": words.codes, "scale": _typed(scale, form.scale, device).reshape(-1)}
    if form.table:
        element = dtypes.to_numpy(str(bound.codec.params.get("element")))
        arrays["table"] = _floats(np.arange(256, dtype=np.uint8).view(element).astype(np.float32), device)
    return arrays


def _of_hqq(form: Form, bound: BoundEncoding, device: torch.device) -> dict[str, Any]:
    spec, parts = bound.spec, bound.parts
    rows, columns = prod(spec.shape[:-1]), spec.shape[-1]
    stored, groups = np.asarray(parts["data"][...]), spec.elements // bound.codec.params["group_size"]
    lines = _bytes(stored, device).view(TORCH["i32"] if stored.itemsize == 4 else torch.uint8)
    # a word has codes of lines far apart, the first in the highest bits; 3 bits: ten in a word of 32
    shifts = range(27, -1, -3) if stored.itemsize == 4 else range(8 - form.bits, -1, -form.bits)
    codes = torch.cat([(lines >> shift) & ((1 << form.bits) - 1) for shift in shifts])[:groups].to(torch.uint8)
    words = _Planes(spec.shape, form.bits, device)
    words.fill(0, codes.reshape(rows, columns))
    arrays = {"codes": words.codes}
    for role, part in (("scale", "scale"), ("offset", "zero")):
        grid = np.asarray(parts[part][...]).reshape(rows, -1)
        short = form.numbers(columns) - grid.shape[1]
        arrays[role] = _typed(np.pad(grid, ((0, 0), (0, max(short, 0)))), form.scale, device).reshape(-1)
    return arrays


_OTHERS = {"float8": _of_float8, "hqq": _of_hqq}
"""Codecs that declare no layout of codes."""

# Arrays.


def _bytes(array: np.ndarray, device: torch.device) -> Tensor:
    """An array's bytes on the device, in its shape for types of one byte."""
    raw = np.ascontiguousarray(array).view(np.uint8)
    return torch.from_numpy(raw if raw.flags.writeable else raw.copy()).to(device)


def _floats(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32).copy()).to(device)


def _typed(array: np.ndarray, dtype: str, device: torch.device) -> Tensor:
    """An array of stored numbers: those of 8 bits as bytes, bf16 and f16 as such, wide integers as f32."""
    stored = dtypes.from_numpy(array.dtype)
    if dtype == "f32" or stored not in (*TORCH, "f8_e8m0", "f8_e4m3", "f8_e5m2"):
        return _floats(array.astype(np.float32), device)
    array = np.ascontiguousarray(array)
    if array.itemsize == 1:
        return torch.from_numpy(array.view(np.int8 if dtype == "i8" else np.uint8).copy()).to(device)
    if stored == "bf16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)
