"""The values of stored tensors as torch tensors, in new memory or a private mapping of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from squish_core.api import DENSE, UsageError, dtypes
from squish_core.api import Tensor as StoredTensor

from .modules import bytes_of

TYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "f8_e4m3fnuz": torch.float8_e4m3fnuz,
    "f8_e5m2fnuz": torch.float8_e5m2fnuz, "f8_e8m0": torch.float8_e8m0fnu,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "bool": torch.bool, "complex64": torch.complex64,
    "complex128": torch.complex128,
}  # fmt: skip
"""Dtype of Squish -> dtype of torch."""
NAMES = {dtype: name for name, dtype in TYPES.items()}
DECODED = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes for decoding compressed tensors."""


def is_compressed(tensor: StoredTensor) -> bool:
    """Return whether the values of a tensor must be decoded."""
    return tensor.bound.encoding.codec != DENSE


def values_of(tensor: StoredTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the values: dense ones as stored unless `dtype` is set, others decoded (f32 by default).

    Dtypes below 8 bits stay packed, in uint8. Writing to the result never changes the file.
    """
    if not is_compressed(tensor):
        if dtypes.bits(tensor.spec.dtype) < 8:
            (buffer,) = tensor.parts(tensor.bound.encoding).values()
            return bytes_of(buffer, (buffer.nbytes,))
        values = torch.from_dlpack(tensor)
        return values if dtype is None else values.to(dtype)
    dtype = dtype or torch.float32
    if dtype not in DECODED:
        raise UsageError(
            "compressed tensors are not decoded into this dtype",
            tensor=tensor.name,
            code="dtype",
            expected=", ".join(map(str, DECODED)),
            found=str(dtype),
        )
    values = torch.empty(tensor.shape, dtype=dtype)
    weight = tensor.load(policy="exact", op="dense")
    for region in tensor.bound.panels():
        values[region] = torch.from_numpy(np.asarray(weight.dense(region=region), np.float32)).to(dtype)
    return values


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Copy a NumPy array (ml_dtypes included) to a tensor."""
    dtype = TYPES[dtypes.from_numpy(array.dtype)]
    data = np.array(array, order="C", copy=True)
    return torch.from_numpy(data.reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)


def array_of(name: str, value: Any) -> np.ndarray:
    """Return a tensor's values as a NumPy array (of ml_dtypes if NumPy lacks the dtype), without a copy if possible."""
    if not isinstance(value, torch.Tensor) or value.dtype not in NAMES:
        raise UsageError(
            "not a tensor that can be saved", tensor=name, found=str(getattr(value, "dtype", type(value))), code="array"
        )
    stored = value.detach().cpu().contiguous()
    kind = dtypes.to_numpy(NAMES[value.dtype])
    return stored.reshape(-1).view(torch.uint8).numpy().view(kind).reshape(tuple(stored.shape))
