"""Seeded files to measure on, written once into a cache folder outside the repository's history."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import oracles

import squish_core as squish

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"
LARGE = (64, (2048, 2048))  # 1.07 GB of f32
SMALL = (20_000, (50, 52))  # 10.4 kB each


def safetensors(count: int, shape: tuple[int, int], *, halves: bool = False) -> Path:
    """A safetensors file of `count` f32 arrays, written with nothing but json; `halves` hold f16, for zstd."""
    path = FOLDER / f"{count}{'-halves' if halves else ''}.safetensors"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    nbytes = 4 * shape[0] * shape[1]
    header = {
        f"layer.{i:05}.weight": {"dtype": "F32", "shape": list(shape), "data_offsets": [i * nbytes, (i + 1) * nbytes]}
        for i in range(count)
    }
    rng = np.random.default_rng(0)
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        write_header(file, header)
        for _ in range(count):
            array = rng.standard_normal(shape, np.float32)
            file.write((array.astype(np.float16).astype(np.float32) if halves else array).tobytes())
    os.replace(temporary, path)
    return path


def write_header(file: BinaryIO, header: Mapping[str, Any]) -> None:
    """The header of a safetensors file; the data follows."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def ztensor(count: int, shape: tuple[int, int], version: str) -> Path:
    """The same arrays as the released ztensor of that version writes them."""
    path = FOLDER / f"{count}-{version}.zt"
    if not path.exists():
        oracles.peer(f"ztensor-{version}").run(
            write_ztensor, source=str(safetensors(count, shape)), target=str(path), modern=version.startswith("2")
        )
    return path


def gguf(count: int, shape: tuple[int, int]) -> Path:
    """The same arrays as GGUF, written by Squish; gguf-py reads it too."""
    path = FOLDER / f"{count}.gguf"
    if not path.exists():
        squish.convert(safetensors(count, shape), path)
    return path


def write_ztensor(source: str, target: str, modern: bool) -> None:
    """Runs in the peer."""
    import json

    import ztensor.numpy

    data = np.memmap(source, np.uint8, "r")
    size = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8 : 8 + size]))
    arrays: dict[str, Any] = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        arrays[name] = np.array(data[begin:end]).view("<f4").reshape(entry["shape"])
    ztensor.numpy.save_file(arrays, target)


def evict(path: Path) -> None:
    """Drop a file from the page cache, so that the next read is cold."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
