"""Operations on torch tensors: which kernel runs with which tiles. No host tensors, no reads from the device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from attrs import frozen
from torch import Tensor

from . import kernels
from .form import KINDS, OFFSETS, RUN, Form, planes, runs
from .weights import Weight

FEW, SOME = 4, 128
"""Rows of x up to which integers are multiplied, and up to which tiles of codes are."""
LEVELS = {"f32": 0, "int8": 1, "int16": 2}
"""`activations`: how x is prepared for few rows."""
LANES = 256
"""Words of a row that a step of `product` reads."""


@lru_cache(4096)
def constants(form: Form) -> dict[str, Any]:
    """The constants of a form that all kernels have."""
    return {
        "BITS": form.bits, "ZERO": form.zero, "TABLE": form.table, "SCALE": -1 if form.scale is None else KINDS[form.scale],
        "FACTOR": {None: 0, "multiply": 1, "divide": 2}[form.factor], "OFFSET": OFFSETS[form.offset_kind],
        "OFFSET_DTYPE": KINDS.get(form.offset or "", 0), "OFFSET_FACTOR": int(form.offset_kind == "minimum"),
        "ROWS": form.group[0], "COLUMNS": form.group[1], "OUTER_ROWS": form.outer[0], "OUTER_COLUMNS": form.outer[1],
    }  # fmt: skip


@lru_cache(4096)
def entries(form: Form) -> dict[str, Any]:
    """The integers of a table of 16 as four words, and what one means."""
    table = [*(form.integers or ()), *(0,) * 16][:16]
    words = [int.from_bytes(bytes(value & 255 for value in table[at : at + 4]), "little") for at in range(0, 16, 4)]
    signed = [word - (1 << 32) if word >> 31 else word for word in words]
    return {**{f"T{at}": word for at, word in enumerate(signed)}, "UNIT": form.unit}


def arrays(weight: Weight) -> tuple[Tensor, ...]:
    """The arrays of a weight, in the order of the kernels; the codes stand for those that it has not."""
    named = (weight.table, weight.scale, weight.factor, weight.offset, weight.offset_factor)
    return (weight.codes, *(weight.codes if array is None else array for array in named))


@frozen
class Prepared:
    """Rows of x for `product`: integers and their steps, or numbers; and the sums of groups. For every weight of the same
    form, so modules that share x may share it."""

    high: Tensor
    low: Tensor
    steps: Tensor
    sums: Tensor
    rows: int
    levels: int


def parts_of_run(form: Form) -> int:
    """Sums of x for a run."""
    return RUN // form.group[1] if 0 < form.group[1] < RUN else 1


def prepare(x: Tensor, form: Form, order: Tensor | None, activations: str) -> Prepared:
    """Prepare rows of x [rows, columns] of any strides."""
    rows, columns = x.shape
    wide, levels, parts = runs(columns), LEVELS[activations], parts_of_run(form)
    high = torch.empty(rows, wide * RUN, dtype=torch.int8 if levels else torch.float32, device=x.device)
    low = torch.empty_like(high) if levels == 2 else high
    steps = torch.empty(rows, wide, dtype=torch.float32, device=x.device)
    sums = torch.empty(rows, wide * parts, dtype=torch.float32, device=x.device)
    kernels.prepare[(triton.cdiv(wide, 32), rows)](
        x, x if order is None else order, high, low, steps, sums, columns, wide, x.stride(0), x.stride(1),
        ORDERED=order is not None, SUB=parts, LEVELS=levels, BR=32, num_warps=4,
    )  # fmt: skip
    integers = (part.view(torch.int32) if levels else part for part in (high, low))
    return Prepared(*integers, steps, sums, rows, levels)


def linear(weight: Weight, x: Tensor, bias: Tensor | None = None, activations: str = "int16") -> Tensor:
    """`x @ W.T + bias` in the dtype of x, for x [..., columns]."""
    flat = x.reshape(-1, weight.columns)
    count, height = len(flat), weight.rows
    y = torch.empty(count, height, dtype=x.dtype, device=x.device)
    if count and count <= FEW:
        multiply(weight, prepare(flat, weight.form, weight.order, chosen(weight.form, activations)), y, bias)
    elif count:
        many(weight, flat, y, bias)
    return y.reshape(*x.shape[:-1], height)


def chosen(form: Form, activations: str) -> str:
    """How x is prepared: in f32 for codes whose values are no integers."""
    return activations if form.has_integer_products else "f32"


def multiply(weight: Weight, x: Prepared, y: Tensor, bias: Tensor | None = None, ids: Tensor | None = None) -> None:
    """Products of few rows into y; `ids`: the matrix of each row."""
    form, wide = weight.form, runs(weight.columns)
    lead = planes(form.bits)[0]
    together = 1 if ids is not None else triton.next_power_of_2(x.rows)
    tile = 2 if together < 4 else 1
    height = weight.shape[-2]
    table = entries(form) if x.levels else {**entries(form), "UNIT": 1.0}
    kernels.product[(triton.cdiv(height, tile), x.rows if ids is not None else 1)](
        x.high, x.low, x.steps, x.sums, y if ids is None else ids, y if bias is None else bias, y, *arrays(weight),
        weight.rows * wide, height, wide, x.rows, form.numbers(weight.columns), form.numbers(weight.columns, outer=True),
        y.stride(0), **constants(form), **table, LEVELS=x.levels, EXPERTS=ids is not None, BIASED=bias is not None,
        M=together, BN=tile, BR=LANES // lead, ASM=y.is_cuda, num_warps=4,
    )  # fmt: skip


def many(weight: Weight, x: Tensor, y: Tensor, bias: Tensor | None) -> None:
    """Products of more rows: tiles of codes up to SOME, then decoded values and torch's product."""
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    if len(x) <= SOME:
        tile(weight, x, y, bias)
        return
    values = dense(weight, dtype=x.dtype).reshape(-1, weight.columns)
    if bias is None:
        torch.mm(x, values.T, out=y)
    else:
        torch.addmm(bias.to(x.dtype), x, values.T, out=y)


