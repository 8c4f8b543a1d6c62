"""Streams of parts to write: copied bytes, repacked codes, encoded panels, with one panel in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from squish_core import dtypes
from squish_core.codecs.stored import StoredArray
from squish_core.errors import CodecError
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.io.buffer import as_array
from squish_core.model import Part

from .compare.metrics import Distance
from .panel_parts import PanelParts, Pieces, Places, part_bytes
from .panels import ALL_PANELS, EncodedPanels, Parts, RepackedPanels
from .step import ConversionObserver, Step

if TYPE_CHECKING:
    import numpy as np


def streams_of(
    file: File, step: Step, before: Callable[[], object], observer: ConversionObserver,
    activations: np.ndarray | None = None, places: Places | None = None,
) -> dict[str, Stream]:  # fmt: skip
    """The parts of a tensor as its step produces them; `before` is called as each part starts.

    `observer` is notified of the error of a lossy encoding; `activations` weight the errors of encoders. `places`:
    where parts belong, so that those that are made together need no temporary file.
    """
    if not step.is_computed:
        return _copy(file, step, before)
    pieces = _repack(file, step) if step.action == "repack" else _encode(file, step, observer, activations)
    return PanelParts(step.spec, pieces, before, places or {}).streams()


def _copy(file: File, step: Step, before: Callable[[], object]) -> dict[str, Stream]:
    """The source's unfiltered bytes, copied by the kernel if they lie raw in a file, or as wider integers or in
    another byte order if the target needs that."""
    streams, target = {}, step.spec.encodings[0]
    for role, part in step.origin.parts.items():
        array, target_part = file.array(part), target.parts[role]
        if (part.dtype, part.byteorder) == (target_part.dtype, target_part.byteorder):
            streams[role] = Stream(target_part, array.chunks, array, before)
        else:
            streams[role] = Stream(target_part, partial(_widen, array, role, target_part.dtype), None, before)
    return streams


def _widen(array: StoredArray, role: str, dtype: str) -> Iterator[memoryview]:
    return (widened(chunk, array.part, role, dtype) for chunk in array.chunks())


def widened(chunk: memoryview, part: Part, role: str, dtype: str) -> memoryview:
    """Convert stored integers to another dtype, little-endian; CodecError for a negative index."""
    numbers = as_array(chunk, part.dtype, (len(chunk) * 8 // dtypes.bits(part.dtype),), part.byteorder)
    if dtype != part.dtype and numbers.dtype.kind == "i" and numbers.size and int(numbers.min()) < 0:
        raise CodecError("an index is negative", part=role, found=int(numbers.min()), code="index")
    return part_bytes(numbers.astype(dtypes.to_numpy(dtype), copy=False))


def _encode(file: File, step: Step, observer: ConversionObserver, activations: np.ndarray | None) -> Pieces:
    """The source's values, encoded panel by panel. The observer receives the error of a lossy encoding."""
    panels = EncodedPanels(file, step, activations)

    def pieces() -> Iterator[Parts]:
        distance, clipped = Distance(), 0
        for parts, panel_distance, panel_clipped in panels.measured(panels.regions()):
            if panel_distance is not None:
                distance.merge(panel_distance)
            clipped += panel_clipped
            yield parts
        if step.is_lossy:
            observer.quality(step.name, distance, clipped)

    return pieces


def _repack(file: File, step: Step) -> Pieces:
    """The source's codes in the target's packing."""

    def pieces() -> Iterator[Parts]:
        panels = RepackedPanels(file, step, memory=ALL_PANELS)
        return map(panels.parts, panels.regions())

    return pieces
