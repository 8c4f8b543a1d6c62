"""Small integers in machine words: bit streams and fixed orders within a word, for 1 to 8 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import frozen

Array = np.ndarray
BIT_COUNTS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Bits that are set, by byte."""
_LANES: dict[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (2, 4, 8)}


@frozen
class Packing:
    """Codes of `bits` bits in words of dtype `word`, along one axis; each line starts at a new word.

    `order` "lsb": a bit stream with the first code in the lowest bits, which may run on from word to word. "msb":
    the first code in the highest bits. "padded": as many whole codes as a word holds, the first lowest, the bits left
    over unused. "planes": 32 codes at a time, a plane of 4, 2 or 1 of their bits after the other,
    widest and lowest first. A tuple: the code at bits `i * bits` of a word is its `order[i]`-th.
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
        """Stored dtype of a word."""
        return np.dtype(f"<{self.word[0]}{self.width // 8}")

    @property
    def unit(self) -> int:
        """Codes in the smallest whole number of words that holds whole codes."""
        if self.order == "padded":
            return self.width // self.bits
        if self.order == "planes":
            return 32
        return self.width // math.gcd(self.width, self.bits)

    def words(self, count: int) -> int:
        """Words of a line of `count` codes."""
        if self.order == "padded":
            return -(-count // self.unit)
        if self.order == "planes":
            return -(-count // 32) * self.bits
        return -(-count * self.bits // self.width)

    def span(self, start: int, stop: int) -> slice:
        """The words that hold codes `start` to `stop` of a line; `start` is a multiple of `unit`."""
        return slice(start // self.unit * self.words(self.unit), self.words(stop))

    def unpack(self, words: Array, count: int, axis: int = -1) -> Array:
        """Unsigned codes (u8) of lines of words along `axis`; may be a view of `words`, or have any strides."""
        if axis != -1:
            return np.moveaxis(self.unpack(np.moveaxis(words, axis, -1), count), -1, axis)
        if self.order == "padded":
            return self._whole(words)[..., :count]
        if self.order == "planes":
            return self._from_planes(words)[..., :count]
        stream = np.ascontiguousarray(words, self.dtype).view(np.uint8)
        codes = stream if self.bits == 8 else _spread(stream, self.bits, self._padded(count))
        codes = self._reorder(codes, reading=True)
        return codes[..., :count]

    def pack(self, codes: Array, axis: int = -1) -> Array:
        """Words of lines of codes along `axis`; only the low `bits` bits of a code are taken, spare bits are zero."""
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
        stream = lines if self.bits == 8 else _gather(lines, self.bits)
        whole = np.zeros((*codes.shape[:-1], size), np.uint8)
        length = min(size, stream.shape[-1])
        whole[..., :length] = stream[..., :length]
        return whole.view(self.dtype)

    def _whole(self, words: Array) -> Array:
        """The codes of words that hold whole ones and spare bits."""
        lanes = np.ascontiguousarray(words).view(f"<u{self.width // 8}")
        codes = lanes[..., None] >> self._shifts(lanes.dtype)
        return codes.astype(np.uint8).reshape(*words.shape[:-1], -1) & np.uint8((1 << self.bits) - 1)

    def _from_planes(self, words: Array) -> Array:
        """The codes of words that hold bit planes of 32 codes each."""
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
        """Lowest bit and width of each plane: a plane of n bits takes n words of 32."""
        widths = [width for width in (4, 2, 1) if self.bits & width]
        return [(sum(widths[:number]), width) for number, width in enumerate(widths)]

    def _shifts(self, dtype: np.dtype[Any]) -> Array:
        return (np.arange(self.unit) * self.bits).astype(dtype)

    def _padded(self, count: int) -> int:
        """Codes of a line with the unused ones of its last word."""
        return self.words(count) * self.width // self.bits if self.order != "lsb" else count

    def _reorder(self, codes: Array, *, reading: bool) -> Array:
        """Between the order of the codes and that of their bits."""
        if self.order == "lsb":
            return codes
        order = range(self.unit - 1, -1, -1) if self.order == "msb" else self.order
        places = np.argsort(order) if reading else np.array(order)
        return codes.reshape(*codes.shape[:-1], -1, self.unit)[..., places].reshape(codes.shape)


TILE = 64


def row_major(codes: Array) -> Array:
    """The same codes row by row in memory; a transposed matrix is copied by tiles, which stay in the cache."""
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
    """Lane type, stored bytes of a lane, and for each halving the shift of the upper codes and the lower ones' mask."""
    codes = 8 // math.gcd(8, bits)
    steps = []
    half = codes // 2
    while half:
        field = (1 << half * bits) - 1
        steps.append((half * (8 - bits), sum(field << 16 * half * pair for pair in range(codes // half // 2))))
        half //= 2
    return _LANES[codes], codes * bits // 8, steps


def _spread(stream: Array, bits: int, count: int) -> Array:
    """One byte a code from a bit stream: a lane takes a run of whole bytes, then its upper codes move up, by halves."""
    lane, run, steps = _steps(bits)
    size = -(-count // lane.itemsize)
    if run == 1:
        lanes = stream[..., :size].astype(lane)
    else:
        lanes = np.zeros((*stream.shape[:-1], size), lane)
        _runs(lanes, run)[...] = _whole_runs(stream, run, size)
    for shift, lower in steps:
        if bits <= 4:  # what moves up does not meet what stays, so one mask does for both
            lanes |= lanes << lane.type(shift)
            lanes &= lane.type(lower | lower << shift * 8 // (8 - bits))
            continue
        upper = lanes & ~lane.type(lower)
        upper <<= lane.type(shift)
        lanes &= lane.type(lower)
        lanes |= upper
    return lanes.view(np.uint8)


def _gather(codes: Array, bits: int) -> Array:
    """The inverse: a bit stream from one byte a code, rounded up to whole runs."""
    lane, run, steps = _steps(bits)
    lanes = _whole_runs(codes, lane.itemsize, -(-codes.shape[-1] // lane.itemsize)).view(lane)
    for shift, lower in reversed(steps):
        lanes = (lanes & lane.type(lower)) | (lanes & ~lane.type(lower)) >> lane.type(shift)
    stream = np.ascontiguousarray(_runs(lanes, run))
    return stream.view(np.uint8)


def _runs(lanes: Array, run: int) -> Array:
    """The first `run` bytes of each lane as one opaque item: NumPy moves those whole."""
    field = {"names": ["run"], "formats": [f"V{run}"], "offsets": [0], "itemsize": lanes.itemsize}
    return lanes.view(np.dtype(field))["run"]  # type: ignore[call-overload]


def _whole_runs(stream: Array, run: int, size: int) -> Array:
    """A stream cut or filled up with zeros to `size` runs of bytes, as opaque items."""
    stream = stream[..., : size * run]
    short = size * run - stream.shape[-1]
    if short:
        stream = np.concatenate([stream, np.zeros((*stream.shape[:-1], short), np.uint8)], axis=-1)
    return np.ascontiguousarray(stream).view(f"V{run}")
