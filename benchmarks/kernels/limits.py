"""What the machine does at best: read, set and copy memory past the caches, and multiply and add in registers."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import oracles
from attrs import frozen
from squish_cpu.layouts.base import aligned
from squish_cpu.library import library

from benchmarks import data
from benchmarks.kernels import FOURFOLD, ROUNDS, instructions

FMA_ROUNDS = 5_000_000
POOL = ThreadPoolExecutor(os.cpu_count())


@frozen
class Limit:
    """A call, and how many bytes or operations it is about."""

    call: Callable[[], object]
    amount: float

    def seconds(self, measured: float, amount: float) -> float:
        """What the limit takes for another amount, from what the call took."""
        return measured * amount / self.amount


def limits(threads: int = 1) -> dict[str, Limit]:
    """The probes, their ranges divided between threads; ctypes lets go of the interpreter while they run."""
    kernels, fma = library(), fma_peak()
    source, target = (memory(number).ctypes.data for number in (0, 1))
    size = FOURFOLD // threads // 1024 * 1024

    def copy(part: int) -> None:
        ctypes.memmove(target + part * size, source + part * size, size)

    def shared(probe: Callable[[int], object]) -> Callable[[], object]:
        if threads == 1:
            return lambda: probe(0)
        return lambda: list(POOL.map(probe, range(threads)))

    return {
        "read": Limit(shared(lambda part: kernels.read(source + part * size, size)), size * threads),
        "set": Limit(shared(lambda part: kernels.fill(target + part * size, size)), size * threads),
        "copy": Limit(shared(copy), size * threads),
        "FMA": Limit(shared(lambda _: fma(FMA_ROUNDS)), fma(1) * FMA_ROUNDS * threads),
    }


@cache
def memory(number: int) -> np.ndarray:
    """A buffer whose pages are there."""
    buffer = aligned((FOURFOLD,), "i8")
    buffer[:] = number
    return buffer


@cache
def fma_peak() -> Callable[[int], int]:
    """The probe in C, compiled for this machine."""
    data.FOLDER.mkdir(parents=True, exist_ok=True)
    built = data.FOLDER / "fma.so"
    flags = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
    subprocess.run(["cc", *flags, "-o", built, Path(__file__).with_name("fma.c")], check=True)
    probe = ctypes.CDLL(str(built)).fma_peak
    probe.argtypes, probe.restype = [ctypes.c_long], ctypes.c_long
    return probe


def run(quick: bool) -> str:
    """One thread and two."""
    probes = {(name, threads): limit for threads in (1, 2) for name, limit in limits(threads).items()}
    calls = {f"{name} {threads}": limit.call for (name, threads), limit in probes.items()}
    seconds = oracles.interleave(calls, 3 if quick else ROUNDS)
    rates = {key: limit.amount / seconds[f"{key[0]} {key[1]}"] / 1e9 for key, limit in probes.items()}
    lines = [
        f"## The machine's limits (kernels: {instructions()})", "",
        f"{FOURFOLD >> 20} MiB of memory: read, set past the caches, copied (memmove). FMA: f32 in registers.",
        "", "| limit | one thread | two threads | ratio |", "|---|---|---|---|",
    ]  # fmt: skip
    for name in ("read", "set", "copy", "FMA"):
        one, two = rates[name, 1], rates[name, 2]
        unit = "GFLOP/s" if name == "FMA" else "GB/s"
        lines.append(f"| {name} | {one:.1f} {unit} | {two:.1f} {unit} | {two / one:.2f}x |")
    return "\n".join([*lines, ""])
