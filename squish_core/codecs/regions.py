"""Regions of a tensor: regions of an index, panels of bounded size, and alignment to the grain."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.codecs.base import Codec, Parts, Region
from squish_core.errors import RangeError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np

PANEL_BYTES = 4 << 20
"""Decoded bytes per panel: large enough to amortize a call, small enough for the cache."""


def full(shape: tuple[int, ...]) -> Region:
    """Return the region of a whole tensor.

    Parameters
    ----------
    shape
        The tensor's shape.

    Returns
    -------
    tuple of slice
        One for each axis.

    Examples
    --------
    >>> full((2, 3))
    (slice(0, 2, None), slice(0, 3, None))
    """
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
    """Split a region into panels in row-major order, each at most `budget` decoded bytes if the grain allows.

    Parameters
    ----------
    shape, grain
        The tensor's shape, and its smallest block that decodes on its own, along each axis (None: the whole axis).
    itemsize
        Bytes of a decoded value.
    within
        The region to split; the whole tensor by default.
    axis
        The axis to split along; the next one if a single step exceeds the budget.
    budget
        Bytes of a panel.
    whole_rows
        Never split the last axis: for sums along rows, and for parts stored row by row.

    Yields
    ------
    tuple of slice
        The region of a panel.

    Examples
    --------
    >>> list(panels((4, 8), (1, 8), 4, budget=64))
    [(slice(0, 2, None), slice(0, 8, None)), (slice(2, 4, None), slice(0, 8, None))]
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
            yield from panels(shape, grain, itemsize, within=panel, axis=axis + 1, budget=budget, whole_rows=whole_rows)
        else:
            yield panel


def stored_panels(
    shape: tuple[int, ...], grain: tuple[int | None, ...], itemsize: int, *, budget: int = PANEL_BYTES
) -> Iterator[Region]:
    """Panels in storage order: whole rows, or columns for matrices that are stored transposed.

    A matrix is stored transposed if the encode grain divides the last axis but not the one before it.
    """
    transposed = len(shape) > 1 and grain[-2] is None and grain[-1] is not None
    for region in panels(shape, grain, itemsize, budget=budget, whole_rows=True):
        if transposed and all(size == 1 for size in sizes(region)[:-2]):
            yield from panels(shape, grain, itemsize, within=region, axis=len(shape) - 1, budget=budget)
        else:
            yield region


def on_grain(region: Region, shape: tuple[int, ...], grain: tuple[int | None, ...]) -> Region:
    """Return the smallest region on the grain that contains `region`."""
    wide = []
    for part, size, step in zip(region, shape, grain):
        if step is None:
            wide.append(slice(0, size))
        else:
            wide.append(slice(part.start - part.start % step, min(-(-part.stop // step) * step, size)))
    return tuple(wide)


def decode_all(
    codec: Codec,
    parts: Parts,
    spec: TensorSpec,
    scratch: np.ndarray | None = None,
    inspect: Callable[[np.ndarray], None] | None = None,
) -> None:
    """Decode a tensor panel by panel to find errors.

    Parameters
    ----------
    codec, parts, spec
        As in `Codec.decode`.
    scratch
        Memory for a panel, as an array of bytes; panels that do not fit get their own.
    inspect
        Called with the values of each panel.

    Raises
    ------
    CodecError
        The parts cannot be decoded.

    Examples
    --------
    >>> from squish_core.codecs.dense import Dense
    >>> from squish_core.model import TensorSpec
    >>> values = np.ones((2, 3), np.float32)
    >>> decode_all(Dense(), {"data": values}, TensorSpec(name="w", shape=(2, 3), dtype="f32"))
    """
    import numpy as np

    dtype = dtypes.to_numpy(codec.value_dtype(spec))
    for region in panels(spec.shape, codec.grain(spec), 4):
        shape = sizes(region)
        nbytes = dtype.itemsize * dtypes.count(shape)
        fits = scratch is not None and nbytes <= scratch.nbytes
        out = scratch[:nbytes].view(dtype).reshape(shape) if fits else np.empty(shape, dtype)  # type: ignore[index]
        if nbytes:
            codec.decode(parts, spec, region=region, out=out)
            if inspect is not None:
                inspect(out)


def normalize(key: Any, shape: tuple[int, ...]) -> tuple[Region, tuple[Any, ...]]:
    """Split a NumPy basic index into the region to read and the remaining index of the result."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(item is Ellipsis for item in keys):  # `in` would compare arrays
        position = next(number for number, item in enumerate(keys) if item is Ellipsis)
        keys[position : position + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
    if len(keys) > len(shape):
        raise RangeError("too many indices", expected=f"at most {len(shape)}", found=len(keys), code="index")
    keys += [slice(None)] * (len(shape) - len(keys))
    region: list[slice] = []
    rest: list[Any] = []
    for item, size in zip(keys, shape):
        if isinstance(item, slice):
            try:
                indices = range(*item.indices(size))
            except (TypeError, ValueError) as error:
                raise RangeError("a slice is invalid", expected=str(error), found=repr(item), code="index") from None
            low, high = sorted((indices[0], indices[-1])) if indices else (0, -1)
            region.append(slice(low, high + 1))
            rest.append(slice(None, None, indices.step))
            continue
        position = position_of(item)
        if not -size <= position < size:
            expected = f"-{size}..{size - 1}" if size else "no index: the axis is empty"
            raise RangeError("an index is out of range", expected=expected, found=position, code="index")
        region.append(slice(position % size, position % size + 1))
        rest.append(0)
    return tuple(region), tuple(rest)


def sliced(key: Any, shape: tuple[int, ...]) -> Region:
    """Convert an index to a region; RangeError unless it consists of slices with step 1."""
    region, rest = normalize(key, shape)
    if any(item != slice(None, None, 1) for item in rest):
        raise RangeError("a region must consist of slices without steps", found=repr(key), code="index")
    return region


def position_of(item: Any) -> int:
    """Convert an integer index; RangeError for anything else, including bool, for which NumPy would add an axis."""
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    hint = "A list may pick rows (the first axis). For any other index, call numpy() and index the array."
    raise RangeError("an index must be an integer or a slice", found=repr(item), code="index", hint=hint)
