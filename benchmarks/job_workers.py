"""Workers of a job: how many tasks two of them finish, what the journal costs, and their memory."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing import active_children, get_context
from pathlib import Path
from unittest.mock import patch

import numpy as np
from squish_convert.job.journal import Journal

import squish_core as squish
from benchmarks.data import write_header
from benchmarks.job_model import Rates
from squish_core.api import CodecSpec

SHAPE = (8192, 4096)
TASK = 20 << 20
"""A tensor of SHAPE in q4_k has 18.9 MB."""


def workers(folder: Path, quick: bool, rates: Rates) -> list[str]:
    """The rows of the table; completes `rates`."""
    rounds, count = (1, 4) if quick else (2, 96)
    source = folder / "in.safetensors"
    repeated_checkpoint(source, count)
    os.environ["SQUISH_THREADS"] = "1"
    cases = {"without a scheduler": None, "`local:1`": "local:1", "`local:2`": "local:2"}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    appends, memory = list[float](), list[tuple[int, int]]()
    for number in range(rounds):
        for name, scheduler in cases.items():
            if number and scheduler is None:
                continue
            with timed_appends(appends if scheduler == "local:2" else []), sampled_memory(memory):
                started = time.perf_counter()
                job = squish.Job(scheduler, task_bytes=TASK) if scheduler else None
                squish.convert(source, folder / "out.gguf", encode="q4_k", job=job)
                seconds[name].append(time.perf_counter() - started)
    del os.environ["SQUISH_THREADS"]
    best = {name: min(values) for name, values in seconds.items()}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        imports = pool.submit(imported_memory).result()
    anonymous, resident = (max(values) for values in zip(*memory))
    elements, nbytes = count * SHAPE[0] * SHAPE[1], source.stat().st_size
    journal = sum(appends) / sum(seconds["`local:2`"])
    rates.values, rates.line, rates.hash = elements / best["`local:1`"], statistics.median(appends), hash_rate()
    return [
        (
            f"{nbytes / 1e9:.1f} GB of bf16 to q4_k, one thread in each process, {count} tasks of one tensor; minimum of "
            f"{rounds} rounds in turns, on {os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f}."
        ),
        "",
        "| | | |",
        "|---|---|---|",
        *(f"| {name} | {best[name]:.1f} s | {elements / best[name] / 1e6:.0f} million values/s |" for name in cases),
        (
            f"| two workers against one | {best['`local:1`'] / best['`local:2`']:.2f}x | target: 1.8x on two cores that "
            "are free |"
        ),
        (
            f"| a line of the journal, synced | {statistics.median(appends) * 1e3:.1f} ms | {journal * 100:.1f} % of the "
            "job |"
        ),
        (
            f"| peak memory of a worker | {anonymous / 1e6:.0f} MB | {(anonymous - imports) / 1e6:.0f} MB above its "
            "imports; bound: 200 MB and two panels of each part |"
        ),
        f"| and with pages of mapped files | {resident / 1e6:.0f} MB | of a source of {nbytes / 1e9:.1f} GB |",
        "",
    ]


def hash_rate() -> float:
    """Bytes that a core hashes in a second."""
    data = bytes(64 << 20)
    started = time.perf_counter()
    sha256(data)
    return len(data) / (time.perf_counter() - started)


def repeated_checkpoint(path: Path, count: int) -> None:
    """Tensors of bf16 with the same random values."""
    nbytes = 2 * SHAPE[0] * SHAPE[1]
    header = {
        f"model.layers.{n}.mlp.up_proj.weight": {
            "dtype": "BF16",
            "shape": list(SHAPE),
            "data_offsets": [n * nbytes, (n + 1) * nbytes],
        }
        for n in range(count)
    }
    values = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    data = (values.view(np.uint32) >> 16).astype(np.uint16)
    with path.open("wb") as file:
        write_header(file, header)
        for _ in range(count):
            file.write(data.data)


@contextmanager
def timed_appends(seconds: list[float]) -> Iterator[None]:
    """Add the seconds of each line of a journal."""
    append = Journal.append

    def timed(self: Journal, entry: dict[str, object]) -> None:
        started = time.perf_counter()
        append(self, entry)
        seconds.append(time.perf_counter() - started)

    with patch.object(Journal, "append", timed):
        yield


@contextmanager
def sampled_memory(peaks: list[tuple[int, int]]) -> Iterator[None]:
    """Add the anonymous and the resident bytes of this process's workers, sampled."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.01):
            peaks.extend(memory for child in active_children() if (memory := memory_of(child.pid or 0)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def memory_of(process: int) -> tuple[int, int] | None:
    """Anonymous and resident bytes of a process; None if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    fields = {key: value for key, _, value in (line.partition(":") for line in lines)}
    if "RssAnon" not in fields:
        return None
    return int(fields["RssAnon"].split()[0]) << 10, int(fields["VmRSS"].split()[0]) << 10


def imported_memory() -> int:
    """Anonymous bytes of a process that has imported what a worker imports."""
    from squish_convert.job import worker

    registry = worker.registry()
    registry.container("gguf")
    registry.encoder(CodecSpec("ggml.q4_k"))
    memory = memory_of(os.getpid())
    return memory[0] if memory else 0
