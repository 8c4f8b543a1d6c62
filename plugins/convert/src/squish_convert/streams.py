"""Streams of parts to write: copied bytes, repacked codes, encoded panels, with one panel in memory at a time.

The parts of a panel are encoded together and spooled, so that each can be written where the format puts it.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from squish_core import dtypes
from squish_core.codecs.regions import PANEL_BYTES
from squish_core.codecs.stored import StoredArray
from squish_core.concurrency import prefetch
from squish_core.errors import CodecError, FormatError
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.io.buffer import as_array
from squish_core.io.digest import Digest
from squish_core.io.sink import Sink
from squish_core.model import Part, TensorSpec

from .compare.metrics import Distance
from .overflow import EncodedParts
from .panels import ALL_PANELS, EncodedPanels, RepackedPanels
from .step import ConversionObserver, Step

if TYPE_CHECKING:
    import numpy as np


def streams_of(
    file: File,
    step: Step,
    before: Callable[[], object],
    observer: ConversionObserver,
    magnitudes: np.ndarray | None = None,
    places: Places | None = None,
) -> dict[str, Stream]:
    """Return the parts of a tensor as its step computes them; `before` is called when a part starts.

    `observer` is notified of the error of a lossy encoding; `magnitudes` are the tensor's activation
    statistics. `places`: offsets of the parts in the target, so that parts encoded together need no temporary file.
    """
    if not step.is_computed:
        return _copy(file, step, before)
    pieces = _repack(file, step) if step.action == "repack" else _encode(file, step, observer, magnitudes)
    return PartStreams(step.spec, pieces, before, places or {}).streams()


def _copy(file: File, step: Step, before: Callable[[], object]) -> dict[str, Stream]:
    """Return the source's bytes without filters, as wider integers or in another byte order if the target needs that.

    The kernel copies bytes that are stored raw in a file.
    """
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


def _encode(file: File, step: Step, observer: ConversionObserver, magnitudes: np.ndarray | None) -> Pieces:
    """Return the source's values, encoded panel by panel. The observer receives the error of a lossy encoding."""
    panels = EncodedPanels(file, step, magnitudes)

    def pieces() -> Iterator[EncodedParts]:
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
    """Return the source's codes in the target's packing."""

    def pieces() -> Iterator[EncodedParts]:
        panels = RepackedPanels(file, step, memory=ALL_PANELS)
        return map(panels.parts, panels.regions())

    return pieces


Pieces = Callable[[], Iterator[EncodedParts]]
Item = TypeVar("Item")
Places = Mapping[tuple[str, str], tuple[str, int]]
"""(tensor, role) in the target -> its file (as `Sink.name`) and the offset in it."""


class PartStreams:
    """Streams of the parts of a tensor, whose panels yield all parts at once: the first stream read computes them.

    Parts with a known offset in the same file are written there at once; others wait in a temporary file.
    """

    def __init__(self, target: TensorSpec, pieces: Pieces, before: Callable[[], object], places: Places) -> None:
        self._target, self._pieces, self._before, self._places = target, pieces, before, places
        self._parts = target.encodings[0].parts
        self._spools: dict[str, Any] = {}
        self._placed = set[str]()

    def streams(self) -> dict[str, Stream]:
        """Return a stream of each part."""
        # A writer may fail or skip a part, so the end of the streams closes the spools.
        weakref.finalize(self, _close, self._spools)
        return {role: _PanelStream(self, role) for role in self._parts}

    def write(self, role: str, sink: Sink) -> bool:
        """Append a part, and write the others at their offsets; False if that is not possible."""
        if role in self._placed:
            self._placed.remove(role)
            sink.skip(self._parts[role].nbytes)
            return True
        offsets = self._offsets(role, sink)
        if offsets is None:
            return False
        self._before()
        written = dict.fromkeys(self._parts, 0)
        for panel in _prefetch(self._target, self._pieces()):
            for name in self._parts:
                data = part_bytes(panel[name])
                if name == role:
                    sink.write(data)
                else:
                    sink.write_ahead(offsets[name] + written[name], data)
                written[name] += len(data)
        for name, count in written.items():
            if count != self._parts[name].nbytes:
                raise FormatError(
                    "part size mismatch", part=name, expected=self._parts[name].nbytes, found=count, code="size"
                )
        self._placed = set(offsets)
        return True

    def chunks(self, role: str) -> Iterator[Any]:
        """Yield a part as consecutive buffers; the others wait in temporary files."""
        spools = self._spools
        if role in spools:
            spools[role].seek(0)
            while chunk := spools[role].read(1 << 22):
                yield chunk
            spools.pop(role).close()
            return
        other_roles = [name for name in self._parts if name != role]
        _close(spools)  # left by an earlier pass: a writer may read a part twice
        spools.update({name: tempfile.TemporaryFile() for name in other_roles})  # noqa: SIM115 - closed when read
        for parts in _prefetch(self._target, self._pieces()):
            for name in other_roles:
                spools[name].write(part_bytes(parts[name]))
            yield part_bytes(parts[role])

    def _offsets(self, role: str, sink: Sink) -> dict[str, int] | None:
        """Offsets of the other parts in the sink's file; None if one is in another file, or the part is spooled."""
        locations = {name: self._places.get((self._target.name, name)) for name in self._parts if name != role}
        if not sink.is_seekable or role in self._spools:
            return None
        if any(location is None or location[0] != sink.name for location in locations.values()):
            return None
        return {name: location[1] for name, location in locations.items() if location is not None}


class _PanelStream(Stream):
    """The stream of one part of `PartStreams`."""

    def __init__(self, parts: PartStreams, role: str) -> None:
        super().__init__(parts._parts[role], partial(parts.chunks, role), None, parts._before)
        self._panel_parts, self._role = parts, role

    def write_to(self, sink: Sink, digest: Digest | None = None) -> None:
        if digest is not None or not self._panel_parts.write(self._role, sink):
            super().write_to(sink, digest)


def part_bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of an encoded part."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _prefetch(target: TensorSpec, panels: Iterator[Item]) -> Iterator[Item]:
    """Return the panels; if there are several, the next one is prepared while one is in use."""
    return prefetch(panels) if target.elements * 4 > PANEL_BYTES else panels


def _close(spools: dict[str, Any]) -> None:
    while spools:
        spools.popitem()[1].close()
