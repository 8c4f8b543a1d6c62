"""Selected rows of a tensor: one batch of byte ranges for any number of rows and parts.

Apart from `tensor`, because it knows codecs and parts, and no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.codecs.base import Parts, Region
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.regions import normalize, position_of, sizes
from squish_core.errors import RangeError
from squish_core.io.source import Source

if TYPE_CHECKING:
    import numpy as np

Blocks = tuple[int, int]
"""Consecutive blocks of rows, on the codec's grain: start and stop."""


def picked_rows(key: Any, bound: BoundEncoding) -> tuple[list[int], Any] | None:
    """Return the rows that an index selects one by one, and the index of the other axes; None if it is one region.

    A list or array of integers selects rows. A slice with a step does if the rows between would be fetched, too.
    """
    keys = key if isinstance(key, tuple) else (key,)
    first, shape = keys[0] if keys else None, bound.spec.shape
    if not shape or not keys:
        return None
    if isinstance(first, slice):
        is_strided = type(first.step) is int and abs(first.step) > 1
        if is_strided and any(array.is_remote for array in bound.arrays.values()):
            return list(range(*first.indices(shape[0]))), keys[1:]
        return None
    if not isinstance(first, list) and getattr(first, "ndim", 0) != 1:
        return None
    rows = [position_of(item) for item in first]  # type: ignore[union-attr]
    for row in rows:
        if not -shape[0] <= row < shape[0]:
            raise RangeError(
                "an index is out of range", expected=f"-{shape[0]}..{shape[0] - 1}", found=row, code="index"
            )
    return [row % shape[0] for row in rows], keys[1:]


def read_rows(bound: BoundEncoding, rows: Sequence[int], rest: Any) -> np.ndarray:
    """Return the rows, in this order, with `rest` as the index of the other axes."""
    import numpy as np

    shape = bound.spec.shape
    tail, index = normalize(rest, shape[1:]) if shape[1:] else ((), ())
    if rest and not shape[1:]:
        raise RangeError("too many indices", expected="at most 1", found=1 + len(rest), code="index")
    out = np.empty((len(rows), *sizes(tail)), dtypes.to_numpy(bound.dtype))
    step = bound.grain[0] or shape[0]
    groups = _consecutive(sorted({row // step for row in rows}))
    fetched = _fetched(bound, groups, step)
    positions: dict[int, list[int]] = {}
    for position, row in enumerate(rows):
        positions.setdefault(row, []).append(position)
    for low, high in groups:
        region: Region = (slice(low * step, min(high * step, shape[0])), *tail)
        values = fetched.read(region)
        for row in range(region[0].start, region[0].stop):
            for position in positions.get(row, ()):
                out[position] = values[row - region[0].start]
    return out[(slice(None), *index)]


def _consecutive(blocks: Sequence[int]) -> list[Blocks]:
    groups: list[Blocks] = []
    for block in blocks:
        if groups and groups[-1][1] == block:
            groups[-1] = groups[-1][0], block + 1
        else:
            groups.append((block, block + 1))
    return groups


def _fetched(bound: BoundEncoding, groups: Sequence[Blocks], step: int) -> BoundEncoding:
    """Return the encoding with these blocks in memory, for parts stored row by row."""
    sources: dict[int, tuple[Source, list[tuple[str, int, tuple[int, int]]]]] = {}
    rows = bound.spec.shape[0]
    for role, array in bound.arrays.items():
        part = array.part
        size, uneven = divmod(part.nbytes * step, rows) if rows else (0, 1)
        if array.is_cheap or part.filters or len(part.segments) != 1 or uneven or not size or not part.shape:
            continue
        if part.shape[0] in (rows, -(-rows // step)) or rows % part.shape[0] == 0:
            (segment,) = part.segments
            source, ranges = sources.setdefault(segment.file, (next(array.runs())[0], []))
            for low, high in groups:
                stop = min(high * size, part.nbytes)
                ranges.append((role, low * size, (segment.offset + low * size, stop - low * size)))
    stretches: dict[str, dict[int, memoryview]] = {}
    for source, ranges in sources.values():
        views = source.read_ranges([bounds for _, _, bounds in ranges])
        for (role, start, _), view in zip(ranges, views):
            stretches.setdefault(role, {})[start] = view
    parts: Parts = {**bound.parts, **{role: bound.arrays[role].with_ranges(each) for role, each in stretches.items()}}
    return BoundEncoding(bound.codec, bound.spec, bound.encoding, parts, bound.limits)
