"""Runs every case with each part, operand and output up against memory that must not be touched.

A program of its own: a read too far ends it."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
from cases import every, name_of
from random_parts import random_tensor, same

import squish_core as squish

PAGE = mmap.PAGESIZE
NO_ACCESS = 0
_C = ctypes.CDLL(None, use_errno=True)


def guarded(size: int, *, at_end: bool) -> np.ndarray:
    """`size` bytes that end at (or begin after) a page without access."""
    pages = -(-max(size, 1) // PAGE) * PAGE
    room = mmap.mmap(-1, pages + 2 * PAGE)
    everything = np.frombuffer(room, np.uint8)
    for page in (0, pages + PAGE):
        if _C.mprotect(ctypes.c_void_p(everything.ctypes.data + page), ctypes.c_size_t(PAGE), NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (pages - size if at_end else 0)
    return everything[start : start + size]


def copied(array: np.ndarray, *, at_end: bool) -> np.ndarray:
    """A copy of an array in guarded memory."""
    room = guarded(array.nbytes, at_end=at_end).view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


def has_panels(tensor: Any) -> bool:
    """Whether its codes can be repacked."""
    try:
        tensor.chain("cpu:repack=rows")
    except squish.SquishError:
        return False
    return True


def main() -> None:
    registry = squish.registry()
    backend: Any = registry.backend("cpu")
    for case in every():
        codec, shape, dtype = case
        tensor = random_tensor(codec, shape, dtype=dtype)
        chain = tensor.chain("cpu", op="dense")
        for at_end in (True, False):
            parts = {role: copied(part.numpy(), at_end=at_end) for role, part in tensor.parts().items()}
            handle = backend.load(chain, parts, registry)
            if len(shape) == 2 and has_panels(tensor):
                panels = backend.configured({"repack": "rows"})
                panels.linear(panels.load(chain, parts, registry), np.ones((3, shape[-1]), np.float32))
            out = copied(np.zeros_like(tensor.numpy()), at_end=at_end)
            same(backend.dense(handle, out=out), tensor.numpy())
            for count in (1, 2, 9) if len(shape) == 2 else ():
                x = copied(np.ones((count, shape[-1]), np.float32), at_end=at_end)
                backend.linear(handle, x)
        print(name_of(case), flush=True)


if __name__ == "__main__":
    sys.exit(main())
