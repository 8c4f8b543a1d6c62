"""The stored parts of a tensor on a device: bytes, and numbers in f32."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import torch
from attrs import frozen
from squish_codecs.api import float8_table
from torch import Tensor

from squish_core.api import CodecSpec, Part, TensorSpec, dtypes

FLOATS = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
INTEGERS = {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32}


@frozen
class Stored:
    """The parts of a tensor, as uint8 tensors by role, and the tensor's description."""

    spec: TensorSpec
    data: Mapping[str, Tensor]

    @property
    def codec(self) -> CodecSpec:
        """The codec of the parts."""
        return self.spec.encodings[0].codec

    @property
    def inner(self) -> CodecSpec:
        """The inner codec."""
        inner = self.codec.inner
        assert inner is not None
        return inner

    @property
    def columns(self) -> int:
        """Number of values in a row."""
        return self.spec.shape[-1]

    @property
    def rows(self) -> int:
        """Number of rows, leading axes flattened."""
        return prod(self.spec.shape[:-1])

    def part(self, role: str) -> Part:
        """Return the description of a part."""
        return self.spec.encodings[0].parts[role]

    def bytes_of(self, role: str) -> Tensor:
        """Return the bytes of a part, [*shape, bytes of an element]."""
        part = self.part(role)
        return self.data[role].reshape(*part.shape, dtypes.nbytes(part.dtype, (1,)))

    def row_bytes(self, role: str, start: int, stop: int) -> Tensor:
        """Return the bytes of rows of a part that has as many rows as the tensor."""
        return self.data[role].reshape(self.rows, -1)[start:stop]

    def numbers(self, role: str) -> Tensor:
        """Return a part in f32, in its own shape."""
        return numbers(self.bytes_of(role), self.part(role).dtype)

    def row_numbers(self, role: str, start: int, stop: int) -> Tensor:
        """Return rows of a part in f32, for a part that has as many rows as the tensor."""
        size = dtypes.nbytes(self.part(role).dtype, (1,))
        raw = self.row_bytes(role, start, stop)
        return numbers(raw.reshape(len(raw), -1, size), self.part(role).dtype)


def numbers(raw: Tensor, dtype: str) -> Tensor:
    """Return bytes [..., bytes of an element] as f32; 8-bit integers and floats exactly."""
    if dtype in FLOATS:
        return raw.contiguous().view(FLOATS[dtype])[..., 0].float()
    if dtype in INTEGERS:
        return raw.contiguous().view(INTEGERS[dtype])[..., 0].float()
    if dtype.startswith("f8_"):
        return table_of(dtype, raw.device)[raw[..., 0].int()]
    shifts = torch.arange(raw.shape[-1], device=raw.device) * 8  # torch has few operators on wide unsigned types
    return (raw.long() << shifts).sum(-1).float()


def half(blocks: Tensor, start: int) -> Tensor:
    """Return the f16 at a byte of each block, as f32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(torch.float32)


@lru_cache(64)
def table_of(dtype: str, device: torch.device) -> Tensor:
    """Return the values of all codes of an 8-bit float."""
    return copied(float8_table(dtype), device)


def copied(values: Any, device: torch.device) -> Tensor:
    """Copy an array to a device as f32."""
    return torch.from_numpy(values.copy()).float().to(device)


@lru_cache(1024)
def constant(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers (a tuple, nested or not) on a device.

    They are copied there once: a copy in each call would wait for the device, and cannot be part of a CUDA graph.
    """
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)
