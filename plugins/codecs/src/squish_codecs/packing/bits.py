"""Packing of 1- to 8-bit integers in machine words: bit streams and fixed orders within a word."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import frozen

Array = np.ndarray
BIT_COUNTS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Number of set bits of each byte."""
_LANES: dict[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (2, 4, 8)}


@frozen
class Packing:
    """Codes of `bits` bits in words of dtype `word` along one axis; each line starts at a new word.

    `order` "lsb": a bit stream, first code in the lowest bits, codes may span words. "msb": first code in the highest
    bits. "padded": whole codes only, first lowest, remaining bits unused. "planes": bit planes of 32 codes, with 4, 2
    or 1 bits each, widest and lowest first. A tuple: the code at bits `i * bits` of a word is number `order[i]`.
    """

    bits: int
    word: str
    order: str | tuple[int, ...]

    @property
    def width(self) -> int:
        """Bits of a word."""
        return int(self.word[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of a word."""
        return np.dtype(f"<{self.word[0]}{self.width // 8}")

    @property
    def unit(self) -> int:
        """Codes in the smallest number of words with only whole codes."""
        if self.order == "padded":
            return self.width // self.bits
        if self.order == "planes":
            return 32
        return self.width // math.gcd(self.width, self.bits)

    def words(self, count: int) -> int:
        """Return the number of words for a line of `count` codes."""
        if self.order == "padded":
            return -(-count // self.unit)
        if self.order == "planes":
            return -(-count // 32) * self.bits
        return -(-count * self.bits // self.width)

    def span(self, start: int, stop: int) -> slice:
        """Return the words of codes `start` to `stop` of a line; `start` must be a multiple of `unit`."""
        return slice(start // self.unit * self.words(self.unit), self.words(stop))

    def unpack(self, words: Array, count: int, axis: int = -1) -> Array:
        """Unpack words along `axis` to unsigned codes (u8); the result may be a view of `words` with any strides."""
        if axis != -1:
            return np.moveaxis(self.unpack(np.moveaxis(words, axis, -1), count), -1, axis)
        if self.order == "padded":
            return self._unpack_padded(words)[..., :count]
        if self.order == "planes":
            return self._from_planes(words)[..., :count]
        stream = np.ascontiguousarray(words, self.dtype).view(np.uint8)
        codes = stream if self.bits == 8 else _unpack_stream(stream, self.bits, self._padded(count))
        codes = self._reorder(codes, reading=True)
        return codes[..., :count]

    def pack(self, codes: Array, axis: int = -1) -> Array:
        """Pack the low `bits` bits of codes along `axis` into words; unused bits are zero."""
        if axis != -1:
            return np.moveaxis(self.pack(np.moveaxis(codes, axis, -1)), -1, axis)
        codes, count = row_major(codes), codes.shape[-1]
        if self.order == "padded":
            lines = np.zeros((*codes.shape[:-1], self.words(count) * self.unit), f"<u{self.width // 8}")
            lines[..., :count] = codes.view(np.uint8) & np.uint8((1 << self.bits) - 1)
            lines = lines.reshape(*codes.shape[:-1], -1, self.unit) << self._shifts(lines.dtype)
            return np.bitwise_or.reduce(lines, axis=-1).view(self.dtype)
        if self.order == "planes":
            return self._to_planes(codes)
        size = self.words(count) * self.width // 8
        lines = np.zeros((*codes.shape[:-1], max(self._padded(count), size * 8 // self.bits)), np.uint8)
        lines[..., :count] = codes.view(np.uint8) & np.uint8((1 << self.bits) - 1)
        lines = self._reorder(lines, reading=False)
        stream = lines if self.bits == 8 else _pack_stream(lines, self.bits)
        raw = np.zeros((*codes.shape[:-1], size), np.uint8)
        length = min(size, stream.shape[-1])
        raw[..., :length] = stream[..., :length]
        return raw.view(self.dtype)

    def _unpack_padded(self, words: Array) -> Array:
        """Unpack words with whole codes and unused bits."""
        lanes = np.ascontiguousarray(words).view(f"<u{self.width // 8}")
        codes = lanes[..., None] >> self._shifts(lanes.dtype)
        return codes.astype(np.uint8).reshape(*words.shape[:-1], -1) & np.uint8((1 << self.bits) - 1)

    def _from_planes(self, words: Array) -> Array:
        """Unpack bit planes of 32 codes each."""
        runs = words.reshape(*words.shape[:-1], -1, self.bits)
        codes = np.zeros((*runs.shape[:-1], 32), np.uint8)
        for low, bits in self._planes():
            codes |= Packing(bits, self.word, "lsb").unpack(runs[..., low : low + bits], 32) << np.uint8(low)
        return codes.reshape(*words.shape[:-1], -1)

    def _to_planes(self, codes: Array) -> Array:
        count = codes.shape[-1]
        runs = np.zeros((*codes.shape[:-1], -(-count // 32) * 32), np.uint8)
        runs[..., :count] = codes.view(np.uint8)
        runs = runs.reshape(*codes.shape[:-1], -1, 32)
        planes = [Packing(bits, self.word, "lsb").pack(runs >> np.uint8(low)) for low, bits in self._planes()]
        return np.concatenate(planes, axis=-1).reshape(*codes.shape[:-1], -1)

    def _planes(self) -> list[tuple[int, int]]:
        """Return the lowest bit and width of each plane; a plane of n bits takes n 32-bit words."""
        widths = [width for width in (4, 2, 1) if self.bits & width]
        return [(sum(widths[:number]), width) for number, width in enumerate(widths)]

    def _shifts(self, dtype: np.dtype[Any]) -> Array:
        return (np.arange(self.unit) * self.bits).astype(dtype)

    def _padded(self, count: int) -> int:
        """Return the code capacity of the words of a line."""
        return self.words(count) * self.width // self.bits if self.order != "lsb" else count

    def _reorder(self, codes: Array, *, reading: bool) -> Array:
        """Convert between code order and bit order."""
        if self.order == "lsb":
            return codes
        order = range(self.unit - 1, -1, -1) if self.order == "msb" else self.order
        places = np.argsort(order) if reading else np.array(order)
        return codes.reshape(*codes.shape[:-1], -1, self.unit)[..., places].reshape(codes.shape)


TILE = 64


def row_major(codes: Array) -> Array:
    """Return codes in row-major memory order; a transposed matrix is copied in cache-sized tiles.

    Parameters
    ----------
    codes : numpy.ndarray
        Codes with any strides.

    Returns
    -------
    numpy.ndarray
        C-contiguous, without a copy if possible.

    Examples
    --------
    >>> codes = np.array([[0, 1], [2, 3]], np.uint8).T
    >>> row_major(codes).flags.c_contiguous, row_major(codes).tolist()
    (True, [[0, 2], [1, 3]])
    """
    if codes.ndim < 2 or abs(codes.strides[-1]) <= abs(codes.strides[-2]):
        return np.ascontiguousarray(codes)
    out = np.empty(codes.shape, codes.dtype)
    rows, columns = codes.shape[-2:]
    for row in range(0, rows, TILE):
        for column in range(0, columns, TILE):
            tile = (..., slice(row, row + TILE), slice(column, column + TILE))
            out[tile] = codes[tile]
    return out


def _steps(bits: int) -> tuple[np.dtype[np.unsignedinteger[Any]], int, list[tuple[int, int]]]:
    """Return lane dtype, packed bytes per lane, and the upper codes' shift and lower codes' mask per halving."""
    codes = 8 // math.gcd(8, bits)
    steps = []
    half = codes // 2
    while half:
        field = (1 << half * bits) - 1
        steps.append((half * (8 - bits), sum(field << 16 * half * pair for pair in range(codes // half // 2))))
        half //= 2
    return _LANES[codes], codes * bits // 8, steps


def _unpack_stream(stream: Array, bits: int, count: int) -> Array:
    """Unpack a bit stream to one byte per code: load a run of bytes per lane, then repeatedly shift the upper half."""
    lane, run, steps = _steps(bits)
    size = -(-count // lane.itemsize)
    if run == 1:
        lanes = stream[..., :size].astype(lane)
    else:
        lanes = np.zeros((*stream.shape[:-1], size), lane)
        _runs(lanes, run)[...] = _pad_runs(stream, run, size)
    for shift, lower in steps:
        if bits <= 4:  # shifted and unshifted codes do not overlap: one mask for both
            lanes |= lanes << lane.type(shift)
            lanes &= lane.type(lower | lower << shift * 8 // (8 - bits))
            continue
        upper = lanes & ~lane.type(lower)
        upper <<= lane.type(shift)
        lanes &= lane.type(lower)
        lanes |= upper
    return lanes.view(np.uint8)


def _pack_stream(codes: Array, bits: int) -> Array:
    """Pack one byte per code to a bit stream, rounded up to whole runs; inverse of `_unpack_stream`."""
    lane, run, steps = _steps(bits)
    lanes = _pad_runs(codes, lane.itemsize, -(-codes.shape[-1] // lane.itemsize)).view(lane)
    for shift, lower in reversed(steps):
        lanes = (lanes & lane.type(lower)) | (lanes & ~lane.type(lower)) >> lane.type(shift)
    stream = np.ascontiguousarray(_runs(lanes, run))
    return stream.view(np.uint8)


def _runs(lanes: Array, run: int) -> Array:
    """Return the first `run` bytes of each lane as an opaque item, which NumPy copies as a unit."""
    field = {"names": ["run"], "formats": [f"V{run}"], "offsets": [0], "itemsize": lanes.itemsize}
    return lanes.view(np.dtype(field))["run"]  # type: ignore[call-overload]


def _pad_runs(stream: Array, run: int, size: int) -> Array:
    """Cut or zero-pad a stream to `size` runs of bytes, as opaque items."""
    stream = stream[..., : size * run]
    short = size * run - stream.shape[-1]
    if short:
        stream = np.concatenate([stream, np.zeros((*stream.shape[:-1], short), np.uint8)], axis=-1)
    return np.ascontiguousarray(stream).view(f"V{run}")
