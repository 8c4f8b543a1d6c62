"""Streams of parts that are made together, panel by panel."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from squish_core.codecs.regions import PANEL_BYTES
from squish_core.concurrency import prefetch
from squish_core.errors import FormatError
from squish_core.formats.outgoing import Stream
from squish_core.io.digest import Digest
from squish_core.io.sink import Sink
from squish_core.model import TensorSpec

from .panels import Parts

if TYPE_CHECKING:
    import numpy as np

Pieces = Callable[[], Iterator[Parts]]
Item = TypeVar("Item")
Places = Mapping[tuple[str, str], tuple[str, int]]
"""(tensor, role) in the target -> its file (as `Sink.name`) and the offset in it."""


class PanelParts:
    """The parts of a tensor from panels that yield all of them: the first part that is read drives.

    Others that belong at a known place of the same file are written there at once; else they wait in a temporary file.
    """

    def __init__(self, target: TensorSpec, pieces: Pieces, before: Callable[[], object], places: Places) -> None:
        self._target, self._pieces, self._before, self._places = target, pieces, before, places
        self._parts = target.encodings[0].parts
        self._spools: dict[str, Any] = {}
        self._placed = set[str]()

    def streams(self) -> dict[str, Stream]:
        """A stream of each part."""
        # A writer may fail or skip a part, so the end of the streams closes the spools.
        weakref.finalize(self, _close, self._spools)
        return {role: _PanelStream(self, role) for role in self._parts}

    def write(self, role: str, sink: Sink) -> bool:
        """Append a part, and write those that are made with it at their places; False if that is not possible."""
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
        """A part as consecutive buffers; the others wait in temporary files."""
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
        """Where the other parts belong in the sink's file; None if one is elsewhere, or was spooled before."""
        locations = {name: self._places.get((self._target.name, name)) for name in self._parts if name != role}
        if not sink.is_seekable or role in self._spools:
            return None
        if any(location is None or location[0] != sink.name for location in locations.values()):
            return None
        return {name: location[1] for name, location in locations.items() if location is not None}


class _PanelStream(Stream):
    """One part of `PanelParts`."""

    def __init__(self, parts: PanelParts, role: str) -> None:
        super().__init__(parts._parts[role], partial(parts.chunks, role), None, parts._before)
        self._panel_parts, self._role = parts, role

    def write_to(self, sink: Sink, digest: Digest | None = None) -> None:
        if digest is not None or not self._panel_parts.write(self._role, sink):
            super().write_to(sink, digest)


def part_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an encoded part."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _prefetch(target: TensorSpec, panels: Iterator[Item]) -> Iterator[Item]:
    """The panels; if there are several, the next one is prepared while one is in use."""
    return prefetch(panels) if target.elements * 4 > PANEL_BYTES else panels


def _close(spools: dict[str, Any]) -> None:
    while spools:
        spools.popitem()[1].close()
