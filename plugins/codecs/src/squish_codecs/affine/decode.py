"""Decodes codes, scales and offsets to float32, one panel at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from attrs import evolve

from squish_core.api import Parts, Region, dtypes

from .scheme import Scheme, Shape

Array = np.ndarray
PANEL = 1 << 18
"""Elements per iteration: 1 MiB of float32, a balance of call overhead and cache size."""


def decode_affine(scheme: Scheme, parts: Parts, shape: Shape, region: Region, out: Array) -> None:
    """Fill `out` with the values of a grain-aligned region.

    Parameters
    ----------
    scheme : Scheme
        The layout of the parts.
    parts : Parts
        The parts of the tensor.
    shape : tuple of int
        Shape of the tensor.
    region : Region
        The slices to decode.
    out : numpy.ndarray
        Contiguous float32 array of the region's shape.

    Examples
    --------
    >>> scheme = Scheme.of({"bits": 4, "group_size": 4, "offset": "bias"})
    >>> parts = {"data": np.array([[0x10, 0x32]], np.uint8), "scale": np.array([[0.5]], np.float32)}
    >>> parts["offset"] = np.array([[1]], np.float32)
    >>> out = np.empty((1, 4), np.float32)
    >>> decode_affine(scheme, parts, (1, 4), (slice(0, 1), slice(0, 4)), out)
    >>> out.tolist()
    [[1.0, 1.5, 2.0, 2.5]]
    """
    # NaN and infinite scales, and overflowing products, are legal contents of a file.
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
    """Read the words, scales and offsets of a region, with the tensor's axis order.

    Parameters
    ----------
    scheme : Scheme
        The layout of the parts.
    parts : Parts
        The parts of the tensor.
    region : Region
        The slices to read, aligned to the grain.
    widened : bool
        Convert scales and offsets to float32.

    Returns
    -------
    tuple of numpy.ndarray
        Words, scales, and offsets or None.

    Examples
    --------
    >>> scheme = Scheme.of({"bits": 4, "group_size": 2})
    >>> parts = {"data": np.array([[0x10, 0x32]], np.uint8), "scale": np.array([[1, 2]], np.float16)}
    >>> words, scale, offset = read_affine(scheme, parts, (slice(0, 1), slice(2, 4)))
    >>> words.tolist(), scale.tolist(), scale.dtype.name, offset
    ([[50]], [[2.0]], 'float32', None)
    """
    if scheme.transposed:
        words, scale, offset = read_affine(
            evolve(scheme, transposed=False), parts, scheme.to_stored(region), widened=widened
        )
        return words.swapaxes(-1, -2), scale.swapaxes(-1, -2), offset if offset is None else offset.swapaxes(-1, -2)
    group, axis = scheme.group_size, scheme.group_axis
    along = region[axis]
    grid = _replace_axis(region, axis, slice(along.start // group, -(-along.stop // group)) if group else slice(0, 1))
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
    """Unpack codes from words.

    Parameters
    ----------
    scheme : Scheme
        The packing and sign of the codes.
    words : numpy.ndarray
        The packed words.
    shape : tuple of int
        Shape of the codes.
    axis : int
        The packed axis.

    Returns
    -------
    numpy.ndarray
        i8 for signed codes, else u8.

    Examples
    --------
    >>> words = np.array([[0x10, 0xF2]], np.uint8)
    >>> unpack_codes(Scheme.of({"bits": 4, "group_size": 4}), words, (1, 4), -1).tolist()
    [[0, 1, 2, -1]]
    """
    return _signed(scheme, scheme.packing.unpack(words, shape[axis], axis))


def _signed(scheme: Scheme, codes: Array) -> Array:
    if not scheme.signed:
        return codes
    half = np.uint8(1 << scheme.bits - 1)
    return codes.view(np.int8) if scheme.bits == 8 else ((codes ^ half) - half).view(np.int8)


def runs(shape: Shape, region: Region) -> Iterator[tuple[int, int]]:
    """Yield the contiguous row-major ranges of a region."""
    axis = len(shape)
    while axis and region[axis - 1] == slice(0, shape[axis - 1]):
        axis -= 1
    axis = max(axis - 1, 0)  # the sliced axis; all later axes are complete
    inner = dtypes.count(shape[axis + 1 :])
    cut = region[axis] if shape else slice(0, 1)
    for index in np.ndindex(*(part.stop - part.start for part in region[:axis])):
        base = 0
        for offset, part, size in zip(index, region, shape):
            base = base * size + part.start + offset
        base *= dtypes.count(shape[axis:])
        yield base + cut.start * inner, base + cut.stop * inner


def _decode_run(scheme: Scheme, words: Array, scale: Array, offset: Array | None, target: Array) -> None:
    """Decode a flat range as a matrix with word- and group-aligned rows, then the remainder as a shorter row."""
    step = scheme.flat_step * max(1, 4096 // scheme.flat_step)
    rows_end = len(target) // step * step
    for low, high, rows in ((0, rows_end, rows_end // step), (rows_end, len(target), 1)):
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
    """Decode a matrix by panels of rows."""
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
    """Subtract the constant zero point exactly; in int8 if the result fits."""
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
    elif groups > 1 and groups * scheme.group_size != values.shape[1]:  # a short last group
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
    """Convert a region of codes to a region of words."""
    return _replace_axis(region, axis, scheme.packing.span(region[axis].start, region[axis].stop))


def _replace_axis(region: Region, axis: int, part: slice) -> Region:
    axis %= len(region)
    return (*region[:axis], part, *region[axis + 1 :])