@frozen
class Groups:
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
        ends = (-(-each // size)).cumsum(0)
        number = torch.arange(triton.cdiv(len(ids), size) + count, device=ids.device)
        expert = torch.searchsorted(ends, number, right=True).clamp(max=count - 1)
        last = each.cumsum(0)
        starts = last[expert] - each[expert] + (number - (ends[expert] - -(-each[expert] // size))) * size
        stops = torch.where(number < ends[-1], torch.minimum(starts + size, last[expert]), starts)
        return cls(order, expert, starts, stops)


def tile(weight: Weight, x: Tensor, y: Tensor, bias: Tensor | None = None, groups: Groups | None = None, size: int = 0) -> None:
    """Products on matrix units into y; `groups`: of experts, in tiles of `size` rows."""
    form, wide, height = weight.form, runs(weight.columns), weight.shape[-2]
    size = size or max(16, min(64, triton.next_power_of_2(len(x))))
    step = 8 if planes(form.bits)[0] < 4 else 4
    none = weight.codes
    grouped = (none,) * 4 if groups is None else (groups.order, groups.experts, groups.starts, groups.stops)
    number = triton.cdiv(len(x), size) if groups is None else len(groups.experts)
    kernels.tiles[(triton.cdiv(height, 64), number)](
        x, *grouped, y if bias is None else bias, y, *arrays(weight), weight.rows * wide, height, wide, weight.columns,
        len(x), form.numbers(weight.columns), form.numbers(weight.columns, outer=True), x.stride(0), x.stride(1),
        y.stride(0), **constants(form), GROUPED=groups is not None, BIASED=bias is not None, WIDE=x.dtype != torch.bfloat16,
        BM=size, BN=64, BR=step, ASM=y.is_cuda, num_warps=4,
    )  # fmt: skip


def experts(weight: Weight, x: Tensor, ids: Tensor, activations: str = "int16") -> Tensor:
    """`x[i] @ W[ids[i]].T` in the dtype of x, for W [experts, out, in]; no loop over experts."""
    count, height, _ = weight.shape
    y = torch.empty(len(x), height, dtype=x.dtype, device=x.device)
    if not len(x):
        return y
    if len(x) <= 4 * FEW:
        multiply(weight, prepare(x, weight.form, weight.order, chosen(weight.form, activations)), y, ids=ids)
        return y
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    size = 16 if len(x) < 32 * count else 64
    tile(weight, x, y, groups=Groups.of(ids, count, size), size=size)
    return y


def embed(weight: Weight, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows by number; those that do not exist are NaN."""
    flat = ids.reshape(-1)
    return _values(weight, flat, len(flat), dtype).reshape(*ids.shape, weight.columns)


def dense(weight: Weight, start: int = 0, stop: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows `start` to `stop` (leading axes flattened), with the bits of the codec; all in the tensor's shape."""
    values = _values(weight, start, (weight.rows if stop is None else stop) - start, dtype)
    return values.reshape(weight.shape) if stop is None else values


def _values(weight: Weight, ids: Any, count: int, dtype: torch.dtype) -> Tensor:
    form, wide = weight.form, runs(weight.columns)
    out = torch.empty(count, weight.columns, dtype=dtype, device=weight.codes.device)
    if out.numel():
        kernels.values[(triton.cdiv(count, 4), triton.cdiv(wide, 32))](
            ids, out, *arrays(weight), weight.rows * wide, weight.rows, wide, weight.columns, count,
            form.numbers(weight.columns), form.numbers(weight.columns, outer=True), out.stride(0), **constants(form),
            CHOSEN=isinstance(ids, Tensor), BN=4, BR=32, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out if weight.order is None else out[:, weight.order.argsort()]
