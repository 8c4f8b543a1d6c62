"""Weights in MLX's memory; all classes have the same four operations on checked, non-empty NumPy operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from . import device
from .transcode import Packed

if TYPE_CHECKING:
    from .kernels import Kernels

Array = np.ndarray


class Quantized:
    """Codes, scales and biases in MLX's packing: [out, in] or [experts, out, in]."""

    def __init__(self, packed: Packed) -> None:
        form = packed.form
        self._options: dict[str, Any] = {"group_size": form.group_size, "bits": form.bits, "mode": form.mode}
        self._weight, self._scales = mx.array(packed.weight), mx.array(packed.scales)
        self._biases = None if packed.biases is None else mx.array(packed.biases)
        self._transposed = form.transposed

    def dense(self) -> Array:
        values = self._dequantize(self._weight, self._scales, self._biases)
        return values.swapaxes(-1, -2) if self._transposed else values

    def linear(self, x: Array) -> Array:
        product = mx.quantized_matmul(
            mx.array(x), self._weight, self._scales, self._biases, transpose=not self._transposed, **self._options
        )
        return device.to_numpy(product)

    def embed(self, ids: Array) -> Array:
        if self._transposed:  # a row is a bit range of every packed row
            return self.dense()[ids]
        rows = mx.array(ids.reshape(-1).astype(np.uint32))
        biases = None if self._biases is None else self._biases[rows]
        values = self._dequantize(self._weight[rows], self._scales[rows], biases)
        return values.reshape(*ids.shape, values.shape[-1])

    def experts(self, x: Array, ids: Array) -> Array:
        product = mx.gather_qmm(
            mx.array(x[:, None]),
            self._weight,
            self._scales,
            self._biases,
            rhs_indices=mx.array(ids.astype(np.uint32)),
            transpose=not self._transposed,
            **self._options,
        )
        return device.to_numpy(product[:, 0])

    def _dequantize(self, weight: mx.array, scales: mx.array, biases: mx.array | None) -> Array:
        values = mx.dequantize(weight, scales, biases, **self._options)
        return device.to_numpy(values.astype(mx.float32))


class DenseWeight:
    """A float array; products use its own dtype on a GPU, float32 on the CPU."""

    def __init__(self, values: Array) -> None:
        self._values = mx.array(values)
        self._dtype = self._values.dtype if device.has_gpu() else mx.float32

    def dense(self) -> Array:
        return device.to_numpy(self._values)

    def linear(self, x: Array) -> Array:
        return self._product(x, self._values.T)

    def embed(self, ids: Array) -> Array:
        return device.to_numpy(self._values[mx.array(ids.astype(np.uint32))])

    def experts(self, x: Array, ids: Array) -> Array:
        out = np.empty((len(ids), self._values.shape[1]), np.float32)
        for expert in np.unique(ids):
            positions = np.flatnonzero(ids == expert)
            out[positions] = self._product(x[positions], self._values[int(expert)].T)
        return out

    def _product(self, x: Array, weight: mx.array) -> Array:
        product = mx.matmul(mx.array(x).astype(self._dtype), weight.astype(self._dtype))
        return device.to_numpy(product.astype(mx.float32))


class Blocks:
    """Stored bytes, decoded by custom Metal kernels."""

    def __init__(self, kernels: Kernels, arrays: dict[str, Array], shape: tuple[int, ...]) -> None:
        self._kernels, self._shape = kernels, shape
        self._arrays = {role: mx.array(part) for role, part in arrays.items()}

    def dense(self) -> Array:
        rows = int(np.prod(self._shape[:-1]))
        return self._rows(np.arange(rows)).reshape(self._shape)

    def linear(self, x: Array) -> Array:
        flat = x.reshape(-1, x.shape[-1])
        return self._products(flat, np.zeros(len(flat))).reshape(*x.shape[:-1], -1)

    def embed(self, ids: Array) -> Array:
        return self._rows(ids.reshape(-1)).reshape(*ids.shape, self._shape[-1])

    def experts(self, x: Array, ids: Array) -> Array:
        return self._products(x, ids)

    def _rows(self, ids: Array) -> Array:
        rows = self._kernels.rows(self._arrays, mx.array(ids.astype(np.uint32)), self._shape[-1])
        return device.to_numpy(rows)

    def _products(self, x: Array, ids: Array) -> Array:
        experts = mx.array(ids.astype(np.uint32))
        return device.to_numpy(self._kernels.products(self._arrays, mx.array(x), experts, self._shape[-2]))


Weight = Quantized | DenseWeight | Blocks
