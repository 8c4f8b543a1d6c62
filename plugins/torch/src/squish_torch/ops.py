"""The operators `torch.ops.squish`: stateless functions of stored parts and the description of their encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from squish_core.api import UsageError, Weight

from .weights import Entry, entry_of, spec_of, weight_of

LIBRARY = torch.library.Library("squish", "DEF")
PANEL = 4 << 20
"""Number of values decoded at once for a gradient."""


SCHEMAS = (
    "linear(Tensor x, Tensor[] parts, str description, str backend) -> Tensor",
    "embed(Tensor ids, Tensor[] parts, str description, str backend, ScalarType dtype) -> Tensor",
    "experts(Tensor x, Tensor ids, Tensor[] parts, str description, str backend) -> Tensor",
    "dequantize(Tensor[] parts, str description, str backend, ScalarType dtype) -> Tensor",
    "linear_gradient(Tensor gradient, Tensor[] parts, str description, str backend) -> Tensor",
    "experts_gradient(Tensor gradient, Tensor ids, Tensor[] parts, str description, str backend) -> Tensor",
)
for _schema in SCHEMAS:
    LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)


def runs_directly(x: Tensor) -> bool:
    """Return whether `linear` may bypass torch's dispatcher: nothing records, transforms or differentiates x.

    The dispatcher takes longer than a small product.
    """
    return (
        type(x) is Tensor
        and x.is_cpu
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._is_tracing()
    )


def linear(x: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `x @ W.T` on the CPU, in the dtype of x."""
    return multiply(x, entry_of(parts, description, backend))


def multiply(x: Tensor, entry: Entry) -> Tensor:
    """Compute `x @ W.T` with a prepared weight."""
    dtype, shape = x.dtype, x.shape
    rows, columns = entry.shape
    product = entry.products.get(dtype)
    number = x.numel() // columns if shape and shape[-1] == columns else 0
    if product is None or not number:
        return _product_of_values(x, entry.weight)
    if entry.panel_rows is not None and number >= entry.panel_rows and dtype == torch.bfloat16:
        return _panel_product(x.reshape(number, columns), entry.weight).reshape(*shape[:-1], rows)
    if not x.is_contiguous():
        x = x.contiguous()
    y = x.new_empty(*shape[:-1], rows)
    product(x.data_ptr(), number, y.data_ptr())
    return y


def _product_of_values(x: Tensor, weight: Weight) -> Tensor:
    """Compute `x @ W.T` through arrays, for backends without products on raw addresses; the weight checks the shape."""
    dtype = x.dtype
    if not dtype.is_floating_point:
        raise UsageError("x is not of a float type", code="operand", expected="f32, bf16 or f16", found=str(dtype))
    y = torch.from_numpy(weight.linear(x.detach().to(torch.float32).numpy()))
    return y if dtype == torch.float32 else y.to(dtype)


