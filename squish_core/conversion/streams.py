"""Streams of parts for writing: copied bytes, repacked codes, encoded panels; a panel in memory, never a tensor."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve

from squish_core import dtypes
from squish_core.analysis.metrics import Distance
from squish_core.codecs.code_layout import Codes
from squish_core.codecs.regions import PANEL_BYTES, sizes, stored_panels
from squish_core.codecs.stored import StoredArray
from squish_core.concurrency import prefetch
from squish_core.conversion.overflow import REFUSE, SATURATE, Saturation, refusing
from squish_core.conversion.panel_encoder import PanelEncoder
from squish_core.errors import CodecError
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.guard import computing
from squish_core.io.buffer import as_array
from squish_core.model import SAME_BYTES, Encoding, Exactness, TensorSpec

if TYPE_CHECKING:
    import numpy as np

Parts = dict[str, "np.ndarray"]
Pieces = Callable[[], Iterator[Parts]]
Item = TypeVar("Item")


def copied(file: File, origin: Encoding, target: Encoding) -> dict[str, Stream]:
    """The source's own bytes, unfiltered; copied by the kernel where they lie raw in a file."""
    streams = {}
    for role, part in origin.parts.items():
        array = file.array(part)
        streams[role] = Stream(target.parts[role], array.chunks, stored=array)
    return streams


def widened(file: File, origin: Encoding, target: Encoding) -> dict[str, Stream]:
    """The source's parts, their integers in the target's wider types (CodecError for a negative one), in its order."""
    streams = copied(file, origin, target)
    for role, part in origin.parts.items():
        if (part.dtype, part.byteorder) != (target.parts[role].dtype, target.parts[role].byteorder):
            pieces = partial(_wider, file.array(part), role, target.parts[role].dtype)
            streams[role] = Stream(target.parts[role], pieces)
    return streams


def _wider(array: StoredArray, role: str, dtype: str) -> Iterator[memoryview]:
    part = array.part
    for chunk in array.chunks():
        numbers = as_array(chunk, part.dtype, (len(chunk) // array.dtype.itemsize,), part.byteorder)
        if dtype != part.dtype and numbers.dtype.kind == "i" and numbers.size and int(numbers.min()) < 0:
            raise CodecError("an index is negative", part=role, found=int(numbers.min()), code="index")
        yield _bytes(numbers.astype(dtypes.to_numpy(dtype), copy=False))


def check_copied(file: File, name: str, origin: Encoding) -> None:
    """Raise the error with which the parts do not decode: a copy would pass the damage on."""
    if file.registry.missing(origin) is None:
        bound = file.bind(file.index.tensors[name], origin)
        bound.codec.check_parts(bound.parts, bound.spec, bound.params)


def encoded(
    file: File, name: str, target: TensorSpec, origin: Encoding, report: Callable[[Distance, int], None] | None = None,
    activations: np.ndarray | None = None, overflow: str = REFUSE,
) -> dict[str, Stream]:  # fmt: skip
    """The source's values, encoded panel by panel. `report` gets how far the written values are from them, and how many
    were clipped; without it the encoding is exact. CodecError (code "range") for a value that does not stay finite."""
    encoding = PanelEncoder(file, name, target, origin, activations)
    guard = partial(computing, CodecError, "encoding", file=file.name, tensor=name)

    def panels(saturation: Saturation | None) -> Iterator[tuple[Parts, np.ndarray, tuple[int, ...]]]:
        read = encoding.reader()
        for region in stored_panels(target.shape, encoding.grain, 4):
            start, encode = tuple(part.start for part in region), partial(encoding.encode, region)
            with guard():
                values = read(region)
                panel = encoding.panel(values)
                if saturation:
                    parts, panel = saturation.encode(values, start, encode, encoding.changed)
                else:
                    parts = refusing(encode, panel, values, start)
            # what was widened is as exact, and read faster
            yield parts, panel if values.itemsize <= panel.itemsize else values, start

    def pieces() -> Iterator[Parts]:
        distance = Distance()
        saturation = Saturation(encoding.blocks) if overflow == SATURATE and report else None
        for parts, values, start in _ahead(target, panels(saturation)):
            if report:
                with guard():
                    encoding.add_distance(distance, values, parts, None if saturation else start)
            yield parts
        if report:
            report(distance, saturation.clipped if saturation else 0)

    return _split(target, pieces)


def repacked(file: File, name: str, target: TensorSpec, origin: Encoding) -> dict[str, Stream]:
    """The source's codes in the target's packing."""
    encoding = target.encodings[0]
    sink = file.registry.codec(encoding.codec)

    def pieces() -> Iterator[Parts]:
        for codes, panel in _code_panels(file, file.index.tensors[name], origin, encoding):
            made = None if codes is None else sink.from_codes(codes, panel, encoding.codec.params)
            if made is None:
                raise CodecError("the codes no longer fit the target", tensor=name, code="repack")
            yield made[0]

    return _split(target, pieces)


def repack_exactness(file: File, spec: TensorSpec, origin: Encoding, target: Encoding) -> Exactness | None:
    """How exactly the target can hold the source's codes, decided on the data; None when it cannot."""
    worst, sink = SAME_BYTES, file.registry.codec(target.codec)
    for codes, panel in _code_panels(file, spec, origin, target):
        held = None if codes is None else sink.holds(codes, panel, target.codec.params)
        if held is None:
            return None
        if held != SAME_BYTES:
            worst = held
    return worst


def _code_panels(
    file: File, spec: TensorSpec, origin: Encoding, target: Encoding
) -> Iterator[tuple[Codes | None, TensorSpec]]:
    """The source's codes (None: it has none), and what they are of, in the order in which the target stores them."""
    bound, sink = file.bind(spec, origin), file.registry.codec(target.codec)
    grain = _common(bound.grain, sink.encode_grain(spec, target.codec.params))
    for region in stored_panels(spec.shape, grain, 4):
        yield bound.codes(region), evolve(spec, shape=sizes(region))


def _split(target: TensorSpec, pieces: Pieces) -> dict[str, Stream]:
    """One stream per part from panels that give all parts at once: the one asked for first drives, the others spool."""
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
        others = [other for other in roles if other != role]
        _close(spools)  # of an earlier pass: a writer may ask for a part twice
        spools.update({other: tempfile.TemporaryFile() for other in others})  # noqa: SIM115 - closed when it is read
        for parts in _ahead(target, pieces()):
            for other in others:
                spools[other].write(_bytes(parts[other]))
            yield _bytes(parts[role])

    # A writer may fail, or leave a part unread: spools are closed with the streams at the latest.
    weakref.finalize(part, _close, spools)
    return {role: Stream(encoding.parts[role], lambda role=role: part(role)) for role in roles}  # type: ignore[misc]


def _ahead(target: TensorSpec, panels: Iterator[Item]) -> Iterator[Item]:
    """The same panels; of several, the next one is made while one is in use."""
    return prefetch(panels) if target.elements * 4 > PANEL_BYTES else panels


def _close(spools: dict[str, Any]) -> None:
    while spools:
        spools.popitem()[1].close()


def _bytes(array: np.ndarray) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _common(source: tuple[int | None, ...], sink: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Steps for both. After an axis that the source alone cannot divide, panels would not be in the sink's order."""
    from math import lcm

    whole = next((axis for axis, (a, b) in enumerate(zip(source, sink)) if a is None and b is not None), len(sink))
    return tuple(
        None if a is None or b is None or axis >= whole else lcm(a, b) for axis, (a, b) in enumerate(zip(source, sink))
    )
