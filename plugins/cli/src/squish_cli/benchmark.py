"""`benchmark`: opening, decoding and multiplying, as ratios to the machine's peak rates."""

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
from squish_core.display import fit_all, table
from squish_core.dtypes import nbytes
from squish_core.errors import CodecError, SquishError
from squish_core.file import File
from squish_core.guard import computing
from squish_core.io.source import BytesSource, Source
from squish_core.limits import DEFAULT
from squish_core.model import DENSE, CodecSpec, Encoding, FileRef, Index, Part, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed
from squish_core.shown import Shown
from squish_core.specs import parse_spec
from squish_core.tensor import Tensor
from squish_core.text import format_bytes

if TYPE_CHECKING:
    import numpy as np
    from squish_convert.html import Html

    from squish_core.codecs.base import Codec


ROUNDS = 5
ENOUGH = 1.0
"""Seconds after which no further round starts."""
SHARED = 1 << 20
"""Size in bytes above which several threads are faster than one."""


@frozen(kw_only=True)
class MachineRates:
    """Peak rates beyond the caches, on all cores, in bytes per second.

    `set` fills memory, `read` reads it, `file` reads a file in its current cache state (None: no file). `cache`: bytes
    of the last-level cache.
    """

    set: float
    read: float
    file: float | None = None
    cache: int


def measure_rates(source: Source | None) -> MachineRates:
    """Measure the rates of this machine; `source` is the file to read."""
    cache = last_level()
    size = 2 * cache
    calls = [filling(size), reading(size)]
    length = min(source.size, 1 << 28) if source is not None else 0
    if source is not None and length:
        calls.append(lambda: source.read(0, length))
    seconds = best(calls)
    return MachineRates(
        set=size / seconds[0], read=size / seconds[1], file=length / seconds[2] if length else None, cache=cache
    )


