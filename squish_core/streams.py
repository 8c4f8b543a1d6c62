"""Streams of parts for writing: copied bytes, repacked codes, encoded panels; a panel in memory, never a tensor."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core import dtypes
from squish_core.buffers import as_array
from squish_core.codecs.base import Codes, Encoder
from squish_core.distances import Distance
from squish_core.errors import CodecError
from squish_core.handles import File
from squish_core.model import SAME_BYTES, Encoding, Exactness, TensorSpec
from squish_core.regions import PANEL_BYTES, Region, panels, read_region, sizes, stored_panels
from squish_core.stored import StoredArray
from squish_core.writing import Stream

if TYPE_CHECKING:
    import numpy as np

Pieces = Callable[[], Iterator[dict[str, "np.ndarray"]]]


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
        codec = file.registry.codec(origin.codec)
        codec.check_parts(file[name].arrays(origin), file.index.tensors[name], origin.codec.params)


def values_of(file: File, spec: TensorSpec, origin: Encoding, dtype: str) -> Iterator[np.ndarray]:
    """A tensor's values in row panels: as they are where they have this dtype, else in f32 or the dtype they have."""
    read = _reader(file, spec.name, origin, dtype)
    for region in stored_panels(spec.shape, (1,) * len(spec.shape), 4):
        yield read(region)


def _reader(file: File, name: str, origin: Encoding, dtype: str) -> Callable[[Region], np.ndarray]:
    """What reads a region's values for one that wants this dtype: as f32 where a plugin's loops decode them, else in
    the dtype that they have. Values of the wanted dtype stay as they are: a NaN's payload does not survive f32."""
    import numpy as np

    tensor, params, known = file[name], origin.codec.params, file.registry
    arrays, fill = tensor.arrays(origin), None
    as_is = known.codec(origin.codec).value_dtype(tensor.spec, params) == dtype
    if not as_is and origin.codec.inner is None and all(array.in_place for array in arrays.values()):
        parts = {role: array[...] for role, array in arrays.items()}
        fill = known.encoder(origin.codec).decoder(known.codec(origin.codec), parts, tensor.spec, params)
    if fill is None:
        return partial(tensor._read, origin)

    def read(region: Region) -> np.ndarray:
        for array in arrays.values():
            array[...]  # a file that has shrunk is found out
        out = np.empty(sizes(region), np.float32)
        fill(region, out)
        return out

    return read


def encoded(
    file: File, name: str, target: TensorSpec, origin: Encoding, told: Callable[[Distance], None] | None = None,
    activations: np.ndarray | None = None,
) -> dict[str, Stream]:  # fmt: skip
    """The source's values, encoded panel by panel; `told` gets how far what a reader will see is from them."""
    import numpy as np

    encoding = target.encodings[0]
    codec = file.registry.codec(encoding.codec)
    encoder: Encoder = file.registry.encoder(encoding.codec)
    tensor, dense = file[name], encoding.codec.id == "dense"
    params = {"dtype": target.dtype, **encoding.codec.params} if dense else encoding.codec.params
    own = codec.value_dtype(target, encoding.codec.params)
    source = file.registry.codec(origin.codec)
    as_is = source.value_dtype(tensor.spec, origin.codec.params) == own

    def pieces() -> Iterator[dict[str, np.ndarray]]:
        distance = Distance()
        read = _reader(file, name, origin, own)

        def measure(values: np.ndarray, made: dict[str, np.ndarray]) -> None:
            panel = evolve(target, shape=values.shape)
            params = codec.panel_params(made, encoding.codec.params)
            declared = codec.parts(panel, params)
            parts: Any = {role: made[role].reshape(shape) for role, (_, shape) in declared.items()}
            if sums := encoder.compare(codec, values, parts, panel, params):
                distance.take(*sums)
                return
            # pieces that stay in the cache
            for region in panels(panel.shape, codec.grain(panel, params), 4, budget=1 << 20, whole_rows=True):
                distance.add(values[region], read_region(codec, parts, panel, params, region))

        with _Behind(measure) as measured:
            for region in stored_panels(target.shape, codec.encode_grain(target, encoding.codec.params), 4):
                values = read(region)
                panel = values if dense or as_is else values.astype(np.float32, copy=False)
                stats = None if activations is None else {"activations": activations[region[-1]]}
                made = encoder.encode(panel, params, stats=stats)
                if told:
                    # what was widened is as exact, and read faster
                    measured(panel if values.itemsize <= panel.itemsize else values, made)
                yield made
        if told:
            told(distance)

    return _split(target, pieces)


class _Behind:
    """A function run in a thread of its own, one call at a time, while its caller goes on to the next."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function, self._pool = function, ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def __call__(self, *told: Any) -> None:
        if self._last is not None:
            self._last.result()
        self._last = self._pool.submit(self._function, *told)

    def __enter__(self) -> _Behind:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()
        if self._last is not None and exception[0] is None:
            self._last.result()


def _ahead(panels: Iterator[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """The same, the next one made in a thread while one is written."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, panels, None)
        while (made := following.result()) is not None:
            following = pool.submit(next, panels, None)
            yield made


def repacked(file: File, name: str, target: TensorSpec, origin: Encoding) -> dict[str, Stream]:
    """The source's codes in the target's packing."""
    encoding = target.encodings[0]
    sink = file.registry.codec(encoding.codec)

    def pieces() -> Iterator[dict[str, np.ndarray]]:
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
    source, sink = file.registry.codec(origin.codec), file.registry.codec(target.codec)
    grain = _common(source.grain(spec, origin.codec.params), sink.encode_grain(spec, target.codec.params))
    parts = file[spec.name].arrays(origin)
    for region in stored_panels(spec.shape, grain, 4):
        yield source.codes(parts, spec, origin.codec.params, region), evolve(spec, shape=sizes(region))


def _split(target: TensorSpec, pieces: Pieces) -> dict[str, Stream]:
    """One stream per part from panels that give all parts at once: the one asked for first drives, the others spool."""
    encoding, ahead = target.encodings[0], _ahead if target.elements * 4 > PANEL_BYTES else iter
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
        for made in ahead(pieces()):
            for other in others:
                spools[other].write(_bytes(made[other]))
            yield _bytes(made[role])

    # A writer may fail, or leave a part unread: spools are closed with the streams at the latest.
    weakref.finalize(part, _close, spools)
    return {role: Stream(encoding.parts[role], lambda role=role: part(role)) for role in roles}  # type: ignore[misc]


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
