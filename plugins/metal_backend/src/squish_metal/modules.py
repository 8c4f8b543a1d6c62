"""Loads weights of any format into MLX modules; quantized layers keep their codes in `nn.QuantizedLinear`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from squish_core.api import ErrorCode, File, SquishError, dtypes

from .forms import form_of
from .transcode import Packed, pack

_LAYERS = {nn.Linear: nn.QuantizedLinear, nn.Embedding: nn.QuantizedEmbedding}


def packed(file: File, name: str) -> Packed | None:
    """Pack a tensor for MLX.

    Parameters
    ----------
    file : File
        An open file.
    name : str
        Name of a tensor.

    Returns
    -------
    Packed or None
        Weight, scales and biases; None if MLX's layers do not support the tensor's codes.
    """
    tensor = file[name]
    bound = tensor.bound
    form = form_of(bound.codec, tensor.spec)
    return None if form is None or form.transposed else pack(form, bound)


def fill(model: nn.Module, file: File, dtype: mx.Dtype | None = None) -> list[str]:
    """Load the parameters of a model from the tensors of the same name.

    A `nn.Linear` or `nn.Embedding` becomes a quantized layer if MLX supports the tensor's codes; all other parameters
    get decoded values. Other tensors of the file are ignored.

    Parameters
    ----------
    model : mlx.nn.Module
        The model, modified in place.
    file : File
        An open file.
    dtype : mlx.core.Dtype, optional
        Dtype of values, scales and biases; by default values keep their dtype and scales are float32.

    Returns
    -------
    list of str
        The names of the loaded tensors, in order.

    Raises
    ------
    SquishError
        `missing` if a parameter has no tensor, `shape` if the shapes differ.
    """
    filled, layers, values = [], [], []
    for path, module in model.named_modules():
        for own, parameter in module.items():
            if not isinstance(parameter, mx.array):
                continue
            name = f"{path}.{own}" if path else own
            if name not in file:
                raise SquishError("tensor not in the file", tensor=name, file=file.name, code=ErrorCode.MISSING)
            if (shape := file[name].shape) != tuple(parameter.shape):
                raise SquishError(
                    "tensor and parameter shapes differ",
                    tensor=name,
                    file=file.name,
                    expected=list(parameter.shape),
                    found=list(shape),
                    code="shape",
                )
            filled.append(name)
            weight = packed(file, name) if own == "weight" and type(module) in _LAYERS else None
            if weight is None:
                values.append((name, _values(file[name].numpy(), dtype)))
            else:
                layers.append((path, _quantized(module, weight, dtype)))
    model.update_modules(tree_unflatten(layers))
    model.load_weights(values, strict=False)
    return filled


def _quantized(module: Any, weight: Packed, dtype: mx.Dtype | None) -> nn.Module:
    form = weight.form
    options: dict[str, Any] = {"group_size": form.group_size, "bits": form.bits, "mode": form.mode}
    if isinstance(module, nn.Linear):
        # Minimal size: the constructor quantizes random values, which are replaced below.
        layer: Any = nn.QuantizedLinear(form.group_size, 1, bias="bias" in module, **options)
    else:
        layer = nn.QuantizedEmbedding(1, form.group_size, **options)
        layer.num_embeddings, layer.dims = module.weight.shape
    layer.weight, layer.scales = mx.array(weight.weight), mx.array(weight.scales)
    if weight.biases is not None:
        layer.scales, layer.biases = _values(weight.scales, dtype), _values(weight.biases, dtype)
    return layer


def _values(array: np.ndarray, dtype: mx.Dtype | None) -> mx.array:
    native = array.dtype in (np.float32, np.float16, dtypes.to_numpy("bf16"))
    values = mx.array(array if native else array.astype(np.float32))
    return values if dtype is None else values.astype(dtype)
