"""Weights of any format into MLX modules: quantized layers keep their codes, in the arrays of `nn.QuantizedLinear`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from squish_core.api import ErrorCode, File, SquishError, dtypes

from .backend import form_of, packed_as
from .transcode import Packed

_LAYERS = {nn.Linear: nn.QuantizedLinear, nn.Embedding: nn.QuantizedEmbedding}


def packed(file: File, name: str) -> Packed | None:
    """A tensor in MLX's packing (weight, scales, biases), or None where MLX has no form of its codes."""
    tensor = file[name]
    bound = tensor.bound
    form = form_of(bound.codec, bound.encoding, tensor.spec)
    return None if form is None else packed_as(form, bound)


def fill(model: nn.Module, file: File, dtype: mx.Dtype | None = None) -> list[str]:
    """Give every parameter of `model` the tensor of its name; the names, in order.

    A `nn.Linear` or `nn.Embedding` whose tensor MLX can hold packed becomes the quantized layer; everything else gets
    values. `dtype` is that of values, scales and biases (None: values as stored, scales in float32). A parameter
    without a tensor, or of another shape, is a SquishError; tensors that no parameter asks for are left.
    """
    filled, layers, values = [], [], []
    for path, module in model.named_modules():
        for own, parameter in module.items():
            if not isinstance(parameter, mx.array):
                continue
            name = f"{path}.{own}" if path else own
            if name not in file:
                raise SquishError(
                    "the file has no tensor of this name", tensor=name, file=file.name, code=ErrorCode.MISSING
                )
            if (found := file[name].shape) != tuple(parameter.shape):
                raise SquishError(
                    "the tensor has another shape than the parameter", tensor=name, file=file.name,
                    expected=list(parameter.shape), found=list(found), code="shape",
                )  # fmt: skip
            filled.append(name)
            held = packed(file, name) if own == "weight" and type(module) in _LAYERS else None
            if held is None:
                values.append((name, _values(file[name].numpy(), dtype)))
            else:
                layers.append((path, _quantized(module, held, dtype)))
    model.update_modules(tree_unflatten(layers))
    model.load_weights(values, strict=False)
    return filled


def _quantized(module: Any, held: Packed, dtype: mx.Dtype | None) -> nn.Module:
    form = held.form
    options: dict[str, Any] = {"group_size": form.group_size, "bits": form.bits, "mode": form.mode}
    if isinstance(module, nn.Linear):
        # One row of one group: the constructor quantizes random values, which the file's replace at once.
        made: Any = nn.QuantizedLinear(form.group_size, 1, bias="bias" in module, **options)
    else:
        made = nn.QuantizedEmbedding(1, form.group_size, **options)
        made.num_embeddings, made.dims = module.weight.shape
    made.weight, made.scales = mx.array(held.weight), mx.array(held.scales)
    if held.biases is not None:
        made.scales, made.biases = _values(held.scales, dtype), _values(held.biases, dtype)
    return made


def _values(array: np.ndarray, dtype: mx.Dtype | None) -> mx.array:
    known = array.dtype in (np.float32, np.float16, dtypes.to_numpy("bf16"))
    found = mx.array(array if known else array.astype(np.float32))
    return found if dtype is None else found.astype(dtype)
