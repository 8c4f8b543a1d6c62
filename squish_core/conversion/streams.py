"""Streams of parts to write: copied bytes, repacked codes, encoded panels, with one panel in memory at a time."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from squish_core import dtypes
from squish_core.analysis.metrics import Distance
from squish_core.codecs.regions import PANEL_BYTES
from squish_core.codecs.stored import StoredArray
from squish_core.concurrency import prefetch
from squish_core.conversion.observer import ConversionObserver
from squish_core.conversion.panels import EncodedPanels, Parts, RepackedPanels
from squish_core.conversion.step import Step
from squish_core.errors import CodecError
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.io.buffer import as_array
from squish_core.model import Part, TensorSpec

if TYPE_CHECKING:
    import numpy as np

Pieces = Callable[[], Iterator[Parts]]
Item = TypeVar("Item")


def streams_of(
    file: File, step: Step, before: Callable[[], object], observer: ConversionObserver,
    activations: np.ndarray | None = None,
) -> dict[str, Stream]:  # fmt: skip
    """The parts of a tensor as its step produces them; `before` is called as each part starts.

    `observer` is notified of the error of a lossy encoding; `activations` weight the errors of encoders.
    """
    if step.action in ("copy", "widen"):
        return _copy(file, step, before)
    pieces = _repack(file, step) if step.action == "repack" else _encode(file, step, observer, activations)
    return _split(step.spec, pieces, before)


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
        panels = RepackedPanels(file, step, all_panels=True)
        return map(panels.parts, panels.regions())

    return pieces


def _split(target: TensorSpec, pieces: Pieces, before: Callable[[], object]) -> dict[str, Stream]:
    """One stream per part, from panels that yield all parts: the first one read drives, the others are spooled."""
    encoding = target.encodings[0]
    roles = list(encoding.parts)
    spools: dict[str, Any] = {}

    def part(role: str) -> Iterator[Any]:
        if role in spools:
            spools[role].seek(0)
            while chunk := spools[role].read(1 << 22):
                yield chunk
            spools.pop(role).close()
            return
        other_roles = [name for name in roles if name != role]
        _close(spools)  # left by an earlier pass: a writer may read a part twice
        spools.update({name: tempfile.TemporaryFile() for name in other_roles})  # noqa: SIM115 - closed when read
        for parts in _prefetch(target, pieces()):
            for name in other_roles:
                spools[name].write(part_bytes(parts[name]))
            yield part_bytes(parts[role])

    # A writer may fail or skip a part, so the end of the streams closes the spools.
    weakref.finalize(part, _close, spools)
    return {role: Stream(encoding.parts[role], partial(part, role), None, before) for role in roles}


def _prefetch(target: TensorSpec, panels: Iterator[Item]) -> Iterator[Item]:
    """The panels; if there are several, the next one is prepared while one is in use."""
    return prefetch(panels) if target.elements * 4 > PANEL_BYTES else panels


def _close(spools: dict[str, Any]) -> None:
    while spools:
        spools.popitem()[1].close()


def part_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an encoded part."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
