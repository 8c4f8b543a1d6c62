"""Measured rates of this machine, and of opening, decoding and multiplying on it, as ratios to them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from attrs import asdict, frozen

from squish_core import handles, plugins
from squish_core.errors import CodecError, SquishError
from squish_core.guard import guarded
from squish_core.handles import File
from squish_core.limits import DEFAULT
from squish_core.model import DENSE, CodecSpec, Encoding, FileRef, Index, Part, TensorSpec
from squish_core.plugins import Registry
from squish_core.recipes import parse_spec
from squish_core.source import BytesSource
from squish_core.tensors import Tensor

ROUNDS = 5
SIDE = 2048
"""Rows and columns of a synthetic matrix: 16 MiB of float32."""
LARGEST = 1 << 26
"""Elements of the largest tensor that is taken from a file."""
SHARED = 1 << 20
"""Bytes that are worth the handing to other threads."""


@frozen(kw_only=True)
class Limits:
    """What the machine does at best past its caches, in bytes a second, on all cores: `set` fills memory, `read` reads
    it; `file` reads the file's bytes as they are cached now (None: no file)."""

    set: float
    read: float
    file: float | None = None


@frozen(kw_only=True)
class Measured:
    """One measurement: `rate` in bytes a second, of f32 values for "decode", of stored bytes for "linear" and "open";
    `ratio` to what `of` names done with as many bytes in the same turns. `refused` says why a backend has none."""

    what: str
    of: str
    codec: str = ""
    backend: str = ""
    tensor: str = ""
    seconds: float | None = None
    rate: float | None = None
    ratio: float | None = None
    refused: str = ""


@frozen(kw_only=True)
class Bench:
    """The limits and all measurements."""

    limits: Limits
    rows: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def bench(target: Any = None, *, registry: Registry | None = None) -> Bench:
    """Measure a file, the largest tensor of each codec in it, or (None) a seeded matrix under every codec that encodes.

    Each figure is the best of a few rounds, which take turns. Raises SquishError where the file cannot be opened.
    """
    known = registry or plugins.registry()
    if target is None:
        limits = _limits(None)
        file = synthetic(known)
        return Bench(limits=limits, rows=tuple(_tensors(file)))
    with handles.open(target, registry=known) as file:
        limits = _limits(file)
        return Bench(limits=limits, rows=(_opening(target, file, limits, known), *_tensors(file)))


def synthetic(known: Registry, side: int = SIDE) -> File:
    """A file in memory: one seeded matrix under each short name of each codec that encodes."""
    import numpy as np

    values = np.random.default_rng(0).standard_normal((side, side), np.float32)
    tensors = {}
    for name, spec in _encoders(known):
        held = TensorSpec(name=name, shape=values.shape, dtype="f32")
        try:
            with guarded(CodecError, f"encoding {name}"):
                codec = known.codec(spec.id)
                params = codec.measure(lambda: iter((values,)), held, codec.params_for(held, spec.params))
                made = codec.encode(values, params)
                declared = codec.parts(held, params)
        except SquishError:
            continue  # decoded only, or needs what is not installed
        parts = {
            role: Part(dtype=dtype, shape=tuple(shape), data=np.ascontiguousarray(made[role]).tobytes())
            for role, (dtype, shape) in declared.items()
        }
        encoding = Encoding(codec=CodecSpec(spec.id, params), parts=parts)
        tensors[name] = TensorSpec(name=name, shape=values.shape, dtype="f32", encodings=(encoding,))
    index = Index(format="synthetic", version="", files=(FileRef("<bytes>", 0),), tensors=tensors)
    return File(BytesSource(b""), index, known, DEFAULT)


def _encoders(known: Registry) -> Iterator[tuple[str, CodecSpec]]:
    for entry in known.find("codec", kind="tensor"):
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
                yield Measured(of=of, seconds=seconds, rate=size / seconds, ratio=least / seconds, **common)


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


def _opening(target: Any, file: File, limits: Limits, known: Registry) -> Measured:
    """Opening once more, against reading the whole file."""
    (seconds,) = best([lambda: handles.open(target, registry=known).close()])
    size = sum(ref.size for ref in file.index.files)
    rate = size / seconds
    ratio = rate / limits.file if limits.file else None
    return Measured(what="open", of="file", seconds=seconds, rate=rate, ratio=ratio)


def _limits(file: File | None) -> Limits:
    size = 32 * SIDE * SIDE
    calls = [_setting(size), _reading(size)]
    length = min(file.file(0).size, 1 << 28) if file is not None else 0
    if file is not None and length:
        calls.append(lambda: file.file(0).read(0, length))
    seconds = best(calls)
    return Limits(set=size / seconds[0], read=size / seconds[1], file=length / seconds[2] if length else None)


def _setting(size: int) -> Callable[[], object]:
    """Filling so many bytes of memory, shared by all cores: NumPy lets go of the interpreter."""
    import numpy as np

    cores = os.cpu_count() or 1
    if size < SHARED or cores == 1:
        return partial(_memory(size).fill, 0)
    pool, pieces = ThreadPoolExecutor(cores), np.array_split(_memory(size), cores)
    return lambda: list(pool.map(lambda piece: piece.fill(0), pieces))


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
    """The least seconds of each call; the calls take turns, so that a disturbance meets all."""
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            started = time.perf_counter()
            call()
            least[number] = min(least[number], time.perf_counter() - started)
    return [max(seconds, 1e-9) for seconds in least]
