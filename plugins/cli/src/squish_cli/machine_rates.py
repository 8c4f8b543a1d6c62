"""This machine's peak memory and file rates: apart from `benchmark`, which compares plugins with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from squish_core.concurrency import Pool, workers
from squish_core.io.source import Source

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
    return max((int(size.read_text().strip().rstrip("K")) << 10 for size in sizes), default=32 << 20)


def filling(size: int) -> Callable[[], object]:
    """A call that fills memory on all cores; NumPy releases the GIL."""
    import numpy as np

    threads = workers()
    if size < SHARED or threads == 1:
        return partial(aligned_memory(size).fill, 0)
    pool, pieces = Pool(threads), np.array_split(aligned_memory(size), threads)
    return lambda: pool.map(lambda piece: piece.fill(0), pieces)


def reading(size: int) -> Callable[[], object]:
    """A call that reads memory on all cores, through BLAS."""
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
