"""Tensors of random bytes, in memory, under any codec."""

from __future__ import annotations

import numpy as np

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec, dtypes
from squish_core.tensors import Tensor
from squish_core.testing.sources import memory_file

FLOATS = ("f32", "f16", "bf16")


def random_tensor(codec: CodecSpec, shape: tuple[int, ...], seed: int = 0, dtype: str = "f32") -> Tensor:
    """A tensor whose stored parts are random; floats in them are of ordinary size, and some are not finite."""
    registry = squish.registry()
    spec = TensorSpec(name="w", shape=shape, dtype=dtype)
    chance = np.random.default_rng(seed)
    stored = {}
    for role, (kind, size) in registry.codec(codec).parts(spec, codec.params).items():
        if kind in FLOATS:
            values = chance.standard_normal(size, np.float32)
            odd = chance.random(size) < 0.02
            values = np.where(odd & (chance.random(size) < 0.5), np.float32(np.inf), values)
            stored[role] = np.asarray(np.where(odd, -values, values)).astype(dtypes.to_numpy(kind))
        else:
            raw = chance.integers(0, 256, dtypes.nbytes(kind, size), np.uint8)
            stored[role] = raw.view(dtypes.to_numpy(kind)).reshape(size)
    if "table" in stored:  # SQUIZD: an id, then a finite scale and zero
        stored["table"][:, :2] = 0
        stored["table"][:, 2:] = chance.standard_normal((len(stored["table"]), 2), np.float32).view(np.uint32)
    if codec.id == "hqq" and codec.params["bits"] == 3:
        stored["data"] &= 0x3FFFFFFF
    file, _ = memory_file(registry, {"w": (spec, codec, stored)})
    return file["w"]


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Bit for bit, except that any NaN is as good as another."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    words = f"u{found.itemsize}"
    differ = np.ascontiguousarray(found).view(words) != np.ascontiguousarray(wanted).view(words)
    differ &= ~(np.isnan(found) & np.isnan(wanted))
    assert not differ.any(), f"{np.count_nonzero(differ)} of {differ.size}: {found[differ][:4]}, {wanted[differ][:4]}"
