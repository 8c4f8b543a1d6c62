"""Measured rates of this machine, and of opening, decoding and multiplying on it, as ratios to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from squish_core import opening
from squish_core.concurrency import Pool, workers
from squish_core.dtypes import nbytes
from squish_core.errors import CodecError, SquishError
from squish_core.file import File
from squish_core.guard import computing
from squish_core.io.source import BytesSource
from squish_core.limits import DEFAULT
from squish_core.model import DENSE, CodecSpec, Encoding, FileRef, Index, Part, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed
from squish_core.specs import parse_spec
from squish_core.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

    from squish_core.codecs.base import Codec, Params

ROUNDS = 5
ENOUGH = 1.0
"""Seconds of measuring after which no further round begins."""
ROWS, COLUMNS = 384, 4096
"""The panel that synthetic matrices repeat; any block of up to 12 rows divides it."""
PAST = 1.25
"""Last-level caches that the stored bytes of a synthetic matrix would fill."""
LARGEST = 1 << 27
"""Elements of the largest matrix that is measured: 512 MiB of float32."""
SHARED = 1 << 20
"""Bytes that are worth the handing to other threads."""


UNITS = {
    "set": "bytes/s", "read": "bytes/s", "file": "bytes/s", "cache": "bytes", "size": "bytes", "seconds": "s",
    "rate": "bytes/s", "ratio": "the limit's seconds / these seconds",
}  # fmt: skip
"""Of the figures in `Limits` and `Measured`."""


@frozen(kw_only=True)
class MachineRates:
    """What the machine does at best past its caches, in bytes a second, on all cores: `set` fills memory, `read` reads
    it; `file` reads the file's bytes as they are cached now (None: no file). `cache`: bytes of the last-level cache."""

    set: float
    read: float
    file: float | None = None
    cache: int


@frozen(kw_only=True)
class Measured:
    """One measurement: `size` in bytes, of f32 values for "decode", of stored bytes for "linear" and "open"; `rate` in
    bytes a second; `ratio` to what `of` names done with as many bytes in the same turns. `refused` says why a backend
    has none."""

    what: str
    of: str
    codec: str = ""
    backend: str = ""
    tensor: str = ""
    size: int | None = None
    seconds: float | None = None
    rate: float | None = None
    ratio: float | None = None
    refused: str = ""


@frozen(kw_only=True)
class Bench:
    """The limits and all measurements."""

    limits: MachineRates
    rows: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"units": dict(UNITS), **asdict(self)}


def bench(target: Any = None, *, registry: Registry | None = None) -> Bench:
    """Measure a file, the largest tensor of each codec in it, or (None) a seeded matrix under every codec that encodes.

    Each figure is the best of a few rounds, which take turns. Raises SquishError where the file cannot be opened.
    """
    registry = registry or installed()
    if target is None:
        return Bench(
            limits=_machine_rates(None), rows=tuple(row for file in synthetic(registry) for row in _tensors(file))
        )
    with opening.open(target, registry=registry) as file:
        limits = _machine_rates(file)
        return Bench(limits=limits, rows=(_opening(target, file, limits, registry), *_tensors(file)))


def synthetic(registry: Registry, columns: int = COLUMNS, most: int = LARGEST) -> Iterator[File]:
    """A file in memory for each short name of each codec that encodes: one matrix past the last-level cache.

    It is a seeded panel over and over, until that many bytes are stored or it has `most` elements.
    """
    import numpy as np

    panel = np.random.default_rng(0).standard_normal((ROWS, columns), np.float32)
    for name, spec in _encoders(registry):
        try:
            with computing(CodecError, f"encoding {name}"):
                tensor = _repeated(panel, name, spec, registry.codec(spec.id), most)
        except SquishError:
            continue  # decoded only, or needs what is not installed
        index = Index(format="synthetic", version="", files=(FileRef("<bytes>", 0),), tensors={name: tensor})
        yield File(BytesSource(b""), index, registry, DEFAULT)


