"""Operations on torch tensors of the device. They have no host tensors, and read nothing from the device."""

from __future__ import annotations

import threading
from weakref import ref

import torch
from torch import Tensor

from .form import Form
from .launch import LEVELS, Groups, Prepared, decode, multiply, parts_of_run, prepare, tile
from .weights import Weight

FEW, SOME = 4, 128
"""Rows of x up to which integers are multiplied, and up to which tiles of codes are."""


def linear(
    weight: Weight, x: Tensor, bias: Tensor | None = None, activations: str = "int16", share: bool = False
) -> Tensor:
    """`x @ W.T + bias` in the dtype of x, for x [..., columns]. `share`: other weights may follow with the same x,
    which is prepared once for them."""
    flat = x.reshape(-1, weight.columns)
    y = torch.empty(len(flat), weight.rows, dtype=x.dtype, device=x.device)
    if 0 < len(flat) <= FEW:
        levels = levels_of(weight.form, activations)
        prepared = _shared.prepare(x, flat, weight, levels) if share else None
        multiply(weight, prepared or prepare(flat, weight.form, weight.order, levels), y, bias, None, levels)
    elif 0 < len(flat) <= SOME:
        tile(weight, ordered(weight, flat), y, bias)
    elif len(flat):
        values = dense(weight, dtype=x.dtype)
        if bias is None:
            torch.mm(flat, values.T, out=y)
        else:
            torch.addmm(bias.to(x.dtype), flat, values.T, out=y)
    return y.reshape(*x.shape[:-1], weight.rows)


class _Shared(threading.local):
    """The last x that was prepared, in each way that its weights needed.

    A weight that sees it again takes it for another one: its values may have changed without a trace, such as by a
    CUDA graph. A graph that is captured prepares x itself, so that its replay does.
    """

    x: ref[Tensor] | None = None
    state: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.ways: dict[tuple[int, ...], Prepared] = {}
        self.seen: set[int] = set()

    def prepare(self, x: Tensor, flat: Tensor, weight: Weight, levels: int) -> Prepared | None:
        """The rows `flat` of x, prepared once for weights that take them in the same way; None if none may share."""
        if x.is_inference() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
        state, own = (x._version, x.data_ptr(), stream), weight.codes.data_ptr()
        if self.x is None or self.x() is not x or self.state != state or own in self.seen:
            self.x, self.state = ref(x), state
            self.ways, self.seen = {}, set()
        self.seen.add(own)
        way = (levels, parts_of_run(weight.form), 0 if weight.order is None else weight.order.data_ptr())
        if way not in self.ways:
            self.ways[way] = prepare(flat, weight.form, weight.order, levels)
        return self.ways[way]


_shared = _Shared()


def levels_of(form: Form, activations: str) -> int:
    """Return how x is prepared: in f32 for codes whose values are not integers."""
    return LEVELS[activations] if form.has_integer_products else 0


def ordered(weight: Weight, x: Tensor) -> Tensor:
    """The columns of x in the order of the weight's."""
    return x if weight.order is None else x.index_select(1, weight.order)


def experts(weight: Weight, x: Tensor, ids: Tensor, activations: str = "int16") -> Tensor:
    """`x[i] @ W[ids[i]].T` in the dtype of x, for W [experts, out, in]; no loop over experts."""
    count, height, _ = weight.shape
    y = torch.empty(len(x), height, dtype=x.dtype, device=x.device)
    if 0 < len(x) <= 4 * FEW:
        levels = levels_of(weight.form, activations)
        multiply(weight, prepare(x, weight.form, weight.order, levels), y, None, ids, levels)
    elif len(x):
        size = 16 if len(x) < 32 * count else 64
        tile(weight, ordered(weight, x), y, groups=Groups.of(ids, count, size), size=size)
    return y


def embed(weight: Weight, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows by number; those that do not exist are NaN."""
    return _values(weight, ids.reshape(-1), 0, ids.numel(), dtype).reshape(*ids.shape, weight.columns)


def dense(weight: Weight, start: int = 0, stop: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows `start` to `stop` (leading axes flattened), with the bits of the codec; all in the tensor's shape."""
    values = _values(weight, None, start, (weight.rows if stop is None else stop) - start, dtype)
    return values.reshape(weight.shape) if stop is None else values


def _values(weight: Weight, ids: Tensor | None, start: int, count: int, dtype: torch.dtype) -> Tensor:
    out = torch.empty(count, weight.columns, dtype=dtype, device=weight.codes.device)
    if out.numel():
        decode(weight, ids, start, out)
    return out if weight.order is None else out[:, weight.order.argsort()]
