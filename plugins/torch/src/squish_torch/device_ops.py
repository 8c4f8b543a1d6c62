"""Operators for devices without a kernel: torch decodes weights in panels and multiplies them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .decoding import LIMIT, decode_chosen, decode_rows, is_by_rows, is_decodable
from .ops import LIBRARY
from .weights import spec_of, weight_of

DEVICES = ("CUDA",)
"""Dispatch keys of these operators."""


def panels(
    parts: Sequence[Tensor], description: str, backend: str, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield start, stop and f32 values of panels of rows `first` to `last` (leading axes flattened), on the device."""
    spec = spec_of(description)
    columns = spec.shape[-1]
    if last is None:
        last = spec.elements // max(columns, 1)
    step = max(1, LIMIT // max(columns, 1))
    values = None
    if not is_decodable(description):
        warnings.warn(
            f"{spec.encodings[0].codec.id} is decoded on the CPU: torch has no form of it on {parts[0].device.type}",
            stacklevel=2,
        )
        cpu_parts = [part.cpu().contiguous() for part in parts]
        values = torch.from_numpy(weight_of(cpu_parts, description, backend).dense().reshape(-1, columns))
    for start in range(first, last, step):
        stop = min(start + step, last)
        panel = decode_rows(parts, description, start, stop) if values is None else values[start:stop]
        yield start, stop, panel.to(parts[0].device)


def linear(x: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `x @ W.T`, accumulated in f32."""
    rows, columns = spec_of(description).shape
    flat = x.reshape(-1, columns).float()
    y = torch.empty(flat.shape[0], rows, device=x.device)
    for start, stop, values in panels(parts, description, backend):
        y[:, start:stop] = flat @ values.T
    return y.reshape(*x.shape[:-1], rows).to(x.dtype)


def embed(ids: Tensor, parts: Sequence[Tensor], description: str, backend: str, dtype: torch.dtype) -> Tensor:
    """Return rows by id, decoding only these if rows can be decoded alone."""
    rows, columns = spec_of(description).shape
    flat = ids.reshape(-1)
    if is_by_rows(description):
        values = decode_chosen(parts, description, flat)
    else:
        flat = torch.arange(rows, device=ids.device).index_select(0, flat)  # raises an error if an id is out of range
        values = torch.zeros(flat.numel(), columns, device=ids.device)
        for start, stop, panel in panels(parts, description, backend):
            row = flat - start
            is_inside = (row >= 0) & (row < stop - start)
            values = torch.where(is_inside[:, None], panel[row.clamp(0, stop - start - 1)], values)
    return values.reshape(*ids.shape, columns).to(dtype)


def dequantize(parts: Sequence[Tensor], description: str, backend: str, dtype: torch.dtype) -> Tensor:
    """Return all values, rounded once."""
    pieces = [values.to(dtype) for _, _, values in panels(parts, description, backend)]
    return torch.cat(pieces).reshape(spec_of(description).shape)


def linear_gradient(gradient: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `gradient @ W`."""
    rows, columns = spec_of(description).shape
    flat = gradient.reshape(-1, rows).float()
    result = torch.zeros(flat.shape[0], columns, device=gradient.device)
    for start, stop, values in panels(parts, description, backend):
        result.addmm_(flat[:, start:stop], values)
    return result.reshape(*gradient.shape[:-1], columns).to(gradient.dtype)


def experts(x: Tensor, ids: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `x[i] @ W[ids[i]].T`: decode the rows of each token's expert if they are few, or one expert at a time."""
    count, rows, columns = spec_of(description).shape
    if len(x) * rows * columns <= LIMIT and is_by_rows(description):
        chosen = torch.arange(count * rows, device=x.device).reshape(count, rows).index_select(0, ids).reshape(-1)
        values = decode_chosen(parts, description, chosen).reshape(len(x), rows, columns)
        return torch.bmm(values, x.float()[..., None])[..., 0].to(x.dtype)
    y = torch.empty(len(x), rows, device=x.device)
    for expert in ids.unique().tolist():
        if not 0 <= expert < count:
            raise IndexError(f"expert {expert} is out of range: the weight has {count}")
        tokens, first = torch.where(ids == expert)[0], expert * rows
        for start, stop, values in panels(parts, description, backend, first, first + rows):
            y[tokens, start - first : stop - first] = x[tokens].float() @ values.T
    return y.to(x.dtype)


def experts_gradient(gradient: Tensor, ids: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `gradient[i] @ W[ids[i]]`, decoding each matrix once."""
    count, rows, columns = spec_of(description).shape
    result = torch.zeros(len(gradient), columns, device=gradient.device)
    for expert in range(count):
        mine, first = gradient.float() * (ids == expert)[:, None], expert * rows
        for start, stop, values in panels(parts, description, backend, first, first + rows):
            result.addmm_(mine[:, start - first : stop - first], values)
    return result.to(gradient.dtype)


OPERATIONS = {
    "linear": linear,
    "embed": embed,
    "dequantize": dequantize,
    "linear_gradient": linear_gradient,
    "experts": experts,
    "experts_gradient": experts_gradient,
}
for _key in DEVICES:
    for _name, _run in OPERATIONS.items():
        LIBRARY.impl(_name, _run, _key)
