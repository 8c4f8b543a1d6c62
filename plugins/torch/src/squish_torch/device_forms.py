"""Weights in the form of a device's backend: made once of the stored parts, and the operations on its arrays."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from attrs import frozen
from torch import Tensor

from squish_core.api import ErrorCode, SquishError, install_command, parse_spec
from squish_core.api import registry as installed

from .description import tensor_from_parts
from .ops import LIBRARY, PANEL
from .weights import memory_of, roles_of, spec_of

BACKENDS = {"cuda": "cuda"}
"""Type of a device -> the backend that has a form for it."""
PACKAGES = {"cuda": ("squish-cuda", "[triton]")}
"""Backend -> the package that brings it, and its extra."""
FORM = "_form_"
"""Prefix of the buffers of a module that has a form."""


@frozen(eq=False, weakref_slot=True)
class DeviceForm:
    """A weight on a device.

    Attributes
    ----------
    arrays
        Role -> array on the device.
    text
        What operations need besides the arrays: the backend with its options, the weight's shape, and the layout.
    device
        Where it is.
    key
        Of the parts that it was made of; empty for a stack.
    """

    arrays: Mapping[str, Tensor]
    text: str
    device: torch.device
    key: tuple[Any, ...] = ()


Key = tuple[Any, ...]
_forms: WeakValueDictionary[Key, DeviceForm] = WeakValueDictionary()
"""Forms in use: modules that share their parts share the form."""


def form_on(device: torch.device, parts: Sequence[Tensor], description: str, backend: str = "") -> DeviceForm | None:
    """The form of stored parts (on the CPU) on a device; None if its backend is absent or refuses the encoding.

    An absent backend is a warning, once in a process.
    """
    name = BACKENDS.get(device.type)
    if name is None or (backend and parse_spec(backend).id != name) or any(part.device.type != "cpu" for part in parts):
        return None
    where = torch.device(device.type, torch.cuda.current_device()) if str(device) == "cuda" else device
    versions = [(part.data_ptr(), 0 if part.is_inference() else part._version) for part in parts]
    key = (where, description, backend, *versions)
    form = _forms.get(key)
    if form is None:
        form = _made(where, parts, description, backend or name, key)
        if form is not None:
            _forms[key] = form
    return form


def stacked(forms: Sequence[DeviceForm]) -> tuple[DeviceForm, list[DeviceForm]] | None:
    """Matrices as one stack, and the matrices as views of it, which replace their forms; None if they differ."""
    if len({(_read(form.text)[0], form.device) for form in forms}) > 1:
        return None
    name, device = _read(forms[0].text)[0], forms[0].device
    with _current(device):
        found = _backend(name).stack([_weight(list(form.arrays.values()), form.text)[1] for form in forms])
    if found is None:
        return None
    views = [_form_of(handle, name, device, form.key) for handle, form in zip(found[1], forms)]
    _forms.update((view.key, view) for view in views)
    return _form_of(found[0], name, device), views


def _form_of(handle: Any, backend: str, device: torch.device, key: Key = ()) -> DeviceForm:
    return DeviceForm(handle.arrays, json.dumps([backend, list(handle.shape), handle.layout]), device, key)


def _made(device: torch.device, parts: Sequence[Tensor], description: str, backend: str, key: Key) -> DeviceForm | None:
    shape = spec_of(description).shape
    tensor = tensor_from_parts(description, dict(zip(roles_of(description), map(memory_of, parts))))
    if not _is_available(parse_spec(backend).id):
        return None
    try:
        chain = tensor.plan(backend, op="experts" if len(shape) == 3 else "linear")
        implementation: Any = _backend(backend)
        with _current(device):
            handle = implementation.load(chain, tensor.bound)
    except SquishError as error:
        if error.code in (ErrorCode.NO_CHAIN, ErrorCode.UNCOVERED):  # torch decodes what the backend refuses
            return None
        raise
    return _form_of(handle, backend, device, key)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the current one, which backends load to."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache(8)
def _is_available(name: str) -> bool:
    """Whether a backend is installed and can run here; if not, say so (once, since the answer is kept)."""
    package, extra = PACKAGES[name]
    try:
        available = installed().backend(name).probe()
        reason = "" if available.ok else available.reason
    except SquishError as error:
        reason = error.message
    if reason:
        command = install_command(package, extra=extra)
        warnings.warn(
            f"compressed weights on {name} are decoded by torch at each call, which is slow: {reason}. "
            f"{package} computes with the stored codes (`{command}`).",
            stacklevel=2,
        )
    return not reason


@lru_cache(64)
def _backend(text: str) -> Any:
    named = parse_spec(text)
    backend = installed().backend(named.id)
    return backend.configured(named.params) if named.params else backend


@lru_cache(4096)
def _read(text: str) -> tuple[str, tuple[int, ...], str]:
    backend, shape, layout = json.loads(text)
    return backend, tuple(shape), layout


def _weight(arrays: Sequence[Tensor], text: str) -> tuple[Any, Any]:
    """The backend, and the weight of these arrays."""
    name, _, layout = _read(text)
    backend = _backend(name)
    return backend, backend.of_layout(layout, arrays)


# Operations: as those on parts, on the arrays of a form.


def linear(x: Tensor, bias: Tensor | None, arrays: Sequence[Tensor], form: str, share: bool) -> Tensor:
    """`x @ W.T + bias`, in the dtype of x, which is prepared once for weights that `share` it."""
    backend, weight = _weight(arrays, form)
    return backend.linear(weight, x, bias, share)


def embed(ids: Tensor, arrays: Sequence[Tensor], form: str, dtype: torch.dtype) -> Tensor:
    """Rows by ids; NaN where there is no such row, since a check would wait for the device."""
    backend, weight = _weight(arrays, form)
    return backend.embed(weight, ids, dtype)


def experts(x: Tensor, ids: Tensor, arrays: Sequence[Tensor], form: str) -> Tensor:
    """`x[i] @ W[ids[i]].T`, in the dtype of x."""
    backend, weight = _weight(arrays, form)
    return backend.experts(weight, x, ids)


def dequantize(arrays: Sequence[Tensor], form: str, dtype: torch.dtype) -> Tensor:
    """All values, rounded once."""
    backend, weight = _weight(arrays, form)
    return backend.values(weight, 0, weight.rows, dtype).reshape(weight.shape)


def linear_gradient(gradient: Tensor, arrays: Sequence[Tensor], form: str) -> Tensor:
    """`gradient @ W`, in f32, W decoded in panels of rows."""
    backend, weight = _weight(arrays, form)
    rows, columns = weight.shape
    flat = gradient.reshape(-1, rows).float()
    result = torch.zeros(flat.shape[0], columns, device=gradient.device)
    _add_products(result, flat, backend, weight, 0)
    return result.reshape(*gradient.shape[:-1], columns).to(gradient.dtype)


def experts_gradient(gradient: Tensor, ids: Tensor, arrays: Sequence[Tensor], form: str) -> Tensor:
    """`gradient[i] @ W[ids[i]]`, in f32: each matrix is decoded once, and nothing is read from the device."""
    backend, weight = _weight(arrays, form)
    count, rows, columns = weight.shape
    result = torch.zeros(len(gradient), columns, device=gradient.device)
    for number in range(count):
        mine = gradient.float() * (ids == number)[:, None]
        _add_products(result, mine, backend, weight, number * rows)
    return result.to(gradient.dtype)


def _add_products(result: Tensor, gradient: Tensor, backend: Any, weight: Any, first: int) -> None:
    """Add `gradient @ W` for the matrix from the row `first` on."""
    rows, columns = weight.shape[-2:]
    step = max(1, PANEL // max(columns, 1))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        values = backend.values(weight, first + start, first + stop, torch.float32)
        result.addmm_(gradient[:, start:stop], values)


def _linear_shape(x: Tensor, bias: Tensor | None, arrays: Sequence[Tensor], form: str, share: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], _read(form)[1][0]))


def _embed_shape(ids: Tensor, arrays: Sequence[Tensor], form: str, dtype: torch.dtype) -> Tensor:
    return ids.new_empty((*ids.shape, _read(form)[1][1]), dtype=dtype)


def _experts_shape(x: Tensor, ids: Tensor, arrays: Sequence[Tensor], form: str) -> Tensor:
    return x.new_empty((x.shape[0], _read(form)[1][1]))


def _dequantize_shape(arrays: Sequence[Tensor], form: str, dtype: torch.dtype) -> Tensor:
    return arrays[0].new_empty(_read(form)[1], dtype=dtype)


def _linear_gradient_shape(gradient: Tensor, arrays: Sequence[Tensor], form: str) -> Tensor:
    return gradient.new_empty((*gradient.shape[:-1], _read(form)[1][1]))


def _experts_gradient_shape(gradient: Tensor, ids: Tensor, arrays: Sequence[Tensor], form: str) -> Tensor:
    return gradient.new_empty((gradient.shape[0], _read(form)[1][2]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, bias, arrays, ctx.form, _ = inputs
    ctx.bias = None if bias is None else bias.dtype
    ctx.save_for_backward(*arrays)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    arrays = list(ctx.saved_tensors)
    x = torch.ops.squish.device_linear_gradient(gradient, arrays, ctx.form) if ctx.needs_input_grad[0] else None
    bias = None
    if ctx.bias is not None and ctx.needs_input_grad[1]:
        bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias)
    return x, bias, [None] * len(arrays), None, None


def _keep_experts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ids, arrays, ctx.form = inputs
    ctx.save_for_backward(ids, *arrays)


def _experts_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ids, *arrays = ctx.saved_tensors
    return torch.ops.squish.device_experts_gradient(gradient, ids, arrays, ctx.form), None, [None] * len(arrays), None


for _schema, _run, _shape in (
    ("device_linear(Tensor x, Tensor? bias, Tensor[] arrays, str form, bool share) -> Tensor", linear, _linear_shape),
    ("device_embed(Tensor ids, Tensor[] arrays, str form, ScalarType dtype) -> Tensor", embed, _embed_shape),
    ("device_experts(Tensor x, Tensor ids, Tensor[] arrays, str form) -> Tensor", experts, _experts_shape),
    ("device_dequantize(Tensor[] arrays, str form, ScalarType dtype) -> Tensor", dequantize, _dequantize_shape),
    (
        "device_linear_gradient(Tensor gradient, Tensor[] arrays, str form) -> Tensor",
        linear_gradient,
        _linear_gradient_shape,
    ),
    (
        "device_experts_gradient(Tensor gradient, Tensor ids, Tensor[] arrays, str form) -> Tensor",
        experts_gradient,
        _experts_gradient_shape,
    ),
):
    _name = _schema.partition("(")[0]
    LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")  # any device: Triton's interpreter takes the CPU's tensors
    torch.library.register_fake(f"squish::{_name}", _shape, lib=LIBRARY)
torch.library.register_autograd("squish::device_linear", _backward, setup_context=_keep, lib=LIBRARY)
torch.library.register_autograd("squish::device_experts", _experts_backward, setup_context=_keep_experts, lib=LIBRARY)
