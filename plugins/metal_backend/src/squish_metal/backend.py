"""The Metal backend: chooses one of three representations per tensor, and estimates its cost."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from squish_core.api import (
    OPS,
    Availability,
    Backend,
    BoundEncoding,
    Chain,
    Codec,
    Cost,
    Encoding,
    ErrorCode,
    Offer,
    Refusal,
    Region,
    Request,
    TensorSpec,
    cast_output,
    check_expert_args,
    check_ids,
    check_input,
    dtypes,
    require_rank,
)

from . import device, forms, layouts, textures, transcode

if TYPE_CHECKING:
    from .kernels import Kernels
    from .weights import Weight

FLOATS = ("f32", "f16", "bf16")
"""Dtypes of dense MLX products."""


class Metal(Backend):
    """Keeps codes packed if MLX or a custom kernel supports them, else decodes once."""

    id = "metal"

    def probe(self) -> Availability:
        return device.probe()

    def offer(self, request: Request) -> Offer | Refusal:
        encoding, spec, codec = request.encoding, request.spec, request.codec
        if spec is None or codec is None:
            return Refusal(backend=self.id, encoding=encoding, code=ErrorCode.WHOLE, why="MLX only runs single tensors")
        if spec.dtype.startswith("complex"):
            return Refusal(backend=self.id, encoding=encoding, code="dtype", why="MLX does not support complex weights")
        layout = kernel_layout(encoding, spec)
        if layout is not None:
            return self._offer(encoding, "stream", "the stored bytes, by a custom Metal kernel", layout.nbytes)
        form = forms.form_of(codec, spec)
        if form is not None:
            return self._offer(encoding, "stream", str(form), form.nbytes(spec.shape), exact=form.exact)
        dtype = folded_dtype(codec, encoding, spec)
        size = dtypes.nbytes(dtype, spec.shape)
        exact = dtypes.bits(dtype) >= dtypes.bits(codec.value_dtype(spec))
        return self._offer(encoding, "fold", f"{_decoding(encoding)}an array of {dtype}", size, exact=exact)

    def load(self, chain: Chain, bound: BoundEncoding) -> _Loaded:
        from .weights import Blocks, DenseWeight, Quantized

        encoding, spec, parts, codec = bound.encoding, bound.spec, bound.parts, bound.codec
        layout = kernel_layout(encoding, spec)
        if layout is not None:
            return _Loaded(spec, Blocks(_kernels(layout), layouts.arrays_of(layout, encoding, parts, spec), spec.shape))
        form = forms.form_of(codec, spec)
        if form is None:
            return _Loaded(spec, DenseWeight(_decode_folded(bound)))
        return _Loaded(spec, Quantized(transcode.pack(form, bound)))

    def dense(
        self, handle: _Loaded, *, region: Region | None = None, dtype: str | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        return cast_output(handle.weight.dense(), region, dtype, out)

    def linear(self, handle: _Loaded, x: np.ndarray) -> np.ndarray:
        rows, columns = require_rank(handle.spec, 2)
        x = check_input(x, columns, handle.spec)
        return handle.weight.linear(x) if x.size and rows else _zeros(*x.shape[:-1], rows)

    def embed(self, handle: _Loaded, ids: np.ndarray) -> np.ndarray:
        rows, columns = require_rank(handle.spec, 2)
        ids = check_ids(ids, rows, handle.spec)
        return handle.weight.embed(ids) if ids.size and columns else _zeros(*ids.shape, columns)

    def experts(self, handle: _Loaded, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        x, ids = check_expert_args(x, ids, handle.spec)
        rows = handle.spec.shape[1]
        return handle.weight.experts(x, ids) if x.size and rows else _zeros(len(x), rows)

    def _offer(self, encoding: Encoding, mode: str, storage: str, size: int, *, exact: bool = True) -> Offer:
        memory = "gpu" if device.has_gpu() else "host"
        cost = Cost(stored=encoding.stored, resident=size, moved=size, memory=memory)
        return Offer(
            backend=self.id,
            encoding=encoding,
            mode=mode,
            ops=OPS,
            storage=f"{storage}, copied once into MLX's memory",
            cost=cost,
            exact=exact,
        )


def _zeros(*shape: int) -> np.ndarray:
    """Return the result for an empty operand; MLX rejects empty arrays or crashes."""
    return np.zeros(shape, np.float32)


class _Loaded:
    """A weight in MLX's memory, with the spec for operand checks."""

    def __init__(self, spec: TensorSpec, weight: Weight) -> None:
        self.spec, self.weight = spec, weight


def kernel_layout(encoding: Encoding, spec: TensorSpec) -> layouts.Layout | None:
    """Return the layout for a custom kernel on this device, or None."""
    return layouts.layout_of(encoding, spec) if device.has_gpu() else None


def folded_dtype(codec: Codec, encoding: Encoding, spec: TensorSpec) -> str:
    """Return the dtype of decoded values: their own if MLX supports it; f16 for quantized tensors on a GPU."""
    if encoding.codec.id != "dense":
        return "f16" if device.has_gpu() else "f32"
    dtype = codec.value_dtype(spec)
    return dtype if dtype in FLOATS else "f32"


def _decoding(encoding: Encoding) -> str:
    """Explain what decodes a tensor that does not stay packed."""
    units = texture_units(encoding)
    decoder = " by the GPU's texture units" if isinstance(units, textures.TextureUnits) else ""
    if isinstance(units, str):
        decoder = f" by the CPU library, not by the GPU's texture units ({units})"
    return "" if encoding.codec.id == "dense" else f"decoded once{decoder}, "


def texture_units(encoding: Encoding) -> textures.TextureUnits | str | None:
    """Return the GPU's texture units for ASTC, or the reason against them; None for other codecs or without a GPU."""
    return textures.probe() if encoding.codec.id == "astc" and device.has_gpu() else None


def _decode_folded(bound: BoundEncoding) -> np.ndarray:
    """Decode all values; bf16 replaces f16 if a value exceeds its range."""
    units = texture_units(bound.encoding)
    values = textures.decode(units, bound) if isinstance(units, textures.TextureUnits) else bound.read()
    dtype = folded_dtype(bound.codec, bound.encoding, bound.spec)
    with np.errstate(over="ignore"):
        folded = values.astype(dtypes.to_numpy(dtype), copy=False)
        if dtype == "f16" and (np.isinf(folded) & np.isfinite(values)).any():
            folded = values.astype(dtypes.to_numpy("bf16"))
    return folded


@cache
def _kernels(layout: layouts.Layout) -> Kernels:
    from .kernels import Kernels

    return Kernels(layout)
