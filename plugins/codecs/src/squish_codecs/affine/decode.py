"""Codes, scales and offsets to float32, a panel at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from attrs import evolve

from squish_core.api import Parts, Region, dtypes

from .scheme import Scheme, Shape

Array = np.ndarray
PANEL = 1 << 18
"""Elements decoded at a time: 1 MiB of float32, fewer calls and still near the cache."""


def decode_affine(scheme: Scheme, parts: Parts, shape: Shape, region: Region, out: Array) -> None:
    """Fill `out` with the values of a region on the grain."""
    # Scales of NaN or infinity, and products that overflow, are what the file says, not an error here.
    with np.errstate(all="ignore"):
        if scheme.flat:
            values = out.reshape(-1)
            done = 0
            for start, stop in runs(shape, region):
                _decode_run(
                    scheme, *read_affine(scheme, parts, (slice(start, stop),)), values[done : done + stop - start]
                )
                done += stop - start
            return
        words, scale, offset = read_affine(scheme, parts, region)
        scheme = scheme.upright
        if scheme.group_axis == scheme.pack_axis == -1:
            lines, scale, offset = _rows(words), _rows(scale), offset if offset is None else _rows(offset)
            _decode_matrix(scheme, lines, scale, offset, _rows(out))
            return
        for index in np.ndindex(out.shape[:-2]):
            _decode_matrix(scheme, words[index], scale[index], offset if offset is None else offset[index], out[index])


def read_affine(
    scheme: Scheme, parts: Parts, region: Region, *, widened: bool = True
) -> tuple[Array, Array, Array | None]:
    """Words, and scales and offsets (float32 if `widened`, else as stored) of a region, with axes as in the tensor."""
    if scheme.transposed:
        words, scale, offset = read_affine(
            evolve(scheme, transposed=False), parts, scheme.stored(region), widened=widened
        )  # fmt: skip
        return words.swapaxes(-1, -2), scale.swapaxes(-1, -2), offset if offset is None else offset.swapaxes(-1, -2)
    group, axis = scheme.group_size, scheme.group_axis
    along = region[axis]
    grid = _replaced(region, axis, slice(along.start // group, -(-along.stop // group)) if group else slice(0, 1))
    words = parts["data"][_in_words(scheme, region, scheme.pack_axis)]
    scale, offset = parts["scale"][grid], None
    if scheme.packed_zeros:
        zeros = parts["offset"][_in_words(scheme, grid, scheme.zero_axis)]
        offset = unpack_codes(scheme, zeros, scale.shape, scheme.zero_axis)
    elif scheme.offset != "none":
        offset = parts["offset"][grid]
    if not widened:
        return words, scale, offset
    return (
        words,
        scale.astype(np.float32, copy=False),
        None if offset is None else offset.astype(np.float32, copy=False),
    )


def unpack_codes(scheme: Scheme, words: Array, shape: Shape, axis: int) -> Array:
    """The codes of packed words, as i8 where they are signed, else u8."""
    return _signed(scheme, scheme.packing.unpack(words, shape[axis], axis))


def _signed(scheme: Scheme, codes: Array) -> Array:
    if not scheme.signed:
        return codes
    half = np.uint8(1 << scheme.bits - 1)
    return codes.view(np.int8) if scheme.bits == 8 else ((codes ^ half) - half).view(np.int8)


def runs(shape: Shape, region: Region) -> Iterator[tuple[int, int]]:
    """The contiguous ranges of the row-major order that a region consists of."""
    whole = len(shape)
    while whole and region[whole - 1] == slice(0, shape[whole - 1]):
        whole -= 1
    whole = max(whole - 1, 0)  # axes before this one are stepped through; this one is cut, those after it are whole
    inner = dtypes.count(shape[whole + 1 :])
    cut = region[whole] if shape else slice(0, 1)
    for index in np.ndindex(*(part.stop - part.start for part in region[:whole])):
        base = 0
        for place, part, size in zip(index, region, shape):
            base = base * size + part.start + place
        base *= dtypes.count(shape[whole:])
        yield base + cut.start * inner, base + cut.stop * inner


def _decode_run(scheme: Scheme, words: Array, scale: Array, offset: Array | None, target: Array) -> None:
    """A flat range, cut into equal rows that begin with a word and a group; what is left is one shorter row."""
    step = scheme.flat_step * max(1, 4096 // scheme.flat_step)
    whole = len(target) // step * step
    for low, high, rows in ((0, whole, whole // step), (whole, len(target), 1)):
        if low == high:
            continue
        first = scheme.packing.words(low)
        lines = words[first : first + scheme.packing.words(high - low)].reshape(rows, -1)
        factors = _grid_rows(scheme, scale, low, high, rows)
        terms = offset if offset is None else _grid_rows(scheme, offset, low, high, rows)
        _decode_matrix(scheme, lines, factors, terms, target[low:high].reshape(rows, -1))


def _grid_rows(scheme: Scheme, grid: Array, low: int, high: int, rows: int) -> Array:
    if not scheme.group_size:
        return np.broadcast_to(grid, (rows, 1))
    return grid[low // scheme.group_size : -(-high // scheme.group_size)].reshape(rows, -1)


def _decode_matrix(scheme: Scheme, words: Array, scale: Array, offset: Array | None, target: Array) -> None:
    """A matrix, by panels of rows."""
    rows, columns = target.shape
    down, packed_down = scheme.group_axis == -2, scheme.pack_axis == -2
    base = math.lcm(scheme.group_size or 1 if down else 1, scheme.packing.unit if packed_down else 1)
    step = base * max(1, PANEL // max(base * columns, 1))
    for low in range(0, rows, step):
        high = min(low + step, rows)
        lines = slice(scheme.packing.words(low), scheme.packing.words(high)) if packed_down else slice(low, high)
        cells = slice(low, high)
        if down:
            group = scheme.group_size
            cells = slice(low // group, high // group) if group else slice(0, 1)
        panel = target[low:high]
        codes = scheme.packing.unpack(words[lines], panel.shape[scheme.pack_axis], scheme.pack_axis)
        _center(scheme, codes, panel)
        _apply(scheme, panel, scale[cells], offset if offset is None else offset[cells])


def _center(scheme: Scheme, codes: Array, out: Array) -> None:
    """Codes minus the constant zero, exactly: in bytes where the result fits a byte."""
    if not scheme.zero:
        out[...] = _signed(scheme, codes)
    elif scheme.low - scheme.zero >= -128 and scheme.high - scheme.zero <= 127:
        half = 1 << scheme.bits - 1 if scheme.signed else 0
        out[...] = ((codes ^ np.uint8(half)) - np.uint8((half + scheme.zero) % 256)).view(np.int8)
    else:
        out[...] = _signed(scheme, codes)
        out -= np.float32(scheme.zero)


def _apply(scheme: Scheme, values: Array, scale: Array, offset: Array | None) -> None:
    """Scale and offset each group, in place."""
    groups = scale.shape[scheme.group_axis]
    if scheme.group_axis == -2:
        blocks, axis = values.reshape(groups, -1, values.shape[1]), 1
    elif groups > 1 and groups * scheme.group_size != values.shape[1]:  # the last group of a flat order is short
        cells = np.arange(values.shape[1]) // scheme.group_size
        scale, offset = scale[:, cells], offset if offset is None else offset[:, cells]
        blocks, axis = values[..., None], 2
    else:
        blocks, axis = values.reshape(len(values), groups, -1), 2
    if offset is not None and scheme.offset == "zero_point":
        blocks -= np.expand_dims(offset, axis)
    blocks *= np.expand_dims(scale, axis)
    if offset is not None and scheme.offset == "bias":
        blocks += np.expand_dims(offset, axis)


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _in_words(scheme: Scheme, region: Region, axis: int) -> Region:
    """A region of codes as one of words."""
    return _replaced(region, axis, scheme.packing.span(region[axis].start, region[axis].stop))


def _replaced(region: Region, axis: int, part: slice) -> Region:
    axis %= len(region)
    return (*region[:axis], part, *region[axis + 1 :])
