"""Values of stored tensors as torch tensors: in memory of their own, or a private mapping of the file."""

from __future__ import annotations

import torch

from squish_core.api import Tensor as StoredTensor

TYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "f8_e4m3fnuz": torch.float8_e4m3fnuz,
    "f8_e5m2fnuz": torch.float8_e5m2fnuz, "f8_e8m0": torch.float8_e8m0fnu,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "bool": torch.bool, "complex64": torch.complex64,
    "complex128": torch.complex128,
}  # fmt: skip
"""Element type of Squish -> of torch."""
NAMES = {dtype: name for name, dtype in TYPES.items()}
DECODED = (torch.float32, torch.bfloat16, torch.float16)
"""Types that compressed tensors are decoded into."""


def values_of(tensor: StoredTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values; dense ones as stored unless a dtype is given, others decoded (f32 by default).

    Writing to the result never changes the file.
    """
    values = torch.from_dlpack(tensor)
    return values if dtype is None or values.dtype == dtype else values.to(dtype)
