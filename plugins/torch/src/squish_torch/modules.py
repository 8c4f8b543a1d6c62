"""Modules over stored weights: uint8 parameters, and the description of their encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from squish_core.api import Tensor as StoredTensor
from squish_core.api import TensorError, dtypes

from . import device_ops as device_ops  # registers the operations
from .decoding import is_decodable
from .description import describe
from .device_forms import BACKENDS, FORM, DeviceForm, form_on
from .ops import multiply, runs_directly
from .weights import Entry, entry_of, release_freed, roles_of, spec_of

MAIN = "weight"
"""Name of the parameter with the largest part."""


def part_names(description: str) -> dict[str, str]:
    """Return the parameter of each role: `weight` for the largest part, `weight_<role>` for the others."""
    parts = spec_of(description).encodings[0].parts
    main = max(sorted(parts), key=lambda role: parts[role].nbytes)
    return {role: MAIN if role == main else f"{MAIN}_{role}" for role in roles_of(description)}


def byte_shape(description: str, role: str) -> tuple[int, ...]:
    """Return the shape of a part in bytes; its last axis counts bytes."""
    part = spec_of(description).encodings[0].parts[role]
    shape = part.shape or (1,)
    return (*shape[:-1], dtypes.nbytes(part.dtype, shape[-1:]))


def take_forms(model: nn.Module) -> None:
    """Have the modules whose parts a loader has put on a device take its form."""
    stored = WeakIdKeyDictionary()
    for module in model.modules():
        if isinstance(module, Compressed):
            module.to_form(stored)


def stored_bytes(tensor: StoredTensor) -> dict[str, torch.Tensor]:
    """Return the bytes of each part by parameter, in memory whose changes do not reach the file."""
    description = describe(tensor.spec, tensor.bound.encoding)
    names = part_names(description)
    buffers = buffers_of(tensor, description)
    return {name: bytes_of(buffers[role], byte_shape(description, role)) for role, name in names.items()}


def buffers_of(tensor: StoredTensor, description: str) -> Mapping[str, Any]:
    """The stored parts by role.

    Raises CodecError for contents that cannot be decoded, such as groups that do not exist: operations do not look.
    """
    if is_decodable(description):
        tensor.bound.codec.check_parts(tensor.bound.parts, tensor.spec)
    return tensor.parts(tensor.bound.encoding)


def bytes_of(buffer: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a stored part as uint8: a private mapping of the file if possible."""
    raw = type(buffer)(buffer.raw, "u8", (buffer.nbytes,), buffer._writable_view)
    return torch.from_dlpack(raw).reshape(shape)


