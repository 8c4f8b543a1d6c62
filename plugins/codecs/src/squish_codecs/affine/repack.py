"""Exact repacking of codes and scales between schemes, without decoding to values."""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from squish_core.api import Codes, Parts, Region, dtypes

from ..packing.bits import row_major
from ..packing.words import flip_sign_bits, from_rows, to_rows
from .decode import read_affine, runs, unpack_codes
from .layout import affine_layout
from .scheme import Scheme, Shape

Array = np.ndarray


def affine_codes(scheme: Scheme, parts: Parts, shape: Shape, region: Region) -> Codes | None:
    """Return the codes of a region; None if the sum of zero points and the constant is inexact."""
    sizes = tuple(part.stop - part.start for part in region)
    if scheme.flat:
        packed, group, scale, offset = _flat_codes(scheme, parts, shape, region, sizes)
    else:
        words, scale, offset = read_affine(scheme, parts, region, widened=False)
        packed, group = _PackedCodes(scheme, words, sizes), _group(scheme.upright, sizes)
    if scheme.symmetric:
        offset = None
    if scheme.zero and offset is not None:
        total = scheme.zero + offset.astype(np.float64)
        if not _same(total.astype(np.float32), total):
            return None
    return Codes(
        layout=affine_layout(scheme, shape),
        shape=sizes,
        group=group,
        scale=scale,
        offset=offset,
        unpack=packed.values,
        pack=packed.rows,
    )


@frozen(eq=False)
class _PackedCodes:
    """Words of a region in the tensor's axis order (1-D for flat schemes); gives its codes unpacked or packed."""

    scheme: Scheme
    words: Array
    shape: Shape

    def values(self) -> Array:
        if not self.scheme.flat:
            return unpack_codes(self.scheme, self.words, self.shape, self.scheme.upright.pack_axis)
        return unpack_codes(self.scheme, self.words, (dtypes.count(self.shape),), -1).reshape(self.shape)

    def rows(self) -> Array | None:
        scheme, packing = self.scheme, self.scheme.packing
        if not scheme.flat:
            axis = scheme.upright.pack_axis
            return to_rows(packing, self.words, self.shape[axis], axis)
        count = dtypes.count(self.shape)
        if not (self.shape and count) or self.shape[-1] * scheme.bits % packing.width:
            return None
        line = to_rows(packing, self.words, count, -1)
        return None if line is None else line.reshape(*self.shape[:-1], -1)


def affine_parts(scheme: Scheme, codes: Codes) -> dict[str, Array] | None:
    """Store codes in a scheme, with equal float32 values.

    Parameters
    ----------
    scheme : Scheme
        The target layout.
    codes : Codes
        Codes, scales and offsets of another tensor.

    Returns
    -------
    dict of str to numpy.ndarray, or None
        The parts; None if anything would be rounded.

    Examples
    --------
    >>> from squish_core.api import CodeLayout
    >>> source = Codes(
    ...     layout=CodeLayout(bits=2, group=(1, 4), scale_dtype="f16"), shape=(1, 4),
    ...     scale=np.ones((1, 1), np.float16), unpack=lambda: np.array([[0, 1, 2, 3]], np.uint8),
    ... )
    >>> parts = affine_parts(Scheme.of({"bits": 4, "group_size": 4, "signed": False}), source)
    >>> [hex(byte) for byte in parts["data"][0]], parts["scale"].tolist()
    (['0x10', '0x32'], [[1.0]])
    """
    terms = _grids(scheme.upright, codes)
    if terms is None:
        return None
    shift, grids = terms
    parts = {"data": _data(scheme.upright, codes, shift), **grids}
    return {role: part.swapaxes(-1, -2) for role, part in parts.items()} if scheme.transposed else parts


def affine_holds(scheme: Scheme, codes: Codes) -> bool:
    """Return whether `affine_parts` can store these codes; codes are unpacked only if their range might not fit.

    Parameters
    ----------
    scheme : Scheme
        The target layout.
    codes : Codes
        Codes, scales and offsets of another tensor.

    Returns
    -------
    bool

    Examples
    --------
    >>> from squish_core.api import CodeLayout
    >>> source = Codes(
    ...     layout=CodeLayout(bits=2, group=(1, 4), scale_dtype="f16"), shape=(1, 4),
    ...     scale=np.ones((1, 1), np.float16), unpack=lambda: np.array([[0, 1, 2, 3]], np.uint8),
    ... )
    >>> [affine_holds(Scheme.of({"bits": bits, "group_size": 4, "signed": False}), source) for bits in (1, 2, 4)]
    [False, True, True]
    """
    return _grids(scheme.upright, codes) is not None