def last_level() -> int:
    """Size of the largest cache that the system reports (Linux), or 32 MiB."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")  # "32768K"
    return max((int(size.read_text("ascii").strip().rstrip("K")) << 10 for size in sizes), default=32 << 20)


def filling(size: int) -> Callable[[], object]:
    """Return a call that fills memory on all cores; NumPy releases the GIL."""
    import numpy as np

    threads = workers()
    if size < SHARED or threads == 1:
        return partial(aligned_memory(size).fill, 0)
    pool, pieces = Pool(threads), np.array_split(aligned_memory(size), threads)
    return lambda: pool.map(lambda piece: piece.fill(0), pieces)


def reading(size: int) -> Callable[[], object]:
    """Return a call that reads memory on all cores, through BLAS."""
    memory = aligned_memory(size)
    return lambda: memory @ memory


def aligned_memory(size: int) -> Any:
    """Float32 ones, `size` bytes, aligned to a cache line."""
    import numpy as np

    buffer = np.empty(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    ones = buffer[start : start + size // 4 * 4].view(np.float32)
    ones.fill(1)
    return ones


def best(calls: list[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """Minimum time of each call in seconds. Calls are interleaved so that noise affects all of them; slow calls
    get fewer rounds."""
    minima, first_start = [float("inf")] * len(calls), time.perf_counter()
    for _ in range(rounds):
        if time.perf_counter() - first_start > ENOUGH:
            break
        for number, call in enumerate(calls):
            start = time.perf_counter()
            call()
            minima[number] = min(minima[number], time.perf_counter() - start)
    return [max(seconds, 1e-9) for seconds in minima]


ROWS, COLUMNS = 384, 4096
"""Shape of the panel that synthetic matrices repeat; blocks of up to 12 rows divide it."""
PAST = 1.25
"""Stored size of a synthetic matrix, as a multiple of the last-level cache."""
LARGEST = 1 << 27
"""Maximum number of elements of a matrix: 512 MiB of float32."""


UNITS = {
    "set": "bytes/s", "read": "bytes/s", "file": "bytes/s", "cache": "bytes", "size": "bytes", "seconds": "s",
    "rate": "bytes/s", "ratio": "the limit's seconds / these seconds",
}  # fmt: skip
"""Units of the figures in `MachineRates` and `Measurement`."""


@frozen(kw_only=True)
class Measurement:
    """One measurement.

    `size` is in bytes: f32 values for "decode", stored bytes for "linear" and "open". `rate` is in bytes per second,
    `ratio` relative to the limit `of` for the same size. `refused`: why there is no measurement.
    """

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
class Benchmark(Shown):
    """The machine's peak rates and all measurements. `print(benchmark)` shows what `squish bench` prints."""

    limits: MachineRates
    rows: tuple[Measurement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            `units`, `limits` and `rows`.

        Examples
        --------
        >>> rates = MachineRates(set=8e9, read=1e10, cache=1 << 25)
        >>> Benchmark(limits=rates, rows=()).to_dict()["limits"]["read"]
        10000000000.0
        """
        return {"units": dict(UNITS), **asdict(self)}

    def lines(self) -> Iterator[str]:
        """Yield the measurements as text."""
        yield from (f"limits: {self._limits()}", "")
        yield from table(HEADER, ALIGN, [_cells(row) for row in self._measured()])
        if reasons := self._refusals():
            yield from ("", "not measured", *(f"  {reason}" for reason in reasons))

    def _tables_(self) -> Html:
        """Return the measurements for notebooks, a folded table for each backend."""
        from squish_convert import html
        from squish_convert.notebook import folded
        from squish_convert.places import grouped

        rows = grouped(self._measured(), lambda row: row.backend or row.what)
        refusals = [(reason,) for reason in self._refusals()]
        return html.join(
            html.facts([("limits", self._limits())]),
            folded(rows, "measurement", HEADER, ALIGN, _cells),
            html.details("not measured", html.table(("why",), "<", refusals)) if refusals else "",
        )

    def _limits(self) -> str:
        rates = {"set": self.limits.set, "read": self.limits.read, "file": self.limits.file}
        text = ", ".join(f"{name} {rate / 1e9:.3g} GB/s" for name, rate in rates.items() if rate)
        return f"{text} (last-level cache {format_bytes(self.limits.cache)})"

    def _measured(self) -> list[Measurement]:
        return [row for row in self.rows if row.seconds is not None]

    def _refusals(self) -> list[str]:
        return sorted({f"{row.backend or row.what}: {row.refused}" for row in self.rows if row.refused})

    def __str__(self) -> str:
        return "\n".join(fit_all(self.lines()))


def benchmark(target: Any = None, *, registry: Registry | None = None) -> Benchmark:
    """Measure opening, decoding and multiplying, as ratios to this machine's peak rates.

    Each figure is the best of a few interleaved rounds. Decoding (to float32, into a reused array) is compared with
    filling memory of the same size, linear (one vector) with reading the stored bytes from memory, and opening with
    reading the whole file. A ratio of 1 is the limit.

    Parameters
    ----------
    target
        A path or anything else that `open` accepts: the largest matrix of each codec is measured on every backend.
        None: a random matrix in every codec that encodes, which takes minutes.
    registry
        The plugins to measure; the installed ones by default.

    Returns
    -------
    Benchmark
        Rates in bytes per second and ratios; `to_dict()` gives plain data for JSON.

    Raises
    ------
    SquishError
        The file cannot be opened.

    Examples
    --------
    >>> rows = squish.benchmark("model.safetensors").rows
    >>> sorted({row.what for row in rows})
    ['decode', 'linear', 'open']
    """
    registry = registry or installed()
    if target is None:
        rows = tuple(row for file in synthetic(registry) for row in _tensors(file))
        return Benchmark(limits=measure_rates(None), rows=rows)
    with opening.open(target, registry=registry) as file:
        limits = measure_rates(file.source_for(0) if file.index.files else None)
        return Benchmark(limits=limits, rows=(_opening(target, file, limits), *_tensors(file)))


HEADER, ALIGN = ("what", "backend", "ratio", "of", "MB", "ms", "codec"), "<<><>><"


def _cells(row: Measurement) -> tuple[str, ...]:
    ratio, size = "" if row.ratio is None else f"{row.ratio:.3g}", f"{(row.size or 0) / 1e6:.3g}"
    return row.what, row.backend, ratio, row.of, size, _short(1e3 * (row.seconds or 0)), row.codec


def _short(milliseconds: float) -> str:
    """Three digits, and no exponent for large numbers."""
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def synthetic(registry: Registry, columns: int = COLUMNS, most: int = LARGEST) -> Iterator[File]:
    """Yield an in-memory file per short name of each codec that encodes: one matrix larger than the last-level cache.

    The matrix repeats a seeded panel until it is large enough or has `most` elements.
    """
    import numpy as np

    panel = np.random.default_rng(0).standard_normal((ROWS, columns), np.float32)
    for name, spec in _encoders(registry):
        try:
            with computing(CodecError, f"encoding {name}"):
                tensor = _tiled_tensor(panel, name, spec, registry.codec_type(spec.id), most)
        except SquishError:
            continue  # a decode-only codec, or a dependency is not installed
        index = Index(format="synthetic", version="", files=(FileRef("<bytes>", 0),), tensors={name: tensor})
        yield File(BytesSource(b""), index, registry, DEFAULT)


def _tiled_tensor(panel: np.ndarray, name: str, spec: CodecSpec, codec_type: type[Codec], most: int) -> TensorSpec:
    """Return a matrix of equal panels; encodes one panel and repeats its parts if the codec permits."""
    import numpy as np

    def layout(times: int) -> tuple[TensorSpec, Codec, dict[str, tuple[str, tuple[int, ...]]]]:
        tiled = TensorSpec(name=name, shape=(times * len(panel), panel.shape[1]), dtype="f32")
        codec = codec_type.from_params(codec_type.params_for(tiled, spec.params))
        codec = codec_type.from_params(codec.fit_params(lambda: repeat(panel, times), tiled))
        return tiled, codec, dict(codec.parts(tiled))

    small = layout(1)[2]
    size = sum(nbytes(*part) for part in small.values())
    times = max(1, min(ceil(PAST * last_level() / size), most // panel.size))
    tiled, codec, parts = layout(times)
    repeats = {role: _repeats(small[role][1], shape, times) for role, (_, shape) in parts.items()}
    if all(repeats.values()):
        data = {role: part.tobytes() * repeats[role] for role, part in codec.encode(panel).items()}
    else:
        data = {role: part.tobytes() for role, part in codec.encode(np.tile(panel, (times, 1))).items()}
    stored_parts = {
        role: Part(dtype=dtype, shape=tuple(shape), data=data[role]) for role, (dtype, shape) in parts.items()
    }
    return evolve(tiled, encodings=(Encoding(codec=codec.specification, parts=stored_parts),))


def _repeats(shape: tuple[int, ...], tiled: tuple[int, ...], times: int) -> int:
    """How often a tiled matrix repeats the bytes of a part: once, or along its first axis; 0 if it does neither."""
    if shape == tiled:
        return 1
    return times if tiled == (times * shape[0], *shape[1:]) else 0


def _encoders(registry: Registry) -> Iterator[tuple[str, CodecSpec]]:
    for entry in registry.find("codec", kind="tensor"):
        info = entry.info
        if info.id == DENSE.id:
            continue
        for name, meaning in (info.aliases or {info.id: info.id}).items():
            yield name, parse_spec(meaning)


def _tensors(file: File) -> Iterator[Measurement]:
    """Measure decoding and multiplying of one tensor per codec on each backend."""
    for tensor in _largest_matrices(file):
        for backend in sorted(file.registry.backends):
            for what, prepare in (("decode", _decode), ("linear", _linear)):
                codec = str(tensor.spec.encodings[0].codec)
                common: dict[str, Any] = {"what": what, "backend": backend, "codec": codec, "tensor": tensor.name}
                try:
                    of, size, limit, call = prepare(tensor, backend)
                    seconds, limit_seconds = best([call, limit])
                except SquishError as error:
                    yield Measurement(of="", refused=error.message, **common)
                    continue
                yield Measurement(
                    of=of, size=size, seconds=seconds, rate=size / seconds, ratio=limit_seconds / seconds, **common
                )


Prepared = tuple[str, int, Callable[[], object], Callable[[], object]]
"""Name of the limit, size in bytes, call that measures the limit, call to measure."""


def _decode(tensor: Tensor, backend: str) -> Prepared:
    """Decode all values to float32, into a reused array."""
    weight = tensor.load(backend, op="dense")
    size = 4 * tensor.spec.elements
    out = aligned_memory(size).reshape(tensor.shape)
    return "set", size, filling(size), lambda: weight.dense(dtype="f32", out=out)


def _linear(tensor: Tensor, backend: str) -> Prepared:
    """Multiply with one vector."""
    import numpy as np

    weight = tensor.load(backend)
    x = np.random.default_rng(1).standard_normal((1, tensor.shape[-1]), np.float32)
    size = max(tensor.spec.encodings[0].stored, 4)
    return "read", size, reading(size), lambda: weight.linear(x)


def _largest_matrices(file: File) -> Iterable[Tensor]:
    """Return the largest matrix of each codec with at most `LARGEST` elements."""
    largest: dict[str, Tensor] = {}
    for name in file:
        tensor = file[name]
        spec = tensor.spec
        if spec.encodings and len(spec.shape) == 2 and 0 < spec.elements <= LARGEST:
            codec = str(spec.encodings[0].codec)
            if codec not in largest or largest[codec].spec.elements < spec.elements:
                largest[codec] = tensor
    return largest.values()


def _opening(target: Any, file: File, limits: MachineRates) -> Measurement:
    """Measure opening, relative to reading the whole file."""
    (seconds,) = best([lambda: opening.open(target, registry=file.registry).close()])
    size = file.size
    rate = size / seconds
    ratio = rate / limits.file if limits.file else None
    return Measurement(what="open", of="file", size=size, seconds=seconds, rate=rate, ratio=ratio)
