"""Which kernel runs with which tiles: fixed sizes, so that nothing is tuned at run time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import kernels
from .blocks import HIGH
from .form import KINDS, OFFSETS, RUN, Form, runs, words_of
from .weights import Weight

LEVELS = {"f32": 0, "int8": 1, "int16": 2}
"""`activations`: how x is prepared for few rows."""
LANES = 256
"""Words of a row that a step of `product` reads."""


class Arguments(NamedTuple):
    """A weight as the kernels take it: arrays or None, sizes, and what is constant for its form."""

    codes: Tensor
    table: Tensor | None
    registers: Tensor | None
    grid: Tensor | None
    signs: Tensor | None
    high: Tensor | None
    scale: Tensor | None
    factor: Tensor | None
    offset: Tensor | None
    offset_factor: Tensor | None
    plane: int
    rows: int
    height: int
    runs: int
    columns: int
    numbers: int
    outers: int
    FIRST: Any
    SECOND: Any
    THIRD: Any
    FIRST_MASK: Any
    SECOND_MASK: Any
    STACKED: Any
    DIGITS: Any
    ENTRY_WORDS: Any
    SIGN_BITS: Any
    HIGH: Any
    SIGNED: Any
    ZERO: Any
    UNIT: Any
    ENTRY: Any
    T0: Any
    T1: Any
    T2: Any
    T3: Any
    FINE: Any
    F0: Any
    F1: Any
    F2: Any
    F3: Any
    ELEMENT: Any
    SCALE: Any
    DIVIDES: Any
    OFFSET: Any
    OFFSET_DTYPE: Any
    ROWS: Any
    COLUMNS: Any
    OUTER_ROWS: Any
    OUTER_COLUMNS: Any
    SUB: Any


@lru_cache(4096)
def constants(form: Form, levels: int, stacked: bool) -> tuple[Any, ...]:
    """The constants of a form, in the order of `Arguments`; numbers of a table are integers where x is."""
    widths, grid = (*form.widths, 0, 0)[:3], form.grid
    masks = (int.from_bytes(bytes(((1 << width) - 1,)) * 4) for width in widths[:2])
    values = (
        *widths,
        *masks,
        stacked and widths[1] > 0,
        form.packing == "digits",
        grid.size // 4 if grid else 0,
        grid.sign_bits if grid else 0,
        HIGH[grid.high_kind].number if grid else 0,
        form.table or grid is not None,
        0 if form.table else form.zero,
        form.unit if levels or grid else 1.0,
        form.unit if grid or (form.integers and not form.fine) else 0.0,
        *words_of(form.integers or ()),
        form.fine is not None or form.has_registers,
        *words_of(form.fine or ()),
        KINDS.get(form.element or "", 0),
        KINDS[form.scale],
        form.factor == "divide",
        OFFSETS[form.offset_kind],
        KINDS.get(form.offset or "", 0),
        *form.group,
        *form.outer,
        parts_of_run(form),
    )
    return tuple(tl.constexpr(value) for value in values)


def parts_of_run(form: Form) -> int:
    """Groups of a run, and so sums of x."""
    return RUN // form.group[1] if 0 < form.group[1] < RUN else 1


def arguments(weight: Weight, levels: int = 0) -> Arguments:
    """A weight as the kernels take it."""
    form, wide = weight.form, runs(weight.columns)
    return Arguments(
        weight.codes,
        weight.table,
        weight.registers,
        weight.grid,
        weight.signs,
        weight.high,
        weight.scale,
        weight.factor,
        weight.offset,
        weight.offset_factor,
        weight.shape[-2] * wide,
        weight.rows,
        weight.shape[-2],
        wide,
        weight.columns,
        form.numbers(weight.columns),
        form.numbers(weight.columns, outer=True),
        *constants(form, levels, len(weight.shape) == 3),
    )


class Prepared(NamedTuple):
    """Rows of x for `product`: integers and their steps, or numbers; and the sums of groups. They serve every weight
    with as many groups in a run."""

    high: Tensor
    low: Tensor
    steps: Tensor
    sums: Tensor


def prepare(x: Tensor, form: Form, order: Tensor | None, levels: int) -> Prepared:
    """Prepare rows of x [rows, columns] of any strides."""
    rows, columns = x.shape
    wide, parts = runs(columns), parts_of_run(form)
    high = torch.empty(rows, wide * RUN, dtype=torch.int8 if levels else torch.float32, device=x.device)
    low = torch.empty_like(high) if levels == 2 else high
    steps = torch.empty(rows, wide, dtype=torch.float32, device=x.device)
    sums = torch.empty(rows, wide * parts, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        kernels.prepare[triton.cdiv(wide, 32), rows](
            x,
            order,
            high,
            low,
            steps,
            sums,
            columns,
            wide,
            x.stride(0),
            x.stride(1),
            SUB=parts,
            LEVELS=levels,
            BR=32,
            num_warps=4,
            enable_fp_fusion=True,
        )
    if levels:
        high, low = high.view(torch.int32), low.view(torch.int32)
    return Prepared(high, low, steps, sums)


def multiply(weight: Weight, x: Prepared, y: Tensor, bias: Tensor | None, ids: Tensor | None, levels: int) -> None:
    """Products of few rows into y; `ids`: the matrix of each row."""
    together = 1 if ids is not None else triton.next_power_of_2(len(y))
    size = 2 if together < 4 and weight.grid is None else 1  # two rows of grids take 128 registers
    with torch.cuda.device_of(y):
        kernels.product[triton.cdiv(weight.shape[-2], size), 1 if ids is None else len(y)](
            x,
            arguments(weight, levels),
            ids,
            bias,
            y,
            len(y),
            y.stride(0),
            LEVELS=levels,
            M=together,
            BN=size,
            BR=LANES // weight.form.widths[0],
            num_warps=4,
            enable_fp_fusion=True,
        )


class Groups(NamedTuple):
    """Rows of x by matrix: their order, and for each tile its matrix and where its rows start and stop."""

    order: Tensor
    experts: Tensor
    starts: Tensor
    stops: Tensor

    @classmethod
    def of(cls, ids: Tensor, count: int, size: int) -> Groups:
        """Tiles of `size` rows; as many as there may be, the last ones without rows."""
        order = ids.argsort()
        each = (ids[:, None] == torch.arange(count, device=ids.device)).sum(0)
        tiles = -(-each // size)
        ends = tiles.cumsum(0)
        number = torch.arange(triton.cdiv(len(ids), size) + count, device=ids.device)
        expert = torch.searchsorted(ends, number, right=True).clamp(max=count - 1)
        last = each.cumsum(0)[expert]
        starts = last - each[expert] + (number - ends[expert] + tiles[expert]) * size
        return cls(order, expert, starts, torch.where(number < ends[-1], torch.minimum(starts + size, last), starts))


def tile(
    weight: Weight, x: Tensor, y: Tensor, bias: Tensor | None = None, groups: Groups | None = None, size: int = 0
) -> None:
    """Products on matrix units into y, in tiles of `size` rows."""
    size = size or max(16, min(64, triton.next_power_of_2(len(x))))
    number = triton.cdiv(len(x), size) if groups is None else len(groups.experts)
    with torch.cuda.device_of(y):
        kernels.tiles[triton.cdiv(weight.shape[-2], 64), number](
            x,
            arguments(weight),
            groups,
            bias,
            y,
            len(x),
            x.stride(0),
            x.stride(1),
            y.stride(0),
            WIDE=x.dtype != torch.bfloat16,
            BM=size,
            BN=64,
            BR=8 if weight.form.widths[0] < 4 else 4,
            num_warps=8 if weight.form.table or weight.form.element else 4,  # their values take registers
            enable_fp_fusion=True,
        )


def decode(weight: Weight, ids: Tensor | None, start: int, out: Tensor) -> None:
    """Values of rows into `out`, with the roundings of the codecs."""
    wide = 32 if weight.table is None else 16  # addresses in a table take registers
    with torch.cuda.device_of(out):
        kernels.values[triton.cdiv(len(out), 4), triton.cdiv(runs(weight.columns), wide)](
            arguments(weight),
            ids,
            start,
            len(out),
            out,
            out.stride(0),
            BN=4,
            BR=wide,
            num_warps=4,
            enable_fp_fusion=False,
        )