def _grids(scheme: Scheme, codes: Codes) -> tuple[int, dict[str, Array]] | None:
    """Return the shift of the codes, and scales and offsets in the scheme; None if anything would be rounded."""
    if codes.layout.table is not None:
        return None
    terms = _shift_and_offset(scheme, codes)
    if terms is None:
        return None
    shift, offset = terms
    if not (_fits(scheme, codes, shift) and _same_values(scheme, codes, shift, offset)):
        return None
    if scheme.symmetric and offset is not None and not (offset == scheme.middle - scheme.zero).all():
        return None
    grids: dict[str, Array] = {}
    for role, grid in (("scale", codes.scale), ("offset", offset)):
        if grid is None:
            continue
        target_grid = _to_grid(scheme, grid, codes.group, codes.shape)
        exact = None if target_grid is None else _cast_exactly(scheme, role, target_grid)
        if exact is None:
            return None
        grids[role] = exact
    return shift, grids


def _data(scheme: Scheme, codes: Codes, shift: int) -> Array:
    """Return the codes in the scheme's words; copies words if the code bits are equal up to the sign bit."""
    if _keeps_bits(scheme, codes, shift) and codes.words is not None and codes.shape:
        rows = flip_sign_bits(codes.words, codes.layout.bits) if shift else codes.words
        axis = -1 if scheme.flat else scheme.pack_axis
        words = None if rows is None else from_rows(scheme.packing, rows, codes.shape[axis], axis)
        if words is not None:
            return row_major(words).reshape(-1) if scheme.flat else words
    values = codes.values.view(np.uint8) + np.uint8(shift % 256)
    return scheme.packing.pack(values.reshape(-1) if scheme.flat else values, scheme.pack_axis)


def _keeps_bits(scheme: Scheme, codes: Codes, shift: int) -> bool:
    """Return whether codes keep their bits, or only switch between two's complement and excess."""
    return codes.layout.bits == scheme.bits and shift == _shift(scheme, codes)


def _shift_and_offset(scheme: Scheme, codes: Codes) -> tuple[int, Array | None] | None:
    """Return the shift of the codes and the target's offsets (on the source's grid), computed exactly in f64."""
    shift, biased = _shift(scheme, codes), codes.layout.offset_kind == "bias"
    if scheme.offset == "bias" and biased and not shift:
        return 0, codes.offset
    offset = np.zeros(codes.scale.shape) if codes.offsets is None else codes.offsets.astype(np.float64)
    with np.errstate(all="ignore"):
        if scheme.offset == "bias" or biased:
            scale = codes.scale.astype(np.float64)
        if scheme.offset == "bias":
            return shift, (offset if biased else -offset * scale) - shift * scale
        if biased:
            bias, offset = offset, np.where(offset == 0, 0, -offset / scale)
            if not _same(-offset * scale, bias):
                return None
        if scheme.offset == "zero_point":
            return shift, offset + (shift - scheme.zero)
        first = offset.flat[0] if offset.size else 0.0
        if not (abs(scheme.zero - first) < 512 and first == int(first) and (offset == first).all()):
            return None
        return scheme.zero - int(first), None


def _fits(scheme: Scheme, codes: Codes, shift: int) -> bool:
    """Return whether all shifted codes are in the scheme's range; unpacks them only if their width allows others."""
    if scheme.low <= codes.layout.low + shift and codes.layout.high + shift <= scheme.high:
        return True
    values = codes.values
    return not values.size or (scheme.low <= int(values.min()) + shift and int(values.max()) + shift <= scheme.high)


def _shift(scheme: Scheme, codes: Codes) -> int:
    """Return the shift between signed and unsigned codes, or 0."""
    layout = codes.layout
    half = 1 << layout.bits - 1
    if layout.signed == scheme.signed or (scheme.signed and layout.bits < scheme.bits):
        return 0
    return half if layout.signed else -half


def _same_values(scheme: Scheme, codes: Codes, shift: int, offset: Array | None) -> bool:
    """Return whether both forms round to the same float32; only a bias can differ."""
    source_kind = codes.layout.offset_kind
    if "bias" not in (source_kind, scheme.offset) or (source_kind == scheme.offset and not shift):
        return True
    if _exact_products(scheme, codes, shift, offset):
        return True
    kind = scheme.offset if scheme.offset != "none" or not scheme.zero else "zero_point"
    if kind == "zero_point":
        offset = (np.zeros(codes.scale.shape) if offset is None else offset) + scheme.zero
    with np.errstate(all="ignore"):
        one = _values(codes.values, codes.scale, codes.offsets, source_kind, codes.group)
        values = codes.values.astype(np.int16) + np.int16(shift)
        other = _values(values, codes.scale, offset, kind, codes.group)
    return _same(one, other)


