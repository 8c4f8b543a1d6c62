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
    stored: dict[str, np.ndarray] = {}
    codec, fitting = _masks(codec, shape, chance)
    for role, (kind, size) in registry.codec(codec).parts(spec, codec.params).items():
        if kind in FLOATS:
            values = chance.standard_normal(size, np.float32)
            odd = chance.random(size) < 0.02
            values = np.where(odd & (chance.random(size) < 0.5), np.float32(np.inf), values)
            stored[role] = np.asarray(np.where(odd, -values, values)).astype(dtypes.to_numpy(kind))
        else:
            raw = chance.integers(0, 256, dtypes.nbytes(kind, size), np.uint8)
            stored[role] = raw.view(dtypes.to_numpy(kind)).reshape(size)
    stored |= fitting
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
    with np.errstate(invalid="ignore"):  # signalling ones
        differ &= ~(np.isnan(found) & np.isnan(wanted))
    assert not differ.any(), f"{np.count_nonzero(differ)} of {differ.size}: {found[differ][:4]}, {wanted[differ][:4]}"


def _masks(
    codec: CodecSpec, shape: tuple[int, ...], chance: np.random.Generator
) -> tuple[CodecSpec, dict[str, np.ndarray]]:
    """Bitmaps, and the parameters that count their bits; rows of every density, full and empty ones among them."""
    density = chance.random((*shape[:-1], 1)) * 1.6 - 0.3
    some = chance.random(shape) < density
    if codec.id == "tca_tbe":
        some[:1], some[1:2] = False, True
        codes = np.zeros((*shape[:-1], -(-shape[-1] // 64) * 64), np.uint8)
        codes[..., : shape[-1]] = np.where(some, chance.integers(1, 8, shape), 0)
        planes = {
            f"plane{bit}": np.packbits(codes >> bit & 1, axis=-1, bitorder="little").view("<u8") for bit in range(3)
        }
        return CodecSpec(codec.id, {**codec.params, "n_high": int(some.sum())}), planes
    if codec.id != "bitmask":
        return codec, {}
    kept = codec.params.get("kept", "any")
    if isinstance(kept, int):
        some = np.argsort(chance.random(shape), axis=-1) < kept
        return codec, {"mask": np.packbits(some, axis=-1, bitorder="little")}
    made = CodecSpec(codec.id, {**codec.params, "count": int(some.sum())})
    if kept == "run":
        return made, {"mask": np.packbits(some, bitorder="little")}
    counts = some.sum(axis=-1, dtype=np.int64)
    starts = (np.cumsum(counts) - counts)[:, None]
    return made, {"mask": np.packbits(some, axis=-1, bitorder="little"), "starts": starts}
