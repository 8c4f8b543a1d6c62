"""Tensors with random stored parts, in memory, under any codec."""

from __future__ import annotations

import numpy as np
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec, dtypes
from squish_core.tensor import Tensor

FLOATS = ("f32", "f16", "bf16")
SMALL_FLOATS = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")


def random_tensor(
    codec: CodecSpec, shape: tuple[int, ...], seed: int = 0, dtype: str = "f32", *, finite: bool = False
) -> Tensor:
    """A tensor with random stored parts.

    Stored floats are of ordinary size. Some of them are infinite or NaN unless `finite` is set.
    """
    registry = squish.registry()
    spec = TensorSpec(name="w", shape=shape, dtype=dtype)
    rng = np.random.default_rng(seed)
    codec, bitmaps = _bitmaps(codec, shape, rng)
    parts = {
        role: _random_part(kind, size, rng, finite) for role, (kind, size) in registry.codec(codec).parts(spec).items()
    } | bitmaps
    if "table" in parts:  # SQUIZD: an id, then a finite scale and a finite zero
        parts["table"][:, :2] = 0
        parts["table"][:, 2:] = rng.standard_normal((len(parts["table"]), 2), np.float32).view(np.uint32)
    if "g_idx" in parts and codec.inner:
        columns = shape[-1]
        parts["g_idx"] = rng.permutation(
            np.arange(columns, dtype=np.int32) // (codec.inner.params["group_size"] or columns)
        )
    if codec.id == "hqq" and codec.params["bits"] == 3:
        parts["data"] &= 0x3FFFFFFF
    file, _ = memory_file(registry, {"w": (spec, codec, parts)})
    return file["w"]


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equal bits, except that any NaN equals any other."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    words = f"u{actual.itemsize}"
    differ = np.ascontiguousarray(actual).view(words) != np.ascontiguousarray(expected).view(words)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        differ &= ~(np.isnan(actual) & np.isnan(expected))
    n_different = np.count_nonzero(differ)
    assert not n_different, f"{n_different} of {differ.size}: {actual[differ][:4]}, {expected[differ][:4]}"


def _random_part(kind: str, shape: tuple[int, ...], rng: np.random.Generator, finite: bool) -> np.ndarray:
    if kind in FLOATS:
        values = rng.standard_normal(shape, np.float32)
        if not finite:
            special = rng.random(shape) < 0.02
            values = np.where(special & (rng.random(shape) < 0.5), np.float32(np.inf), values)
            values = np.where(special, -values, values)
        return np.asarray(values).astype(dtypes.to_numpy(kind))
    if finite and kind in (*SMALL_FLOATS, "f8_e8m0"):
        return _finite_bytes(kind, shape, rng)
    raw = rng.integers(0, 256, dtypes.nbytes(kind, shape), np.uint8)
    return raw.view(dtypes.to_numpy(kind)).reshape(shape)


def _finite_bytes(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Finite floats of 8 bits; powers of two stay between 2**-8 and 2**8."""
    codes = np.arange(119, 136, dtype=np.uint8) if kind == "f8_e8m0" else np.arange(256, dtype=np.uint8)
    values = codes.view(dtypes.to_numpy(kind))
    return rng.choice(codes[np.isfinite(values.astype(np.float32))], shape).view(dtypes.to_numpy(kind))


def _bitmaps(
    codec: CodecSpec, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[CodecSpec, dict[str, np.ndarray]]:
    """Bitmaps, and the codec with the parameters that count their bits. Rows have every density, 0 and 1 included."""
    density = rng.random((*shape[:-1], 1)) * 1.6 - 0.3
    mask = rng.random(shape) < density
    if codec.id == "tca_tbe":
        mask[:1], mask[1:2] = False, True
        codes = np.zeros((*shape[:-1], -(-shape[-1] // 64) * 64), np.uint8)
        codes[..., : shape[-1]] = np.where(mask, rng.integers(1, 8, shape), 0)
        planes = {
            f"plane{bit}": np.packbits(codes >> bit & 1, axis=-1, bitorder="little").view("<u8") for bit in range(3)
        }
        return CodecSpec(codec.id, {**codec.params, "n_high": int(mask.sum())}), planes
    if codec.id != "bitmask":
        return codec, {}
    kept = codec.params.get("kept", "any")
    if isinstance(kept, int):
        mask = np.argsort(rng.random(shape), axis=-1) < kept
        return codec, {"mask": np.packbits(mask, axis=-1, bitorder="little")}
    codec = CodecSpec(codec.id, {**codec.params, "count": int(mask.sum())})
    if kept == "run":
        return codec, {"mask": np.packbits(mask, bitorder="little")}
    counts = mask.sum(axis=-1, dtype=np.int64)
    starts = (np.cumsum(counts) - counts)[:, None]
    return codec, {"mask": np.packbits(mask, axis=-1, bitorder="little"), "starts": starts}