def _exact_products(scheme: Scheme, codes: Codes, shift: int, offset: Array | None) -> bool:
    """Return whether products of codes and scales are exact, and zero points integral.

    Then both forms round the same real number once.
    """
    if codes.layout.offset_kind == scheme.offset == "bias" and shift and not _differs_exactly(codes, shift):
        return False
    zeros = [
        grid for grid, kind in ((codes.offsets, codes.layout.offset_kind), (offset, scheme.offset)) if kind != "bias"
    ]
    integral = (grid is None or ((np.abs(grid) < 32768.0).all() and (np.rint(grid) == grid).all()) for grid in zeros)
    if not all(integral):
        return False
    if codes.scale.dtype == np.float16:
        return bool(np.isfinite(codes.scale).all())
    bits = max(codes.layout.bits, scheme.bits)
    short = np.asarray(codes.scale, np.float32).view(np.uint32) & np.uint32((1 << bits) - 1)
    return not short.any() and bool((np.abs(codes.scale) < 2.0 ** (127 - bits)).all())


def _differs_exactly(codes: Codes, shift: int) -> bool:
    """Return whether bias - shift * scale is exact in float64 (Knuth's TwoSum gives the error)."""
    assert codes.offset is not None
    one, other = codes.offset.astype(np.float64), -shift * codes.scale.astype(np.float64)
    with np.errstate(all="ignore"):
        total = one + other
        part = total - one
        return bool(((one - (total - part)) + (other - part) == 0).all())


def _values(values: Array, scale: Array, offset: Array | None, kind: str, group: Shape) -> Array:
    out = values.astype(np.float32)
    if offset is not None and kind != "bias":
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
    """Return the group size along each axis."""
    group = [1] * len(shape)
    group[scheme.group_axis] = scheme.group_size or max(shape[scheme.group_axis], 1)
    return tuple(group)


def _flat_codes(
    scheme: Scheme, parts: Parts, shape: Shape, region: Region, sizes: Shape
) -> tuple[_PackedCodes, Shape, Array, Array | None]:
    """Return codes of a flat scheme; groups across rows are split into cells within rows."""
    width = sizes[-1] if sizes else 1
    cell = math.gcd(scheme.group_size or max(width, 1), max(width, 1))
    pieces: dict[str, list[Array]] = {"words": [], "scale": [], "offset": []}
    for start, stop in runs(shape, region):
        words, scale, offset = read_affine(scheme, parts, (slice(start, stop),), widened=False)
        pieces["words"].append(words)
        repeat = (scheme.group_size or max(stop - start, 1)) // cell
        for role, grid in (("scale", scale), ("offset", offset)):
            if grid is not None:
                cells = np.repeat(grid, repeat) if repeat > 1 else grid
                pieces[role].append(cells[: -(-(stop - start) // cell)])
    grid_shape = (*sizes[:-1], width // cell) if sizes else ()
    joined = {
        role: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for role, arrays in pieces.items() if arrays
    }
    offset = joined["offset"].reshape(grid_shape) if "offset" in joined else None
    group = (*(1 for _ in sizes[:-1]), cell) if sizes else ()
    return _PackedCodes(scheme, joined["words"], sizes), group, joined["scale"].reshape(grid_shape), offset


def _to_grid(scheme: Scheme, grid: Array, group: Shape, shape: Shape) -> Array | None:
    """Convert a grid to the target's groups: split, and merged where equal."""
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
    """Convert a grid from `have` to `want` elements per value along each axis; None if merged values differ."""
    for axis, (one, other, size) in enumerate(zip(have, want, shape)):
        if one == other:
            continue
        fine = math.gcd(one, other)
        cells = np.repeat(grid, one // fine, axis=axis).take(range(-(-size // fine)), axis=axis)
        grid = cells.take(range(0, cells.shape[axis], other // fine), axis=axis)
        back = np.repeat(grid, other // fine, axis=axis).take(range(cells.shape[axis]), axis=axis)
        if not _same(back, cells):
            return None
    return grid


def _cast_exactly(scheme: Scheme, role: str, grid: Array) -> Array | None:
    """Convert scales or offsets to the target's dtype; None if inexact."""
    if role == "offset" and scheme.packed_zeros:
        if not (np.rint(grid).clip(scheme.low, scheme.high) == grid).all():
            return None
        return scheme.packing.pack(grid.astype(np.int16).astype(np.uint8), scheme.zero_axis)
    dtype = dtypes.to_numpy(scheme.scale_dtype if role == "scale" else scheme.offset_dtype)
    if np.can_cast(grid.dtype, dtype):
        return grid.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        exact = grid.astype(dtype)
    return exact if _same(exact.astype(grid.dtype), grid) else None


def _same(one: Array, other: Array) -> bool:
    equal = one == other
    return bool(equal.all() or (equal | ((one != one) & (other != other))).all())
