"""The backend `cuda`: torch tensors on the device, and NumPy arrays, which are copied there and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from squish_core.api import (
    Availability,
    Backend,
    BoundEncoding,
    Chain,
    CodecError,
    Cost,
    ErrorCode,
    Offer,
    Refusal,
    Region,
    Request,
    TensorSpec,
    UsageError,
    cast_output,
    check_expert_args,
    check_ids,
    check_input,
    require_rank,
)

from . import device
from .form import Form, form_of, nbytes

if TYPE_CHECKING:
    from .weights import Weight

Array = np.ndarray
ACTIVATIONS = {"int16": "x in 16 bits", "int8": "x in 8 bits", "f32": "x in f32"}
OPTIONS = "device=sm_NUMBER (plans only), activations=int16, int8 or f32"


class Cuda(Backend):
    """Keeps codes packed on the device, in the order of `form`; kernels decode them where they are used."""

    id = "cuda"

    def __init__(self, device: str | None = None, activations: str = "int16") -> None:
        self.architecture = None if device is None else int(device.removeprefix("sm_"))
        self.activations = activations

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """Options: `device`, an architecture to plan for; `activations`, how x is prepared for few rows: int16
        (default), int8 or f32."""
        patterns = {"device": r"sm_\d{2,3}", "activations": "|".join(ACTIVATIONS)}
        if any(not re.fullmatch(patterns.get(name, "(?!)"), str(value)) for name, value in options.items()):
            raise UsageError(
                "invalid cuda option",
                expected=OPTIONS,
                code=ErrorCode.BACKEND,
                found=", ".join(f"{name}={value}" for name, value in options.items()),
            )
        return Cuda(**options)

    def probe(self) -> Availability:
        if self.architecture is None:
            return device.probe()
        if self.architecture < device.LOWEST:
            return Availability(ok=False, reason=f"the kernels need sm_{device.LOWEST} or later")
        return Availability(ok=True, device=f"sm_{self.architecture} (plan only)")

    def offer(self, request: Request) -> Offer | Refusal:
        encoding, codec = request.encoding, request.codec
        assert codec is not None
        spec = request.spec or TensorSpec(name="", shape=(256, 256), dtype="f32")
        try:
            form = form_of(codec, spec)
        except CodecError as error:
            return Refusal(backend=self.id, encoding=encoding, code=ErrorCode.UNCOVERED, why=error.message)
        cost = None
        if request.spec is not None:
            size = nbytes(form, spec.shape)
            memory = "host" if self.architecture is None and device.is_interpreted() else "gpu"
            cost = Cost(stored=encoding.stored, resident=size, moved=size, memory=memory)
        ops = ("dense", *(("linear", "embed") if len(spec.shape) == 2 else ("experts",)))
        return Offer(
            backend=self.id,
            encoding=encoding,
            mode="stream",
            ops=ops,
            cost=cost,
            storage=self._storage(form),
            exact=self.activations != "int8",
        )

    def _storage(self, form: Form) -> str:
        products = ACTIVATIONS[self.activations if form.has_integer_products else "f32"]
        return f"{form.words} in aligned words on the device; few rows: {products}, more: matrix units"

    def load(self, chain: Chain, bound: BoundEncoding) -> Weight:
        if self.architecture is not None:
            raise UsageError(
                "cuda:device= only plans",
                expected="cuda, on a machine with a device",
                found=f"sm_{self.architecture}",
                code=ErrorCode.BACKEND,
            )
        import torch

        from . import weights

        where = "cpu" if device.is_interpreted() else f"cuda:{torch.cuda.current_device()}"
        return weights.load(bound, torch.device(where))

    def dense(
        self, handle: Weight, *, region: Region | None = None, dtype: str | None = None, out: Array | None = None
    ) -> Array:
        from . import products

        lines = None
        if region is not None and len(handle.shape) == 2:
            lines = region[0].start, region[0].stop
        values = _to_numpy(products.dense(handle, *(lines or ())))
        if region is not None:
            values = values[:, region[1]] if lines else values[region]
        return cast_output(values, None, dtype, out)

    def of_layout(self, layout: str, arrays: Sequence[Any]) -> Weight:
        """The weight that `load` returned, from its `layout` and its `arrays` in their order."""
        from . import weights

        return weights.of_layout(layout, arrays)

    def stack(self, handles: Sequence[Weight]) -> tuple[Weight, list[Weight]] | None:
        """Matrices as one stack for `experts`, and the matrices as views of it; None if they differ in their form, or
        in an array that a stack has once."""
        from . import weights

        return weights.stacked(handles)

    def values(self, handle: Weight, start: int, stop: int, dtype: Any) -> Any:
        """Rows `start` to `stop` (leading axes flattened) as a torch tensor on the device."""
        from . import products

        return products.dense(handle, start, stop, dtype)

    def linear(self, handle: Weight, x: Any, bias: Any = None, share: bool = False) -> Any:
        """As every backend. A torch tensor on the device may have a bias there; `share`: other weights may follow with
        the same x, which is prepared once for them."""
        from . import products

        require_rank(_spec(handle), 2)
        if _is_there(x, handle):
            return products.linear(handle, x, bias, self.activations, share)
        values = _to_device(check_input(x, handle.columns, _spec(handle)), handle)
        return _to_numpy(products.linear(handle, values, activations=self.activations))

    def embed(self, handle: Weight, ids: Any, dtype: Any = None) -> Any:
        """As every backend; rows on the device have torch's `dtype`, f32 without one."""
        from . import products

        rows, _ = require_rank(_spec(handle), 2)
        if _is_there(ids, handle):
            return products.embed(handle, ids, *(() if dtype is None else (dtype,)))
        values = np.asarray(check_ids(ids, rows, _spec(handle)), np.int64)
        return _to_numpy(products.embed(handle, _to_device(values, handle)))

    def experts(self, handle: Weight, x: Any, ids: Any) -> Any:
        from . import products

        require_rank(_spec(handle), 3)
        if _is_there(x, handle):
            return products.experts(handle, x, ids, activations=self.activations)
        x, ids = check_expert_args(x, ids, _spec(handle))
        arguments = (_to_device(x, handle), _to_device(np.asarray(ids, np.int64), handle))
        return _to_numpy(products.experts(handle, *arguments, activations=self.activations))


def _spec(handle: Weight) -> TensorSpec:
    return TensorSpec(name="", shape=handle.shape, dtype="f32")


def _is_there(x: Any, handle: Weight) -> bool:
    """Whether x is a torch tensor on the weight's device, for which the result is one, too."""
    return not isinstance(x, np.ndarray) and getattr(x, "device", None) == handle.codes.device


def _to_device(x: Array, handle: Weight) -> Any:
    import torch

    return torch.from_numpy(x.copy()).to(handle.codes.device)


def _to_numpy(values: Any) -> Array:
    result: Array = values.cpu().numpy()
    return result