def _panel_product(x: Tensor, weight: Weight) -> Tensor:
    """Compute `x @ W.T` in bf16, decoding W in panels of rows."""
    rows, columns = weight.shape
    y = torch.empty(len(x), rows, dtype=x.dtype)
    step = max(1, PANEL // columns)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        panel = weight.dense(region=(slice(start, stop), slice(0, columns)), dtype="bf16")
        torch.mm(x, torch.from_numpy(panel.view("u2")).view(x.dtype).T, out=y[:, start:stop])
    return y


def _embed(ids: Tensor, parts: Sequence[Tensor], description: str, backend: str, dtype: torch.dtype) -> Tensor:
    rows = torch.from_numpy(weight_of(parts, description, backend).embed(ids.numpy()))
    return rows if dtype == torch.float32 else rows.to(dtype)


def _experts(x: Tensor, ids: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    weight = weight_of(parts, description, backend)
    return torch.from_numpy(weight.experts(x.to(torch.float32).numpy(), ids.numpy())).to(x.dtype)


def _dequantize(parts: Sequence[Tensor], description: str, backend: str, dtype: torch.dtype) -> Tensor:
    values = torch.from_numpy(weight_of(parts, description, backend).dense())
    return values if dtype == torch.float32 else values.to(dtype)


def _linear_gradient(gradient: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `gradient @ W`, decoding W in panels of rows."""
    weight = weight_of(parts, description, backend)
    rows, columns = weight.shape
    flat = gradient.to(torch.float32).reshape(-1, rows)
    result = torch.zeros(flat.shape[0], columns)
    step = max(1, PANEL // max(columns, 1))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        panel = torch.from_numpy(weight.dense(region=(slice(start, stop), slice(0, columns))))
        result.addmm_(flat[:, start:stop], panel)
    return result.reshape(*gradient.shape[:-1], columns).to(gradient.dtype)


def _experts_gradient(gradient: Tensor, ids: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    """Compute `gradient[i] @ W[ids[i]]`, decoding one matrix at a time."""
    weight = weight_of(parts, description, backend)
    _, rows, columns = weight.shape
    result = torch.zeros(len(gradient), columns)
    for number in ids.unique().tolist():
        values = weight.dense(region=(slice(number, number + 1), slice(0, rows), slice(0, columns)))
        tokens = torch.where(ids == number)[0]
        result[tokens] = gradient[tokens].float() @ torch.from_numpy(values)[0]
    return result.to(gradient.dtype)


def _linear_shape(x: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], spec_of(description).shape[0]))


def _embed_shape(ids: Tensor, parts: Sequence[Tensor], description: str, backend: str, dtype: torch.dtype) -> Tensor:
    return ids.new_empty((*ids.shape, spec_of(description).shape[1]), dtype=dtype)


def _experts_shape(x: Tensor, ids: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    return x.new_empty((x.shape[0], spec_of(description).shape[1]))


def _dequantize_shape(parts: Sequence[Tensor], description: str, backend: str, dtype: torch.dtype) -> Tensor:
    return parts[0].new_empty(spec_of(description).shape, dtype=dtype)


def _linear_gradient_shape(gradient: Tensor, parts: Sequence[Tensor], description: str, backend: str) -> Tensor:
    return gradient.new_empty((*gradient.shape[:-1], spec_of(description).shape[1]))


def _experts_gradient_shape(
    gradient: Tensor, ids: Tensor, parts: Sequence[Tensor], description: str, backend: str
) -> Tensor:
    return gradient.new_empty((gradient.shape[0], spec_of(description).shape[2]))


def _keep_parts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, parts, ctx.description, ctx.backend = inputs
    ctx.save_for_backward(*parts)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    parts = list(ctx.saved_tensors)
    return (
        torch.ops.squish.linear_gradient(gradient, parts, ctx.description, ctx.backend),
        [None] * len(parts),
        None,
        None,
    )


def _keep_experts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ids, parts, ctx.description, ctx.backend = inputs
    ctx.save_for_backward(ids, *parts)


def _experts_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ids, *parts = ctx.saved_tensors
    back = torch.ops.squish.experts_gradient(gradient, ids, parts, ctx.description, ctx.backend)
    return back, None, [None] * len(parts), None, None


for _name, _run, _shape in (
    ("linear", linear, _linear_shape),
    ("embed", _embed, _embed_shape),
    ("experts", _experts, _experts_shape),
    ("dequantize", _dequantize, _dequantize_shape),
    ("linear_gradient", _linear_gradient, _linear_gradient_shape),
    ("experts_gradient", _experts_gradient, _experts_gradient_shape),
):
    LIBRARY.impl(_name, _run, "CPU")
    torch.library.register_fake(f"squish::{_name}", _shape, lib=LIBRARY)
torch.library.register_autograd("squish::linear", _backward, setup_context=_keep_parts, lib=LIBRARY)
torch.library.register_autograd("squish::experts", _experts_backward, setup_context=_keep_experts, lib=LIBRARY)
