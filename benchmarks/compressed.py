"""Files that are compressed whole: many zstd frames on one thread and on two, beside zstandard's one call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracles
import zstandard
from squish_zstd import files
from squish_zstd.api import Zstd
from squish_zstd.codec import LEVEL

from benchmarks.table import Row, markdown
from squish_core.api import Limits, open_source

THREADS = (1, 2)


def run(quick: bool) -> str:
    """Unpacking all of a file into memory that is used again; the peer allocates what it returns."""
    values = np.random.default_rng(0).standard_normal((1 << 22) if quick else (1 << 25), np.float32)
    content = values.astype(np.float16).astype(np.float32).tobytes()
    one_frame = zstandard.ZstdCompressor(level=LEVEL).compress(content)
    calls = {f"{threads} threads": unpacking(content, threads) for threads in THREADS}
    calls["zstandard one-shot"] = lambda: zstandard.ZstdDecompressor().decompress(one_frame)
    seconds = oracles.interleave(calls, 3 if quick else 9)
    one, two = (seconds.pop(f"{threads} threads") for threads in THREADS)
    rows = [
        Row("unpack, one thread", one, seconds, len(content), ">= 1.25x one-shot"),
        Row("unpack, two threads", two, {"one thread": one, **seconds}, len(content), ">= 1.9x one thread"),
    ]
    note = (
        f"{len(content) / 1e6:.0f} MB of f32 values that fit f16, level {LEVEL}, in frames of {files.FRAME >> 20} MiB."
    )
    return markdown("Files that are compressed whole", note, rows)


def unpacking(content: bytes, threads: int) -> Callable[[], object]:
    """Reading the content of a packed file on so many threads."""
    packed: list[bytes] = []
    with Zstd().packing(packed.append) as write:
        write(content)
    source, out = Zstd().unpacked(open_source(b"".join(packed)), Limits()), memoryview(bytearray(len(content)))

    def call() -> None:
        files.WORKERS = threads
        source.read_into(0, out)

    call()
    assert out == content
    return call
