"""Regions of a tensor: those that an index asks for, panels that bound memory, and reads that trim to the grain."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.codecs.base import Codec, Params, Parts, Region
from squish_core.errors import RangeError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    import numpy as np

PANEL_BYTES = 4 << 20
"""Decoded bytes of one panel: large enough to amortise a call, small enough to stay near the cache."""


def full(shape: tuple[int, ...]) -> Region:
    """The region that is everything."""
    return tuple([slice(0, size) for size in shape])


def sizes(region: Region) -> tuple[int, ...]:
    """Shape of a region."""
    return tuple([part.stop - part.start for part in region])


def panels(
    shape: tuple[int, ...],
    grain: tuple[int | None, ...],
    itemsize: int,
    *,
    within: Region | None = None,
    axis: int = 0,
    budget: int = PANEL_BYTES,
    whole_rows: bool = False,
) -> Iterator[Region]:
    """Regions that cover `within` in row-major order, each at most `budget` decoded bytes where the grain allows.

    Splits along `axis`, and along the next axis when a single step is still over the budget (never along
    the last one with `whole_rows`, for sums along a row and for parts that are stored row after row).
    """
    within = within or full(shape)
    extent = sizes(within)
    step = grain[axis] if axis < len(shape) else None
    if not shape or step is None or dtypes.count(extent) * itemsize <= budget:
        yield within
        return
    per_step = step * itemsize * dtypes.count(extent[:axis] + extent[axis + 1 :])
    steps = max(1, budget // max(per_step, 1))
    start, stop = within[axis].start, within[axis].stop
    for low in range(start - start % step, stop, steps * step):
        part = slice(max(low, start), min(low + steps * step, stop))
        panel = (*within[:axis], part, *within[axis + 1 :])
        if per_step > budget and axis + 1 < len(shape) - whole_rows:
            yield from panels(
                shape, grain, itemsize, within=panel, axis=axis + 1, budget=budget, whole_rows=whole_rows
            )  # fmt: skip
        else:
            yield panel


def stored_panels(
    shape: tuple[int, ...], grain: tuple[int | None, ...], itemsize: int, *, budget: int = PANEL_BYTES
) -> Iterator[Region]:
    """Whole rows, in the order in which parts are stored; columns of each matrix where it is stored transposed.

    The latter is so where `grain`, that of encoding, divides the last axis and not the one before it.
    """
    transposed = len(shape) > 1 and grain[-2] is None and grain[-1] is not None
    for region in panels(shape, grain, itemsize, budget=budget, whole_rows=True):
        if transposed and all(size == 1 for size in sizes(region)[:-2]):
            yield from panels(shape, grain, itemsize, within=region, axis=len(shape) - 1, budget=budget)
        else:
            yield region


def on_grain(region: Region, shape: tuple[int, ...], grain: tuple[int | None, ...]) -> Region:
    """The smallest region on the grain that holds `region`."""
    wide = []
    for part, size, step in zip(region, shape, grain):
        if step is None:
            wide.append(slice(0, size))
        else:
            wide.append(slice(part.start - part.start % step, min(-(-part.stop // step) * step, size)))
    return tuple(wide)


def decode_all(codec: Codec, parts: Parts, spec: TensorSpec, params: Params, scratch: np.ndarray | None = None) -> None:
    """Decode a tensor panel by panel and keep nothing; raises what `decode` raises. `scratch`: bytes for a panel."""
    import numpy as np

    dtype = dtypes.to_numpy(codec.value_dtype(spec, params))
    for region in panels(spec.shape, codec.grain(spec, params), 4):
        shape = sizes(region)
        nbytes = dtype.itemsize * dtypes.count(shape)
        fits = scratch is not None and nbytes <= scratch.nbytes
        out = scratch[:nbytes].view(dtype).reshape(shape) if fits else np.empty(shape, dtype)  # type: ignore[index]
        if nbytes:
            codec.decode(parts, spec, params, region=region, out=out)


def normalize(key: Any, shape: tuple[int, ...]) -> tuple[Region, tuple[Any, ...]]:
    """A NumPy basic index as the region that must be read and the index that is left for the result."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(item is Ellipsis for item in keys):  # `in` would compare arrays
        at = next(number for number, item in enumerate(keys) if item is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
    if len(keys) > len(shape):
        raise RangeError("too many indices", expected=f"at most {len(shape)}", found=len(keys), code="index")
    keys += [slice(None)] * (len(shape) - len(keys))
    region: list[slice] = []
    rest: list[Any] = []
    for item, size in zip(keys, shape):
        if isinstance(item, slice):
            try:
                picked = range(*item.indices(size))
            except (TypeError, ValueError) as error:
                raise RangeError(
                    "a slice cannot be used", expected=str(error), found=repr(item), code="index"
                ) from None
            low, high = sorted((picked[0], picked[-1])) if picked else (0, -1)
            region.append(slice(low, high + 1))
            rest.append(slice(None, None, picked.step))
            continue
        position = position_of(item)
        if not -size <= position < size:
            expected = f"-{size}..{size - 1}" if size else "no index: the axis is empty"
            raise RangeError("an index is out of range", expected=expected, found=position, code="index")
        region.append(slice(position % size, position % size + 1))
        rest.append(0)
    return tuple(region), tuple(rest)


def sliced(key: Any, shape: tuple[int, ...]) -> Region:
    """An index of slices without steps as a region, so that its values need no further index."""
    region, rest = normalize(key, shape)
    if any(item != slice(None, None, 1) for item in rest):
        raise RangeError("a region is slices without steps", found=repr(key), code="index")
    return region


def position_of(item: Any) -> int:
    """An integer index; TensorError for anything else. A bool is none: NumPy would add an axis."""
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    raise RangeError(
        "an index is not an integer or a slice", found=repr(item), code="index",
        hint="Integers and slices select a region; for anything else, index the array of numpy().",
    )  # fmt: skip
