"""Files by URL, 20 ms a request: opening, slices, rows, whole models; obstore by itself is the probe beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import oracles
from obstore.store import HTTPStore

import squish_core as squish
from benchmarks import remote_server
from benchmarks.table import Row, markdown
from squish_core.api import Typed

PIECE, IN_FLIGHT = 8 << 20, 16


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
    """Medians of interleaved runs; what one run requests and fetches stands in the note."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, 40 if quick else 300)
        with server(folder) as base:
            return measured(folder, base, 3 if quick else 5)


def make_files(folder: Path, count: int) -> None:
    """A GGUF with a head of 16 MB, and a safetensors file, of `count` tensors of 3.3 MB and 1 MB."""
    random = np.random.default_rng(0)
    words = [f"token{number:06}{'x' * (number % 24)}" for number in range(260_000)]
    meta = {"tokenizer.ggml.tokens": Typed("array:str", words), "tokenizer.ggml.merges": Typed("array:str", words)}
    values = random.standard_normal((800, 2048), np.float32).astype(np.float16)
    squish.save(folder / "model.gguf", {f"blk.{n}.ffn_up.weight": values for n in range(count)}, metadata=meta)
    small = random.standard_normal((512, 512), np.float32)
    squish.save(folder / "weights.safetensors", {f"w{n}": small for n in range(count)})


def measured(folder: Path, base: str, rounds: int) -> str:
    """The table."""
    gguf, store = f"{base}/model.gguf", HTTPStore.from_url(base, client_options={"allow_http": True})
    size = (folder / "model.gguf").stat().st_size
    file = squish.open(gguf)
    names = list(file)
    random = np.random.default_rng(1)
    picked = random.integers(0, (len(names), 799), (100, 2))
    slices = [(names[int(number)], int(row)) for number, row in picked]
    tensor, every = file[names[0]], slice(0, 800, 8)
    ranges = [place(file, tensor_name, row) for tensor_name, row in slices]
    strided = [place(file, names[0], row) for row in range(0, 800, 8)]
    target = folder / "copy.gguf"

    def probe(pieces: list[tuple[int, int]]) -> Callable[[], object]:
        def fetch(piece: tuple[int, int]) -> object:
            return obstore.get(store, "model.gguf", options={"range": piece}).bytes()

        def call() -> object:
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                return list(pool.map(fetch, pieces))

        return call

    whole = probe([(start, min(start + PIECE, size)) for start in range(0, size, PIECE)])
    calls: dict[str, tuple[Callable[[], object], dict[str, Callable[[], object]], str, int]] = {
        "open safetensors": (lambda: squish.open(f"{base}/weights.safetensors").close(), {}, "<= 0.08 s", 0),
        "open GGUF": (lambda: squish.open(gguf).close(), {}, "<= 0.8 s", 0),
        "100 rows of many tensors": (
            lambda: slices_of(file, slices), {"probe": probe(ranges)}, "<= 1.2x probe, 0.25 s", 0
        ),
        "100 rows of one tensor, every 8th": (
            lambda: tensor[every],
            {"get_ranges": lambda: obstore.get_ranges(store, "model.gguf", starts=[a for a, _ in strided],
                                                      ends=[b for _, b in strided])}, "<= 0.06 s", 0,
        ),
        "all tensors into memory": (file.numpy, {"probe": whole}, "<= 1.25x probe", size),
        "a GGUF copy": (lambda: squish.convert(file, target), {"probe": whole}, "<= 1.25x probe", size),
    }  # fmt: skip
    rows, notes = [], []
    for label, (call, peers, target_text, nbytes) in calls.items():
        counts(base)
        call()
        requests, fetched = counts(base)
        notes.append(f"{label}: {requests} requests, {fetched:,} bytes")
        seconds = oracles.interleave({"squish": call, **peers}, rounds)
        rows.append(Row(label, seconds.pop("squish"), seconds, nbytes or fetched, target_text))
    file.close()
    note = (
        f"{remote_server.LATENCY * 1000:.0f} ms a request over loopback, a GGUF of {size / 1e9:.2f} GB. "
        + "; ".join(notes)
        + "."
    )
    return markdown("Files by URL", note, rows)


def slices_of(file: squish.File, slices: list[tuple[str, int]]) -> list[np.ndarray]:
    """One row of each of these tensors, several at once."""
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return list(pool.map(lambda each: file[each[0]][each[1]], slices))


def place(file: squish.File, name: str, row: int) -> tuple[int, int]:
    """Where a row's bytes begin and end in the file."""
    (segment,) = file[name].spec.encodings[0].parts["data"].segments
    width = segment.length // file[name].shape[0]
    return segment.offset + row * width, segment.offset + (row + 1) * width


def counts(base: str) -> Any:
    """Requests and bytes since the last look."""
    with urllib.request.urlopen(f"{base}/counts") as answer:
        return json.load(answer)