class Compressed(nn.Module):
    """A module over the stored parts of one tensor.

    The parts are parameters. On a device whose backend has a form for them (`device_forms`), its arrays are buffers
    instead, and the parts stay on the CPU: `state_dict` has them as before.

    Parameters
    ----------
    description
        A result of `describe`.
    backend
        Backend id, with options for some; the best by default.
    device
        Device of the parameters; "meta" allocates none.
    """

    def __init__(self, description: str, *, backend: str = "", device: Any = None) -> None:
        super().__init__()
        self.description, self.backend = description, backend
        self._names = part_names(description)
        self._entry: Entry | None = None
        self._form: DeviceForm | None = None
        self._form_text, self._form_names = "", tuple[str, ...]()
        self._stored: dict[str, nn.Parameter] = {}
        for role, name in self._names.items():
            empty = torch.empty(byte_shape(description, role), dtype=torch.uint8, device=device)
            self.register_parameter(name, nn.Parameter(empty, requires_grad=False))

    @classmethod
    def of(cls, tensor: StoredTensor, **options: Any) -> Any:
        """Return the module of a tensor of an open file; its parts are mapped if possible."""
        module = cls(describe(tensor.spec, tensor.bound.encoding), device="meta", **options)
        for name, part in stored_bytes(tensor).items():
            setattr(module, name, nn.Parameter(part, requires_grad=False))
        for name, buffer in module._buffers.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
        return module

    def __getstate__(self) -> dict[str, Any]:
        form = self._form
        if form is None:
            return {**self.__dict__, "_entry": None}
        buffers = {name: buffer for name, buffer in self._buffers.items() if name not in self._form_names}
        place = torch.empty(0, dtype=torch.uint8, device=form.device)
        return {**self.__dict__, "_entry": None, "_form": None, "_buffers": buffers, "_place": place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        place = state.pop("_place", None)
        super().__setstate__(state)
        if place is not None:  # where the form was, or where `map_location` says
            self._drop_form()
            self.to(place.device)

    @property
    def parts(self) -> list[torch.Tensor]:
        """The stored parts, by role."""
        parameters: Mapping[str, Any] = self._parameters if self._form is None else self._stored
        return [parameters[name] for name in self._names.values()]

    @property
    def arrays(self) -> list[torch.Tensor]:
        """The arrays of the form on the device."""
        if self._form is not None and not self._form_names:
            return list(self._form.arrays.values())
        buffers: Mapping[str, Any] = self._buffers
        return [buffers[name] for name in self._form_names]

    @property
    def form(self) -> DeviceForm | None:
        """The form on the device, if there is one."""
        return self._form

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return spec_of(self.description).shape

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the decoded weight.

        Parameters
        ----------
        dtype
            Of the result.

        Returns
        -------
        torch.Tensor
            Of the logical shape.
        """
        if self._form_text:
            return torch.ops.squish.device_dequantize(self.arrays, self._form_text, dtype)
        return torch.ops.squish.dequantize(self.parts, self.description, self.backend, dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a function as torch does, then release prepared weights of moved parts.

        If it moves to a device with a form for the parts, they stay where they are.
        """
        here = self.parts[0].device if self._form is None else self._form.device
        device = fn(torch.empty(0, dtype=torch.uint8, device=here)).device
        form = form_on(device, self.parts, self.description, self.backend)
        self._drop_form()
        if form is None:
            result = super()._apply(fn, recurse)
        else:
            self._lay_parts_aside()
            result = super()._apply(fn, recurse)
            self._take_form(form)
        self._entry = None
        release_freed()
        return result

    def _lay_parts_aside(self) -> None:
        self._stored = {name: self._parameters.pop(name) for name in self._names.values()}

    def _take_form(self, form: DeviceForm) -> None:
        """Have the arrays of a form as buffers; the parts are aside."""
        self._form, self._form_text = form, form.text
        self._form_names = tuple([FORM + role for role in form.arrays])
        for name, array in zip(self._form_names, form.arrays.values()):
            self.register_buffer(name, array, persistent=False)

    def lend_form(self, form: DeviceForm) -> None:
        """Have the form as views of arrays that another module has as buffers."""
        for name in self._form_names:
            self._buffers.pop(name, None)
        self._form, self._form_text, self._form_names = form, form.text, ()

    def _drop_form(self) -> None:
        """Have the parts as parameters, without a form."""
        for name in self._form_names:
            self._buffers.pop(name, None)
        for name, part in self._stored.items():
            self.register_parameter(name, part)
        self._form, self._form_text, self._form_names, self._stored = None, "", (), {}

    def to_form(self, stored: WeakIdKeyDictionary) -> None:
        """Take the form of the device on which a loader has put the parts. `stored`: part there -> part on the CPU,
        for modules that share them."""
        device = self.parts[0].device
        if self._form is not None or device.type not in BACKENDS:
            return
        for part in self.parts:
            if part not in stored:
                stored[part] = nn.Parameter(part.cpu(), requires_grad=False)
        here = [stored[part] for part in self.parts]
        form = form_on(device, here, self.description, self.backend)
        if form is not None:
            self._parameters.update(zip(self._names.values(), here))
            self._lay_parts_aside()
            self._take_form(form)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, part in self._stored.items():
            destination[prefix + name] = part if keep_vars else part.detach()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any) -> None:
        form = self._form
        self._drop_form()
        super()._load_from_state_dict(*args)
        if form is not None:
            self.to(form.device)
            self.to_form(WeakIdKeyDictionary())  # where the parts of the state are there

    def get_extra_state(self) -> torch.Tensor:
        """Return the description, as bytes."""
        return torch.frombuffer(bytearray(self.description.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Raise TensorError unless the description is this module's."""
        description = bytes(state.cpu().numpy()).decode(errors="replace")
        if description != self.description:
            raise TensorError(
                "the state has another encoding", expected=self.description, found=description, code="state"
            )

    def extra_repr(self) -> str:
        spec = spec_of(self.description)
        return f"{'x'.join(map(str, spec.shape))}, {spec.encodings[0].codec}"


def autocast(x: torch.Tensor) -> torch.Tensor:
    """Return x in autocast's dtype for its device, where autocast is enabled."""
    if torch._C._is_any_autocast_enabled():
        device_type = x.device.type
        if device_type != "meta" and torch.is_autocast_enabled(device_type):
            return x.to(torch.get_autocast_dtype(device_type))
    return x


class CompressedLinear(Compressed):
    """`nn.Linear` over stored codes.

    Parameters
    ----------
    description
        A result of `describe` for a matrix [out, in].
    bias
        Whether there is a bias, a dense float parameter.
    backend
        Backend id, with options for some; the best by default.
    device, dtype
        As in `nn.Linear`; `dtype` is the bias's.
    """

    def __init__(
        self, description: str, *, bias: bool = False, backend: str = "", device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(description, backend=backend, device=device)
        self.out_features, self.in_features = self.shape
        values = torch.empty(self.out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if values is None else nn.Parameter(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `x @ W.T + bias`, in the dtype of x, or autocast's."""
        x = autocast(x)
        bias = self._parameters["bias"]  # faster than the attribute
        if self._form_text:
            share = not torch.compiler.is_compiling()  # compiled code writes to tensors unnoticed
            return torch.ops.squish.device_linear(x, bias, self.arrays, self._form_text, share)
        if not torch.compiler.is_compiling() and runs_directly(x):
            entry, parameters = self._entry, self._parameters
            parts = [parameters[name] for name in self._names.values()]  # faster than `parts`
            if entry is None or not entry.is_current(parts):
                entry = self._entry = entry_of(parts, self.description, self.backend)
            y = multiply(x, entry)
        else:
            y = torch.ops.squish.linear(x, self.parts, self.description, self.backend)
        return y if bias is None else y + bias.to(y.dtype)


class CompressedEmbedding(Compressed):
    """`nn.Embedding` over stored codes.

    Parameters
    ----------
    description
        A result of `describe` for a matrix [rows, columns].
    scale
        Factor of each row.
    backend
        Backend id, with options for some; the best by default.
    device, dtype
        As in `nn.Embedding`; results have this dtype, or that of a later `.to(dtype)`.
    """

    def __init__(
        self, description: str, *, scale: float | None = None, backend: str = "", device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(description, backend=backend, device=device)
        self.num_embeddings, self.embedding_dim = self.shape
        self.scale = scale
        self.register_buffer("_like", torch.empty(0, device=device, dtype=dtype), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these ids."""
        dtype = self._like.dtype
        if self._form_text:
            rows = torch.ops.squish.device_embed(ids, self.arrays, self._form_text, dtype)
        else:
            rows = torch.ops.squish.embed(ids, self.parts, self.description, self.backend, dtype)
        return rows if self.scale is None else rows * torch.full((), self.scale, dtype=dtype, device=rows.device)
