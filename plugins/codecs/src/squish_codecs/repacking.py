"""Exact repacking: codes with their scales out of one scheme and into another, never through values."""

from __future__ import annotations

import math

import numpy as np

from squish_core.api import Codes, Parts, Region, dtypes

from .decoding import integers, read, runs
from .scheme import Scheme, Shape

Array = np.ndarray


def codes(scheme: Scheme, parts: Parts, shape: Shape, region: Region) -> Codes | None:
    """The codes of a region; None where zero points and the constant zero do not add up exactly."""
    sizes = tuple(part.stop - part.start for part in region)
    if scheme.flat:
        values, group, scale, offset = _flat_codes(scheme, parts, shape, region, sizes)
    else:
        words, scale, offset = read(scheme, parts, region)
        values = integers(scheme, words, sizes, scheme.upright.pack_axis)
        group = _group(scheme.upright, sizes)
    kind = scheme.offset
    if scheme.zero:
        total = scheme.zero + (np.zeros(scale.shape) if offset is None else offset.astype(np.float64))
        kind, offset = "zero_point", total.astype(np.float32)
        if not _same(offset, total):
            return None
    return Codes(
        bits=scheme.bits, signed=scheme.signed, values=values, group=group, scale=scale, offset=offset, offset_kind=kind
    )


def parts(scheme: Scheme, codes: Codes) -> dict[str, Array] | None:
    """Parts that hold exactly these codes and give the same values in float32, or None."""
    if codes.table is not None:
        return None
    if scheme.transposed:
        upright = parts(scheme.upright, codes)
        return None if upright is None else {role: part.swapaxes(-1, -2) for role, part in upright.items()}
    found = _restated(scheme, codes)
    if found is None:
        return None
    values, offset = found
    if not (_fits(scheme, values) and _same_values(scheme, codes, values, offset)):
        return None
    made: dict[str, Array] = {}
    for role, grid in (("scale", codes.scale), ("offset", offset)):
        if grid is None:
            continue
        moved = _to_grid(scheme, grid, codes.group, values.shape)
        held = None if moved is None else _held(scheme, role, moved)
        if held is None:
            return None
        made[role] = held
    lines = values.reshape(-1) if scheme.flat else values
    return {"data": scheme.packing.pack(lines.astype(np.uint8), scheme.pack_axis), **made}


def _restated(scheme: Scheme, codes: Codes) -> tuple[Array, Array | None] | None:
    """Codes (i16) and offsets (f64, on the source's grid) in the target's terms; the arithmetic here is exact."""
    scale = codes.scale.astype(np.float64)
    offset = np.zeros(scale.shape) if codes.offset is None else codes.offset.astype(np.float64)
    shift = _shift(scheme, codes)
    with np.errstate(all="ignore"):
        if scheme.offset == "bias":
            bias = offset if codes.offset_kind == "bias" else -offset * scale
            return codes.values.astype(np.int16) + np.int16(shift), bias - shift * scale
        if codes.offset_kind == "bias":
            bias, offset = offset, np.where(offset == 0, 0, -offset / scale)
            if not _same(-offset * scale, bias):
                return None
        if scheme.offset == "zero_point":
            return codes.values.astype(np.int16) + np.int16(shift), offset + shift - scheme.zero
        first = offset.flat[0] if offset.size else 0.0
        if not (abs(scheme.zero - first) < 512 and first == int(first) and (offset == first).all()):
            return None
        return codes.values.astype(np.int16) + np.int16(scheme.zero - int(first)), None


def _fits(scheme: Scheme, values: Array) -> bool:
    """Whether all codes are ones of the scheme."""
    return not values.size or (scheme.low <= int(values.min()) and int(values.max()) <= scheme.high)


def _shift(scheme: Scheme, codes: Codes) -> int:
    """What to add to codes when the sign's convention changes; 0 where they fit as they are."""
    half = 1 << codes.bits - 1
    if codes.signed == scheme.signed or (scheme.signed and codes.bits < scheme.bits):
        return 0
    return half if codes.signed else -half


def _same_values(scheme: Scheme, codes: Codes, values: Array, offset: Array | None) -> bool:
    """Whether both forms round to the same float32; only a bias can make a difference."""
    if "bias" not in (codes.offset_kind, scheme.offset):
        return True
    kind = scheme.offset if scheme.offset != "none" or not scheme.zero else "zero_point"
    if kind == "zero_point":
        offset = (np.zeros(codes.scale.shape) if offset is None else offset) + scheme.zero
    with np.errstate(all="ignore"):
        one = _values(codes.values, codes.scale, codes.offset, codes.offset_kind, codes.group)
        other = _values(values, codes.scale, offset, kind, codes.group)
    return _same(one, other)


