"""zTensor beside every released generation of its own library: raw files large and small, and zstd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import oracles

import squish_core as squish
from benchmarks import data, loading
from benchmarks.table import Row, markdown

Call = Callable[[], object]
LARGE = (16, (2048, 2048))  # 268 MB of f32: all are written and read some hundred times
COMPRESSED = (4, (2048, 2048))  # 67 MB of f32 values that fit f16
VERSIONS = ("1.1.1", "1.2.3", "2.1.2")
ACTIONS = (
    ("open and views", "views", False, "zero-copy within 1.2x; small v2 >= 1x of 2.1.2"),
    ("views, every page touched, warm", "touch", False, ""),
    ("copy all, warm", "copy", False, ""),
    ("copy all, cold", "copy", True, ">= 3x each (large)"),
)


def run(quick: bool) -> str:
    """A section for each set."""
    large, small = ((4, LARGE[1]), (2000, data.SMALL[1])) if quick else (LARGE, data.SMALL)
    sections = [raw(count, shape) for count, shape in (large, small)]
    return "\n".join([*sections, compressed((2, COMPRESSED[1]) if quick else COMPRESSED)])


def raw(count: int, shape: tuple[int, int]) -> str:
    """Reading and writing of uncompressed files; each library reads the file it wrote, and we read both wires."""
    source, size = data.safetensors(count, shape), 4 * count * shape[0] * shape[1]
    files = {version: stored(source, f"{count}-raw", version, None) for version in VERSIONS}
    rows = [
        reading(f"{what}, wire {wire}", action, files, wire, size, cold, target)
        for what, action, cold, target in ACTIONS
        for wire in ("1.1", "2")
    ]
    rows += [manifest(files["1.1.1"]), verifying(files["2.1.2"], size)]
    rows += [
        writing(source, size, wire, f"ztensor:wire={wire}{more}", None, ">= 0.8x of the fastest (large)")
        for wire, more in (("1.1", ""), ("2", ",flavor=aligned"))
    ]
    return markdown(f"zTensor: {count} tensors of {size / count / 1e6:.3g} MB", NOTE, rows)


NOTE = (
    "Each library reads its own file (2.1.2: aligned to 4 KiB); Squish reads both wires. Writing starts from memory "
    "(peers: arrays, Squish: the bytes of a safetensors file) and ends with a sync; wire 2 has digests in both."
)


def compressed(key: tuple[int, tuple[int, int]]) -> str:
    """zstd level 3 on all cores."""
    count, shape = key
    source, size = data.safetensors(count, shape, halves=True), 4 * count * shape[0] * shape[1]
    files = {version: stored(source, f"{count}-zstd", version, 3) for version in VERSIONS}
    rows = [
        reading(f"copy all, warm, wire {wire}", "copy", files, wire, size, False, ">= 1.3x") for wire in ("1.1", "2")
    ]
    rows += [writing(source, size, wire, f"ztensor:wire={wire},encoding=zstd", 3, ">= 1.3x") for wire in ("1.1", "2")]
    return markdown(f"zTensor: zstd, {count} tensors of 16.8 MB", "f32 values that fit f16, level 3.", rows)


def reading(what: str, action: str, files: dict[str, Path], wire: str, size: int, cold: bool, target: str) -> Row:
    """Ours and the peers in turns, each on its own file."""
    path = files["2.1.2" if wire == "2" else "1.1.1"]
    calls: dict[str, tuple[Path, Any]] = {"ours": (path, lambda: loading.ours(path, action))}
    for version, code in zip(VERSIONS, (loading.ztensor1_peer, ztensor12_peer, loading.ztensor2_peer)):
        timed = oracles.peer(f"ztensor-{version}").prepare(code, path=str(files[version]), action=action)
        calls[version] = (files[version], timed)
    measured = {name: loading.after_eviction(file, call) if cold else call for name, (file, call) in calls.items()}
    seconds = oracles.interleave(measured)
    return Row(what, seconds.pop("ours"), seconds, 0 if action == "views" else size, target)


def manifest(path: Path) -> Row:
    """What opening costs beside decoding the same manifest."""
    blob = path.read_bytes()
    packed = blob[-16 - int.from_bytes(blob[-16:-8], "little") : -16]
    seconds = oracles.interleave({"ours": lambda: squish.open(path), "cbor2.loads": lambda: cbor2.loads(packed)})
    return Row("open, wire 1.1", seconds.pop("ours"), seconds, target=">= 0.4x of cbor2.loads")


def verifying(path: Path, size: int) -> Row:
    """Every digest."""
    theirs = oracles.peer("ztensor-2.1.2").prepare(verify_peer, path=str(path))
    seconds = oracles.interleave({"ours": lambda: squish.verify(path, deep=True), "2.1.2": theirs})
    return Row("verify --deep, wire 2", seconds.pop("ours"), seconds, size)


def writing(source: Path, size: int, wire: str, to: str, level: int | None, target: str) -> Row:
    """All from memory: the peers start from arrays, Squish from a file in memory."""
    ours, stored_bytes = data.FOLDER / "ours.zt", source.read_bytes()
    calls: dict[str, Any] = {"ours": lambda: squish.convert(stored_bytes, ours, to=to)}
    for version in VERSIONS:
        calls[version] = oracles.peer(f"ztensor-{version}").prepare(
            write_peer, source=str(source), target=str(ours.with_suffix(f".{version}.zt")), level=level
        )
    seconds = oracles.interleave(calls, repeat=5)
    for path in data.FOLDER.glob("ours.*"):
        path.unlink()
    return Row(f"write, wire {wire}", seconds.pop("ours"), seconds, size, target)


def stored(source: Path, name: str, version: str, level: int | None) -> Path:
    """The set as that version of the library writes it."""
    path = data.FOLDER / f"{name}-{version}.zt"
    if not path.exists():
        peer = oracles.peer(f"ztensor-{version}")
        peer.prepare(write_peer, source=str(source), target=str(path), level=level).seconds()
    return path


def write_peer(source: str, target: str, level: int | None) -> Call:
    """Runs in the peer; writes and syncs."""
    import json
    import os

    import ztensor

    data = np.memmap(source, np.uint8, "r")
    size = int(data[:8].view("<u8")[0])
    arrays = {}
    for name, entry in json.loads(bytes(data[8 : 8 + size])).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            arrays[name] = np.array(data[begin:end]).view("<f4").reshape(entry["shape"])

    def run() -> None:
        if hasattr(ztensor, "verify"):  # 2.x
            encoding = "zt.zstd-seekable/1" if level else None
            writer = ztensor.Writer(target, canonical=False, align=4096)
            for name, array in arrays.items():
                view = array.reshape(-1).view(np.uint8)
                writer.add(name, view, list(array.shape), "f32", encoding=encoding)
            writer.finish()
        else:
            with ztensor.Writer(target) as writer:
                for name, array in arrays.items():
                    if hasattr(writer, "add_tensor"):
                        writer.add_tensor(name, array, compress=level or False)
                    else:
                        writer.write_numpy(name, array, compress=level or False)
        with open(target, "rb") as file:
            os.fsync(file.fileno())

    return run


def ztensor12_peer(path: str, action: str) -> Call:
    """Runs in the peer."""
    import ztensor

    def run() -> object:
        reader = ztensor.Reader(path)
        arrays = reader.read_numpy(list(reader.keys()), copy=action == "copy")
        if action == "touch":
            return sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in arrays.values())
        return arrays, reader

    return run


def verify_peer(path: str) -> Call:
    """Runs in the peer."""
    import ztensor

    return lambda: ztensor.verify(path, deep=True)
