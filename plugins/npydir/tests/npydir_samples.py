"""Small directories by hand, and every dialect with its values by formula."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from squish_safetensors.api import dump_header

from squish_core.api import dtypes

RNG = np.random.default_rng(1)
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def make(folder: Path, tensors: Mapping[str, Mapping[str, Any]], *, ready: bool = True) -> Path:
    """A directory of tensors given as {suffix: array}; `shape` may be a plain tuple."""
    (folder / "tensors").mkdir(parents=True)
    manifest = {name: name.replace(".", "__") for name in tensors}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
    for name, files in tensors.items():
        for suffix, array in files.items():
            stored = np.array(array, np.int64) if suffix == "shape" else np.asarray(array)
            np.save(folder / "tensors" / f"{manifest[name]}__{suffix}.npy", stored)
    if ready:
        (folder / "tensors" / ".manifest_ready").touch()
    return folder


def int8(shape: tuple[int, ...] = (4, 8), seed: int = 0) -> dict[str, Any]:
    """The files of a tensor in INT8 by rows."""
    rng = np.random.default_rng(seed)
    matrix = (int(np.prod(shape[:-1])), shape[-1]) if shape else (1, 1)
    return {
        "q": rng.integers(-127, 128, matrix).astype(np.int8),
        "s": rng.random(matrix[0], np.float32),
        "shape": shape,
    }


def nibbles(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    packed = RNG.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    return packed, np.stack([packed & 15, packed >> 4], -1).reshape(rows, columns)


def spread(grid: np.ndarray, columns: int) -> np.ndarray:
    return np.repeat(grid, columns // grid.shape[-1], -1)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def dialect_cases() -> dict[str, tuple[tuple[int, ...], dict[str, Any], np.ndarray]]:
    """Name -> logical shape, files, values by the formula of the format's description."""
    samples: dict[str, Any] = {}
    q = RNG.integers(-127, 128, (6, 64)).astype(np.int8)
    s = floats(6)
    samples["int8 by rows"] = (2, 3, 64), {"q": q, "s": s}, (q * s[:, None]).reshape(2, 3, 64)
    q, s = RNG.integers(-127, 128, (4, 128)).astype(np.int8), floats(4, 2)
    samples["int8 by groups"] = (4, 128), {"q": q, "s": s}, q * spread(s, 128)
    packed, q = nibbles(4, 64)
    s, z = floats(4, 2), floats(4, 2)
    asymmetric = q * spread(s, 64) + spread(z, 64)
    samples["int4"] = (4, 64), {"q4a": packed, "s4a": s, "z4a": z}, asymmetric
    samples["int4 of the sqint2 path"] = (4, 64), {"q4": packed, "s4": s, "z4": z}, asymmetric
    samples["int4 symmetric"] = (4, 64), {"q4": packed, "s4": s}, (q.astype(np.float32) - 7) * spread(s, 64)
    samples["nf4"] = (4, 64), {"nf4": packed, "s_nf4": s}, np.array(NF4, np.float32)[q] * spread(s, 64)
    codes = RNG.integers(0, 8, (4, 64)).astype(np.uint8)
    samples["int3 of the sqint2 path"] = (4, 64), {"q3": codes, "s3": s, "z3": z}, codes * spread(s, 64) + spread(z, 64)
    crumbs = RNG.integers(0, 256, (4, 32)).astype(np.uint8)
    q = np.stack([crumbs >> 2 * place & 3 for place in range(4)], -1).reshape(4, 128)
    samples["int2"] = (4, 128), {"q2": crumbs, "s2": s, "z2": z}, q * spread(s, 128) + spread(z, 128)
    samples["passthrough"] = (3, 5), {"pt": floats(3, 5).astype(np.float16)}, floats(0)
    samples["passthrough"] = (3, 5), samples["passthrough"][1], samples["passthrough"][1]["pt"]
    samples["one axis"] = (64,), {"q": codes[:1].view(np.int8), "s": s[0, :1]}, codes[0] * s[0, 0]
    samples["no axes"] = (), {"q": codes[:1, :1].view(np.int8), "s": s[0, :1]}, np.float32(codes[0, 0] * s[0, 0])
    return samples


CASES = dialect_cases()


def source(path: Path, **tensors: np.ndarray) -> Path:
    """A safetensors file; double underscores in the keywords are dots."""
    arrays = {name.replace("__", "."): array for name, array in tensors.items()}
    listing = [(name, dtypes.from_numpy(array.dtype), array.shape) for name, array in arrays.items()]
    path.write_bytes(dump_header(listing, {}) + b"".join(array.tobytes() for array in arrays.values()))
    return path