def _values(values: Array, scale: Array, offset: Array | None, kind: str, group: Shape) -> Array:
    out = values.astype(np.float32)
    if offset is not None and kind == "zero_point":
        out -= _spread(offset.astype(np.float32), group, values.shape)
    out *= _spread(scale.astype(np.float32), group, values.shape)
    if offset is not None and kind == "bias":
        out += _spread(offset.astype(np.float32), group, values.shape)
    return out


def _spread(grid: Array, group: Shape, shape: Shape) -> Array:
    for axis, size in enumerate(group):
        grid = np.repeat(grid, size, axis=axis) if size > 1 else grid
    return grid[tuple(slice(0, size) for size in shape)]


def _group(scheme: Scheme, shape: Shape) -> Shape:
    """Elements of one scale along each axis."""
    group = [1] * len(shape)
    group[scheme.group_axis] = scheme.group_size or max(shape[scheme.group_axis], 1)
    return tuple(group)


def _flat_codes(
    scheme: Scheme, parts: Parts, shape: Shape, region: Region, sizes: Shape
) -> tuple[Array, Shape, Array, Array | None]:
    """Codes of a flat order; where its groups cross rows, they are divided into cells that do not."""
    width = sizes[-1] if sizes else 1
    cell = math.gcd(scheme.group_size or max(width, 1), max(width, 1))
    pieces: dict[str, list[Array]] = {"values": [], "scale": [], "offset": []}
    for start, stop in runs(shape, region):
        words, scale, offset = read(scheme, parts, (slice(start, stop),))
        pieces["values"].append(integers(scheme, words, (stop - start,), -1))
        repeat = (scheme.group_size or max(stop - start, 1)) // cell
        for role, grid in (("scale", scale), ("offset", offset)):
            if grid is not None:
                pieces[role].append(np.repeat(grid, repeat)[: -(-(stop - start) // cell)])
    grid_shape = (*sizes[:-1], width // cell) if sizes else ()
    made = {role: np.concatenate(arrays) for role, arrays in pieces.items() if arrays}
    offset = made["offset"].reshape(grid_shape) if "offset" in made else None
    group = (*(1 for _ in sizes[:-1]), cell) if sizes else ()
    return made["values"].reshape(sizes), group, made["scale"].reshape(grid_shape), offset


def _to_grid(scheme: Scheme, grid: Array, group: Shape, shape: Shape) -> Array | None:
    """A grid of source groups as the target's: divided, and joined where equal."""
    if not scheme.flat:
        return _regrid(grid, group, _group(scheme, shape), shape)
    width = max(shape[-1], 1) if shape else 1
    cell = math.gcd(scheme.group_size or width, width)
    cells = _regrid(grid, group, (*(1 for _ in shape[:-1]), cell) if shape else (), shape)
    if cells is None:
        return None
    count = dtypes.count(shape)
    return _regrid(cells.reshape(-1), (cell,), (scheme.group_size or max(count, 1),), (count,))


def _regrid(grid: Array, have: Shape, want: Shape, shape: Shape) -> Array | None:
    """One value per `want` elements along each axis from one per `have`; None where joined values differ."""
    for axis, (one, other, size) in enumerate(zip(have, want, shape)):
        fine = math.gcd(one, other)
        cells = np.repeat(grid, one // fine, axis=axis).take(range(-(-size // fine)), axis=axis)
        grid = cells.take(range(0, cells.shape[axis], other // fine), axis=axis)
        back = np.repeat(grid, other // fine, axis=axis).take(range(cells.shape[axis]), axis=axis)
        if not _same(back, cells):
            return None
    return grid


def _held(scheme: Scheme, role: str, grid: Array) -> Array | None:
    """Scales or offsets in the target's dtype, or None where that would round."""
    if role == "offset" and scheme.packed_zeros:
        if not (np.rint(grid).clip(scheme.low, scheme.high) == grid).all():
            return None
        return scheme.packing.pack(grid.astype(np.int16).astype(np.uint8), scheme.zero_axis)
    dtype = dtypes.to_numpy(scheme.scale_dtype if role == "scale" else scheme.offset_dtype)
    with np.errstate(all="ignore"):
        held = grid.astype(dtype)
    return held if _same(held.astype(np.float64), grid) else None


def _same(one: Array, other: Array) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())
