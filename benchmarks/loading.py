"""Open, list, touch, copy, slice and write: 1 GB in 64 tensors, and 20 000 small ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import oracles

import squish_core as squish
from benchmarks import data
from benchmarks.table import Row, markdown

Call = Callable[[], object]


def run(quick: bool) -> str:
    """Both sets, as a section each."""
    large = (8, data.LARGE[1]) if quick else data.LARGE
    small = (2000, data.SMALL[1]) if quick else data.SMALL
    return "\n".join(
        section(f"{count} tensors of {4 * shape[0] * shape[1] / 1e6:.3g} MB", count, shape)
        for count, shape in (large, small)
    )


def section(title: str, count: int, shape: tuple[int, int]) -> str:
    """All operations on one set."""
    source, old = data.safetensors(count, shape), data.ztensor(count, shape, "1.1.1")
    new = data.ztensor(count, shape, "2.1.2")
    size = 4 * count * shape[0] * shape[1]
    rows = [
        measure(f"{label} {path.suffix}", action, path, peers(action, source, old, new), size, cold)
        for path in (source, old)
        for label, action, cold in (
            ("open and list", "views", False),
            ("open and touch every page", "touch", False),
            ("copy all, warm", "copy", False),
            ("copy all, cold", "copy", True),
            ("copy a quarter of each", "part", False),
        )
    ]
    rows += [against_gguf_py(label, action, data.gguf(count, shape)) for label, action in GGUF_ROWS]
    rows.append(writing(source, size))
    return markdown(title, NOTE, rows)


NOTE = """\
f32, seeded. Views are zero-copy; a copy is a fresh array of each tensor. Peers read a file in their own format, so
touching pages also compares the placement of two files in the page cache. "The disk alone" reads the file into reused
buffers. No reader can be faster, so Squish cannot be three times as fast as a peer that takes less than three times as
long as the disk."""
TARGETS = {
    "open and list": "<= 5 ms for 1 GB",
    "open and touch every page": "not slower than safetensors.torch, >= 7x safetensors",
    "copy all, cold": ">= 3x safetensors and every ztensor",
}

GGUF_ROWS = (("open and list .gguf", "views"), ("open and touch every page .gguf", "touch"))


def against_gguf_py(label: str, action: str, path: Path) -> Row:
    """GGUF beside the one library that reads it into NumPy."""
    theirs = oracles.peer("gguf").prepare(gguf_peer, path=str(path), action=action)
    seconds = oracles.interleave({"ours": lambda: ours(path, action), "gguf-py": theirs})
    return Row(label, seconds.pop("ours"), seconds)


def gguf_peer(path: str, action: str) -> Call:
    """Runs in the peer."""
    import gguf

    def run() -> object:
        arrays = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
        if action == "touch":
            return sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in arrays.values())
        return arrays

    return run


def peers(action: str, source: Path, old: Path, new: Path) -> dict[str, tuple[Path, Call | oracles.Timed]]:
    """The peers that can do an operation, each on its own file."""
    table = {
        "safetensors": (source, safetensors_peer),
        "safetensors.torch": (source, torch_peer),
        "ztensor 1.1.1": (old, ztensor1_peer),
        "ztensor 2.1.2": (new, ztensor2_peer),
    }
    environments = ("safetensors", "torch", "ztensor-1.1.1", "ztensor-2.1.2")
    calls: dict[str, tuple[Path, Call | oracles.Timed]] = {"np.memmap": (source, memmap(source, action))}
    for (name, (path, code)), environment in zip(table.items(), environments):
        calls[name] = (path, oracles.peer(environment).prepare(code, path=str(path), action=action))
    return calls


def measure(
    label: str, action: str, path: Path, others: dict[str, tuple[Path, Call | oracles.Timed]], size: int, cold: bool
) -> Row:
    """Ours and the peers in turns."""
    calls: dict[str, Any] = {"ours": (path, lambda: ours(path, action)), **others}
    if cold:
        calls["the disk alone"] = (path, lambda: drain(path))
        calls = {name: after_eviction(file, call) for name, (file, call) in calls.items()}
    else:
        calls = {name: call for name, (_, call) in calls.items()}
    seconds = oracles.interleave(calls)
    nbytes = {"views": 0, "touch": size, "copy": size, "part": size // 4}[action]
    return Row(label, seconds.pop("ours"), seconds, nbytes, TARGETS.get(label.rpartition(" ")[0], ""))


def after_eviction(path: Path, call: Any) -> oracles.Timed:
    """The same call, timed just after its file left the page cache."""
    measure = call.seconds if isinstance(call, oracles.Timed) else oracles.clocked(call)

    def seconds() -> float:
        data.evict(path)
        return float(measure())

    return oracles.Timed(seconds)


def ours(path: Path, action: str) -> object:
    """One operation through the public API."""
    with squish.open(path) as file:
        if action == "copy":
            return file.numpy(copy=True)
        if action == "part":
            return {name: tensor[: tensor.shape[0] // 4].copy() for name, tensor in file.items()}
        arrays = file.numpy()
        return touch_pages(arrays) if action == "touch" else arrays


def drain(path: Path, piece: int = 4 << 20) -> None:
    """Read a file into two buffers that are used again and again: what no reader of it can beat."""
    with path.open("rb") as file, ThreadPoolExecutor(2) as readers:
        buffers = threading.local()

        def fill(offset: int) -> None:
            if not hasattr(buffers, "mine"):
                buffers.mine = bytearray(piece)
            os.preadv(file.fileno(), [buffers.mine], offset)

        list(readers.map(fill, range(0, path.stat().st_size, piece)))


def touch_pages(arrays: dict[str, np.ndarray]) -> int:
    """One byte of every page."""
    return sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in arrays.values())


def memmap(path: Path, action: str) -> Call:
    """NumPy's own mapping of the whole data, as one array: the floor."""

    def run() -> object:
        array = np.memmap(path, np.uint8, "r")
        if action == "copy":
            return np.array(array)
        if action == "part":
            return array[: len(array) // 4].copy()
        return int(array[::4096].sum()) if action == "touch" else array

    return run


def safetensors_peer(path: str, action: str) -> Call:
    """Runs in the peer."""
    from safetensors import safe_open
    from safetensors.numpy import load_file

    def run() -> object:
        if action == "part":
            with safe_open(path, framework="np") as file:
                return {
                    name: file.get_slice(name)[: file.get_slice(name).get_shape()[0] // 4] for name in list(file.keys())
                }
        arrays = load_file(path)
        if action == "touch":
            return sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in arrays.values())
        return arrays

    return run


def torch_peer(path: str, action: str) -> Call:
    """Runs in the peer."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    def run() -> object:
        if action == "part":
            with safe_open(path, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in list(file.keys())}
                return {name: part[: part.get_shape()[0] // 4].clone() for name, part in slices.items()}
        tensors = load_file(path)
        if action == "copy":
            return {name: tensor.clone() for name, tensor in tensors.items()}
        if action == "touch":
            return sum(int(t.view(torch.uint8).reshape(-1)[::4096].sum()) for t in tensors.values())
        return tensors

    return run


def ztensor1_peer(path: str, action: str) -> Call:
    """Runs in the peer."""
    import ztensor

    def run() -> object:
        reader = ztensor.Reader(path)
        arrays = reader.read_tensors(reader.tensor_names)
        if action == "touch":
            return sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in arrays), reader
        if action == "copy":
            return [np.array(array) for array in arrays], reader
        if action == "part":
            return [np.array(array[: len(array) // 4]) for array in arrays], reader
        return arrays, reader

    return run


def ztensor2_peer(path: str, action: str) -> Call:
    """Runs in the peer."""
    import ztensor.numpy

    def run() -> object:
        arrays = ztensor.numpy.load_file(path, copy=action == "copy")
        if action == "touch":
            return sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in arrays.values())
        if action == "part":
            return {name: np.array(array[: len(array) // 4]) for name, array in arrays.items()}
        return arrays

    return run


def writing(source: Path, size: int) -> Row:
    """Write the set as zTensor and as safetensors; the peers save arrays that are in memory already."""
    target = data.FOLDER / "written"
    seconds = oracles.interleave(
        {
            "ours": lambda: squish.convert(source, target.with_suffix(".zt"), to="ztensor:digest=none"),
            "safetensors": oracles.peer("safetensors").prepare(
                write_safetensors, source=str(source), target=str(target.with_suffix(".peer.safetensors"))
            ),
            "ztensor 1.1.1": oracles.peer("ztensor-1.1.1").prepare(
                write_ztensor1, source=str(source), target=str(target.with_suffix(".peer.zt"))
            ),
        },
        repeat=5,
    )
    for path in data.FOLDER.glob("written.*"):
        path.unlink()
    return Row("write (ours: from a file, synced)", seconds.pop("ours"), seconds, size)


def write_safetensors(source: str, target: str) -> Call:
    """Runs in the peer; writes and syncs."""
    import os

    from safetensors.numpy import load_file, save_file

    arrays = load_file(source)

    def run() -> None:
        save_file(arrays, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())

    return run


def write_ztensor1(source: str, target: str) -> Call:
    """Runs in the peer; writes and syncs."""
    import json
    import os

    import ztensor.numpy

    data = np.memmap(source, np.uint8, "r")
    size = int(data[:8].view("<u8")[0])
    arrays = {}
    for name, entry in json.loads(bytes(data[8 : 8 + size])).items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        arrays[name] = np.array(data[begin:end]).view("<f4").reshape(entry["shape"])

    def run() -> None:
        ztensor.numpy.save_file(arrays, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())

    return run
