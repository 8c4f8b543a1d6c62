"""Files by URL, 20 ms a request: opening, slices, rows, whole models; obstore by itself is the probe beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import obstore
import oracles
from obstore.store import HTTPStore

import squish_core as squish
from benchmarks import remote_server
from benchmarks.table import Row, markdown
from squish_core.api import Typed

PIECE, IN_FLIGHT = 8 << 20, 16
Call = Callable[[], object] | oracles.Timed


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server of a folder in a process of its own."""
    child = subprocess.Popen([sys.executable, remote_server.__file__], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.terminate()
        child.wait()


def run(quick: bool) -> str:
    """Medians of interleaved runs; the note lists the requests and bytes of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, 40 if quick else 300)
        with server(folder) as base:
            return measure(folder, base, 3 if quick else 5)


def make_files(folder: Path, count: int) -> None:
    """A GGUF with a head of 16 MB, and a safetensors file, of `count` tensors of 3.3 MB and 1 MB."""
    random = np.random.default_rng(0)
    words = [f"token{number:06}{'x' * (number % 24)}" for number in range(260_000)]
    meta = {"tokenizer.ggml.tokens": Typed("array:str", words), "tokenizer.ggml.merges": Typed("array:str", words)}
    values = random.standard_normal((800, 2048), np.float32).astype(np.float16)
    squish.save(folder / "model.gguf", {f"blk.{n}.ffn_up.weight": values for n in range(count)}, metadata=meta)
    small = random.standard_normal((512, 512), np.float32)
    squish.save(folder / "weights.safetensors", {f"w{n}": small for n in range(count)})
    squish.save(folder / "half.safetensors", {"layer.weight": np.tile(values, (6, 1))})
    for name in ("q4_k", "q8_0", "q4_0"):
        squish.convert(folder / "half.safetensors", folder / f"{name}.gguf", encode=name)
    squish.convert(folder / "half.safetensors", folder / "digests.zt", "ztensor:digest=sha256")


ACTIONS = {
    "copy": ("half.safetensors", "gguf", None), "copy with digests": ("digests.zt", "safetensors", None),
    "encode": ("half.safetensors", "gguf", "q8_0"), "decode": ("q4_k.gguf", "safetensors", "f16"),
    "repack": ("q4_0.gguf", "mlx", None), "parameters of the whole tensor": ("half.safetensors", "gguf", "nvfp4"),
}  # fmt: skip
"""What a conversion does -> the file, the target and the rule that make it do that."""


class Probe:
    """obstore by itself, with threads, on one file of the server."""

    def __init__(self, base: str, name: str, target: Path) -> None:
        self._store = HTTPStore.from_url(base, client_options={"allow_http": True})
        self._name, self.target = name, target

    def ranges(self, pieces: list[tuple[int, int]]) -> list[object]:
        """The ranges (start, stop), kept in memory."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return list(pool.map(self._fetch, pieces))

    def batch(self, pieces: list[tuple[int, int]]) -> object:
        """The ranges by one call."""
        starts, ends = zip(*pieces)
        return obstore.get_ranges(self._store, self._name, starts=starts, ends=ends)

    def onto_disk(self, pieces: list[tuple[int, int]]) -> None:
        """The ranges at their places in a file, synced."""
        with self.target.open("wb") as file:

            def copy(piece: tuple[int, int]) -> None:
                os.pwrite(file.fileno(), self._fetch(piece), piece[0])

            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                list(pool.map(copy, pieces))
            os.fsync(file.fileno())

    def _fetch(self, piece: tuple[int, int]) -> Any:
        return obstore.get(self._store, self._name, options={"range": piece}).bytes()


def measure(folder: Path, base: str, rounds: int) -> str:
    """Measure every row; returns the table."""
    gguf, probe = f"{base}/model.gguf", Probe(base, "model.gguf", folder / "probe.gguf")
    size = (folder / "model.gguf").stat().st_size
    pieces = [(start, min(start + PIECE, size)) for start in range(0, size, PIECE)]
    file = squish.open(gguf)
    names = list(file)
    random = np.random.default_rng(1)
    slices = [(names[int(number)], int(row)) for number, row in random.integers(0, (len(names), 799), (100, 2))]
    tensor, every = file[names[0]], slice(0, 800, 8)
    ranges = [byte_range(file, tensor_name, row) for tensor_name, row in slices]
    strided = [byte_range(file, names[0], row) for row in range(0, 800, 8)]
    web, target = fsspec.filesystem("http"), folder / "copy.gguf"
    starts, ends = (list(column) for column in zip(*ranges))

    def local() -> None:
        with squish.open(folder / "model.gguf") as opened:
            squish.convert(opened, target, encode="q8_0")

    calls: dict[str, tuple[Call, dict[str, Call], str, int]] = {
        "open safetensors": (lambda: squish.open(f"{base}/weights.safetensors").close(), {}, "<= 0.08 s", 0),
        "open GGUF": (lambda: squish.open(gguf).close(), {}, "<= 0.8 s", 0),
        "100 rows of many tensors": (
            lambda: slices_of(file, slices),
            {"probe": lambda: probe.ranges(ranges), "fsspec": lambda: web.cat_ranges([gguf] * 100, starts, ends)},
            "<= 1.2x probe, 0.25 s", 0,
        ),
        "100 rows of one tensor, every 8th": (
            lambda: tensor[every], {"get_ranges": lambda: probe.batch(strided)}, "<= 0.06 s", 0
        ),
        "all tensors into memory": (file.numpy, {"probe": lambda: probe.ranges(pieces)}, "<= 1.25x probe", size),
        "a GGUF copy": (
            new_file(target, lambda: squish.convert(file, target)),
            {"probe onto disk": new_file(probe.target, lambda: probe.onto_disk(pieces))}, "<= 1.25x probe", size,
        ),
        "a GGUF of q8_0": (
            new_file(target, lambda: squish.convert(file, target, encode="q8_0")),
            {"of a local file": new_file(target, local), "probe": lambda: probe.ranges(pieces)},
            "<= local + 1.25x probe", size,
        ),
        **virtual_calls(folder),
    }  # fmt: skip
    rows, notes = [], []
    for label, (call, peers, target_text, nbytes) in calls.items():
        counts(base)
        call.seconds() if isinstance(call, oracles.Timed) else call()
        requests, fetched = counts(base)
        notes += [f"{label}: {requests} requests, {fetched:,} bytes"] if requests else []
        seconds = oracles.interleave({"squish": call, **peers}, rounds)
        rows.append(Row(label, seconds.pop("squish"), seconds, nbytes, target_text))
    file.close()
    note = (
        f"{remote_server.LATENCY * 1000:.0f} ms per request over loopback, a GGUF of {size / 1e9:.2f} GB. "
        f"{'; '.join(notes)}.\n\n"
        f"Bytes that a conversion fetches, relative to the file (at most 1.02): {', '.join(shares(folder, base))}."
    )
    return markdown("Files by URL", note, rows)


def new_file(target: Path, call: Callable[[], object]) -> oracles.Timed:
    """A call that writes `target`, timed on a disk at rest: removing the file of the last round counts for nobody."""

    def seconds() -> float:
        target.unlink(missing_ok=True)
        os.sync()
        return oracles.clocked(call)()

    return oracles.Timed(seconds)


def virtual_calls(folder: Path) -> dict[str, Any]:
    """Random reads of 4 KiB from a GGUF that is not written: of copied and of encoded tensors of 1 MiB."""
    random = np.random.default_rng(2)
    calls: dict[str, Any] = {}
    for label, rule, limit in (("copied", None, "<= 0.05 s"), ("encoded", "q8_0", "<= 0.3 s")):
        places = random.random(100)

        def read(rule: str | None = rule, places: Any = places) -> None:
            with squish.open(folder / "weights.safetensors") as file:
                source: Any = squish.as_format(file, "gguf", encode=rule)
                for share in places:
                    source.read(int(share * (source.size - 4096)), 4096)

        calls[f"100 reads of 4 KiB of a virtual GGUF, {label}"] = (read, {}, limit, 0)
    return calls


def shares(folder: Path, base: str) -> Iterator[str]:
    """The share of its file that each action fetches."""
    for action, (name, to, rule) in ACTIONS.items():
        with tempfile.TemporaryDirectory() as target:
            counts(base)
            squish.convert(f"{base}/{name}", Path(target, "out"), to, rule, requantize=True)
        yield f"{action} {counts(base)[1] / (folder / name).stat().st_size:.2f}"


def slices_of(file: squish.File, slices: list[tuple[str, int]]) -> list[np.ndarray]:
    """One row of each of these tensors, several at once."""
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return list(pool.map(lambda name, row: file[name][row], *zip(*slices)))


def byte_range(file: squish.File, name: str, row: int) -> tuple[int, int]:
    """Start and stop of a row in the file."""
    (segment,) = file[name].spec.encodings[0].parts["data"].segments
    width = segment.length // file[name].shape[0]
    return segment.offset + row * width, segment.offset + (row + 1) * width


def counts(base: str) -> Any:
    """Requests and bytes since the last call."""
    with urllib.request.urlopen(f"{base}/counts") as answer:
        return json.load(answer)