def _repeated(panel: np.ndarray, name: str, spec: CodecSpec, codec: Codec, most: int) -> TensorSpec:
    """A matrix of equal panels, of which one is encoded unless the parts of many are not those of one repeated."""
    import numpy as np

    def declared(times: int) -> tuple[TensorSpec, Params, dict[str, tuple[str, tuple[int, ...]]]]:
        held = TensorSpec(name=name, shape=(times * len(panel), panel.shape[1]), dtype="f32")
        params = codec.fit_params(lambda: repeat(panel, times), held, codec.params_for(held, spec.params))
        return held, params, dict(codec.parts(held, params))

    small = {role: nbytes(*part) for role, part in declared(1)[2].items()}
    times = max(1, min(ceil(PAST * last_level() / sum(small.values())), most // panel.size))
    held, params, parts = declared(times)
    repeats = {role: nbytes(*part) // (small[role] or 1) for role, part in parts.items()}
    if all(nbytes(*parts[role]) in (size, times * size) for role, size in small.items()):
        made = {role: part.tobytes() * repeats[role] for role, part in codec.encode(panel, params).items()}
    else:
        made = {role: part.tobytes() for role, part in codec.encode(np.tile(panel, (times, 1)), params).items()}
    stored = {role: Part(dtype=dtype, shape=tuple(shape), data=made[role]) for role, (dtype, shape) in parts.items()}
    return evolve(held, encodings=(Encoding(codec=CodecSpec(spec.id, params), parts=stored),))


def last_level() -> int:
    """Bytes of the largest cache that the system tells of (Linux), or 32 MiB."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")  # "32768K"
    return max((int(size.read_text().strip().rstrip("K")) << 10 for size in sizes), default=32 << 20)


def _encoders(registry: Registry) -> Iterator[tuple[str, CodecSpec]]:
    for entry in registry.find("codec", kind="tensor"):
        info: Any = entry.info
        if info.id == DENSE.id:
            continue
        for name, meaning in (info.aliases or {info.id: info.id}).items():
            yield name, parse_spec(meaning)


def _tensors(file: File) -> Iterator[Measured]:
    """Decoding and multiplying of one tensor of each codec on each backend."""
    for tensor in _chosen(file):
        for backend in sorted(file.registry.backends):
            for what, prepare in (("decode", _decode), ("linear", _linear)):
                codec = str(tensor.spec.encodings[0].codec)
                common: dict[str, Any] = {"what": what, "backend": backend, "codec": codec, "tensor": tensor.name}
                try:
                    of, size, limit, call = prepare(tensor, backend)
                    seconds, least = best([call, limit])
                except SquishError as error:
                    yield Measured(of="", refused=error.message, **common)
                    continue
                yield Measured(of=of, size=size, seconds=seconds, rate=size / seconds, ratio=least / seconds, **common)


Prepared = tuple[str, int, Callable[[], object], Callable[[], object]]
"""The limit's name, bytes, the limit for as many bytes, the call."""


def _decode(tensor: Tensor, backend: str) -> Prepared:
    """All values as float32 into a reused array."""
    weight = tensor.load(backend, op="dense")
    size = 4 * tensor.spec.elements
    out = _memory(size).reshape(tensor.shape)
    return "set", size, _setting(size), lambda: weight.dense(dtype="f32", out=out)


def _linear(tensor: Tensor, backend: str) -> Prepared:
    """The product with one vector."""
    import numpy as np

    weight = tensor.load(backend)
    x = np.random.default_rng(1).standard_normal((1, tensor.shape[-1]), np.float32)
    size = max(tensor.spec.encodings[0].stored, 4)
    return "read", size, _reading(size), lambda: weight.linear(x)


def _chosen(file: File) -> Iterable[Tensor]:
    """The largest matrix of each codec, none above `LARGEST` elements."""
    found: dict[str, Tensor] = {}
    for name in file:
        tensor = file[name]
        spec = tensor.spec
        if spec.encodings and len(spec.shape) == 2 and 0 < spec.elements <= LARGEST:
            codec = str(spec.encodings[0].codec)
            if codec not in found or found[codec].spec.elements < spec.elements:
                found[codec] = tensor
    return found.values()


def _opening(target: Any, file: File, limits: MachineRates, registry: Registry) -> Measured:
    """Opening once more, against reading the whole file."""
    (seconds,) = best([lambda: opening.open(target, registry=registry).close()])
    size = file.size
    rate = size / seconds
    ratio = rate / limits.file if limits.file else None
    return Measured(what="open", of="file", size=size, seconds=seconds, rate=rate, ratio=ratio)


def _machine_rates(file: File | None) -> MachineRates:
    cache = last_level()
    size = 2 * cache
    calls = [_setting(size), _reading(size)]
    length = min(file.source_for(0).size, 1 << 28) if file is not None else 0
    if file is not None and length:
        calls.append(lambda: file.source_for(0).read(0, length))
    seconds = best(calls)
    return MachineRates(
        set=size / seconds[0], read=size / seconds[1], file=length / seconds[2] if length else None, cache=cache
    )


def _setting(size: int) -> Callable[[], object]:
    """Filling so many bytes of memory, shared by all cores: NumPy lets go of the interpreter."""
    import numpy as np

    threads = workers()
    if size < SHARED or threads == 1:
        return partial(_memory(size).fill, 0)
    pool, pieces = Pool(threads), np.array_split(_memory(size), threads)
    return lambda: pool.map(lambda piece: piece.fill(0), pieces)


def _reading(size: int) -> Callable[[], object]:
    """Reading so many bytes of memory: BLAS does, on all its cores."""
    memory = _memory(size)
    return lambda: memory @ memory


def _memory(size: int) -> Any:
    """Float32 ones of so many bytes, that begin on a cache line."""
    import numpy as np

    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    made = room[start : start + size // 4 * 4].view(np.float32)
    made.fill(1)
    return made


def best(calls: list[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """The least seconds of each call; the calls take turns, so that a disturbance meets all. Slow ones get fewer."""
    least, begun = [float("inf")] * len(calls), time.perf_counter()
    for _ in range(rounds):
        if time.perf_counter() - begun > ENOUGH:
            break
        for number, call in enumerate(calls):
            started = time.perf_counter()
            call()
            least[number] = min(least[number], time.perf_counter() - started)
    return [max(seconds, 1e-9) for seconds in least]
