"""Runs every case with each part, operand and output next to inaccessible memory.

A separate program, since an out-of-bounds access kills it."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
from cases import every, name_of
from random_parts import random_tensor, same

import squish_core as squish
from squish_core.api import BoundEncoding, CodecSpec, dtypes

PAGE = mmap.PAGESIZE
NO_ACCESS = 0
_C = ctypes.CDLL(None, use_errno=True)


def guarded(size: int, *, at_end: bool) -> np.ndarray:
    """`size` bytes next to an inaccessible page."""
    pages = -(-max(size, 1) // PAGE) * PAGE
    room = mmap.mmap(-1, pages + 2 * PAGE)
    everything = np.frombuffer(room, np.uint8)
    for page in (0, pages + PAGE):
        if _C.mprotect(ctypes.c_void_p(everything.ctypes.data + page), ctypes.c_size_t(PAGE), NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (pages - size if at_end else 0)
    return everything[start : start + size]


def copied(array: np.ndarray, *, at_end: bool) -> np.ndarray:
    """Copy an array to guarded memory."""
    room = guarded(array.nbytes, at_end=at_end).view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


def has_panels(tensor: Any) -> bool:
    """Whether its codes can be repacked."""
    try:
        tensor.plan("cpu:repack=rows")
    except squish.SquishError:
        return False
    return True


ENCODINGS = (
    *(CodecSpec(f"ggml.{name}") for name in ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4", "nvfp4")),
    CodecSpec("ggml.scaled_nvfp4"),
    CodecSpec("mx"),
    *(CodecSpec(f"ggml.{name}", {"search": "activations"}) for name in ("q4_k", "q5_k", "q6_k")),
    *(CodecSpec("affine", {"bits": 4, "group_size": size, "offset": "bias"}) for size in (16, 32, 48, 256)),
    *(CodecSpec("affine", {"bits": bits, "group_size": 32}) for bits in (3, 4, 8)),
    *(
        CodecSpec("affine", {"bits": 3, "group_size": size, "offset": "zero_point", "search": "mse"})
        for size in (48, 256)
    ),
    CodecSpec("tca_tbe", {"base_exponent": 120, "n_high": 0}),
)


def encode(registry: Any) -> None:
    """Encode from guarded memory."""
    values, seen = np.random.default_rng(0).standard_normal((5, 768), np.float32), np.ones(768, np.float32)
    for codec in ENCODINGS:
        values_given = values.astype(dtypes.to_numpy("bf16" if codec.id == "tca_tbe" else "f32"))
        for at_end in (True, False):
            activations = copied(seen, at_end=at_end)
            encoder, panel = registry.encoder(codec), copied(values_given, at_end=at_end)
            encoder.encode(panel, activations=activations)


def main() -> None:
    registry = squish.registry()
    encode(registry)
    backend: Any = registry.backend("cpu")
    for case in every():
        codec, shape, dtype = case
        tensor = random_tensor(codec, shape, dtype=dtype)
        chain = tensor.plan("cpu", op="dense")
        for at_end in (True, False):
            parts = {role: copied(part.numpy(), at_end=at_end) for role, part in tensor.parts().items()}
            bound = BoundEncoding(tensor.bound.codec, tensor.spec, tensor.bound.encoding, parts)
            handle = backend.load(chain, bound)
            for activations in ("f32", "bf16", "int8") if len(shape) == 2 and has_panels(tensor) else ():
                panels = backend.configured({"repack": "rows", "activations": activations})
                panels.linear(panels.load(chain, bound), np.ones((3, shape[-1]), np.float32))
            out = copied(np.zeros_like(tensor.numpy()), at_end=at_end)
            same(backend.dense(handle, out=out), tensor.numpy())
            for count in (1, 2, 9) if len(shape) == 2 else ():
                x = copied(np.ones((count, shape[-1]), np.float32), at_end=at_end)
                backend.linear(handle, x)
        print(name_of(case), flush=True)


if __name__ == "__main__":
    sys.exit(main())
