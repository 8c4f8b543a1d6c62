"""Iterate over GGML blocks in cache-sized panels; bit manipulation shared by the block types."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Lanes = npt.NDArray[np.uint64]
Kernel = Callable[[Bytes, Floats, "Scratch"], None]
Decode = Callable[[Bytes, Floats], None]
Encode = Callable[[Floats, Bytes], None]

PANEL_ELEMENTS = 1 << 16  # 256 KiB of float32: one panel with its scratch fits a common 512 KiB L2 cache
EVERY_BYTE = 0x0101010101010101
HALF, FLOAT, BYTE = np.dtype("<f2"), np.dtype(np.float32), np.dtype(np.uint8)


class Scratch:
    """Named work arrays for one call; the first panel is the largest, so each is allocated once."""

    def __init__(self) -> None:
        self._pool: dict[Hashable, npt.NDArray[Any]] = {}

    def __call__(self, name: str, *shape: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """Return an uninitialized C-contiguous array, shared by all uses of `name`."""
        size = math.prod(shape)
        room = self._pool.get(name)
        if room is None:
            room = self._pool[name] = np.empty(size, dtype)
        return room[:size].reshape(shape)

    def constant(self, key: Hashable, make: Callable[[], Lanes]) -> Lanes:
        """Return the cached result of `make`, sized for the first and largest panel."""
        if key not in self._pool:
            self._pool[key] = make()
        return self._pool[key]


def decoder(kernel: Kernel, elements: int, nbytes: int) -> Decode:
    """Make `decode(blocks, out)`: uint8 (rows, blocks, nbytes) into float32 (rows, blocks*elements)."""

    def decode(blocks: Bytes, out: Floats) -> None:
        _check(blocks, out, elements, nbytes)
        scratch = Scratch()
        # NaN and infinite scales are legal block contents.
        with np.errstate(all="ignore"):
            for panel, values in _panels(blocks, out, elements):
                kernel(panel, values, scratch)

    return decode


def encoder(kernel: Kernel, elements: int, nbytes: int) -> Encode:
    """Make `encode(values, out)`: float32 (rows, blocks*elements) into uint8 (rows, blocks, nbytes)."""

    def encode(values: Floats, out: Bytes) -> None:
        _check(out, values, elements, nbytes)
        if not out.flags.c_contiguous:
            raise ValueError("encoded blocks need a C-contiguous array")
        scratch = Scratch()
        # A scale may overflow float16, and its inverse float32; ggml stores the resulting values too.
        with np.errstate(all="ignore"):
            for panel, part in _panels(out, values, elements):
                kernel(panel, part, scratch)

    return encode


def _check(blocks: Bytes, values: Floats, elements: int, nbytes: int) -> None:
    if blocks.dtype != BYTE or blocks.ndim != 3 or blocks.shape[2] != nbytes:
        raise ValueError(f"blocks must be uint8 (rows, blocks, {nbytes}), not {blocks.dtype} {blocks.shape}")
    if blocks.size and blocks.strides[2] != 1:  # NumPy gives empty arrays any strides
        raise ValueError("the bytes of one block must be adjacent")
    shape = (blocks.shape[0], blocks.shape[1] * elements)
    if values.dtype != FLOAT or values.shape != shape or not values.flags.c_contiguous:
        raise ValueError(f"values must be C-contiguous float32 {shape}, not {values.dtype} {values.shape}")


def _panels(blocks: Bytes, values: Floats, elements: int) -> Iterator[tuple[Bytes, Floats]]:
    """Yield (panel, nbytes) and (panel, elements) views, across short rows and within long ones."""
    rows, count, nbytes = blocks.shape
    if not rows * count:
        return
    step = PANEL_ELEMENTS // elements
    if rows * count <= step:
        yield blocks.reshape(-1, nbytes), values.reshape(-1, elements)
        return
    adjacent = rows == 1 or blocks.strides[0] == count * blocks.strides[1]
    at_once = rows if adjacent else max(1, step // count)
    for row in range(0, rows, at_once):
        # The reshape copies only non-adjacent rows (a slice of columns), one panel at a time.
        part = blocks[row : row + at_once].reshape(-1, nbytes)
        target = values[row : row + at_once].reshape(-1, elements)
        for start in range(0, len(part), step):
            yield part[start : start + step], target[start : start + step]


def half(panel: Bytes, at: int) -> Floats:
    """Read the float16 at byte `at` of every block as float32 (panel, 1)."""
    return panel[:, at : at + 2].view(HALF).astype(FLOAT)


def spread(span: Bytes, width: int, shifts: tuple[int, ...], mask: int, scratch: Scratch) -> Lanes:
    """Split bytes (panel, count) into bit fields: bytes (panel, count/width, shift, width), as flat uint64.

    Eight bytes are shifted at a time; the mask drops bits that cross into the next byte.
    """
    # NumPy copies opaque items as units instead of looping over a few bytes each.
    lanes = np.repeat(span.view(f"V{width}"), len(shifts)).view(np.uint64)
    lanes >>= scratch.constant((width, shifts), lambda: _repeat(shifts, width // 8, lanes.size))[: lanes.size]
    lanes &= np.uint64(mask * EVERY_BYTE)
    return lanes


def _repeat(shifts: tuple[int, ...], lanes: int, size: int) -> Lanes:
    return np.resize(np.repeat(np.array(shifts, np.uint64), lanes), size)
