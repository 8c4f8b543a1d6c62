"""SQUIZD's codecs, a file of a gigabyte opened beside a memory map, and the memory of a conversion."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import oracles
import zstandard
from squish_testing.codecs import read_region

import squish_core as squish
from benchmarks import data
from benchmarks.table import Row, markdown
from squish_core.api import Codec, CodecSpec, TensorSpec
from squish_core.codecs.regions import full
from squish_core.plugins.registry import registry

SHAPE = (2048, 4096)
CODECS = {
    "INT4": CodecSpec("squizd.int4", {"group_size": 64}), "INT2": CodecSpec("squizd.int2", {"group_size": 64}),
    "TCA-TBE": CodecSpec("tca_tbe"),
    "mask over INT4": CodecSpec("masked", {"block_size": 64, "sparsity": 0.5},
                                inner=CodecSpec("squizd.int4", {"group_size": 64})),
}  # fmt: skip
MEMORY = """
import resource, sys, squish_core as squish
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
squish.convert(sys.argv[1], sys.argv[2], encode="int4:group_size=64")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)
"""


def run(quick: bool) -> str:
    """Rates of the codecs, TCA-TBE beside its peers, opening, converting."""
    shape = (256, 4096) if quick else SHAPE
    rows = [row for name in CODECS for row in coding(name, shape)]
    rows += lossless(shape, quick)
    note = f"{shape[0]}x{shape[1]} seeded normal weights, one thread; rates count decoded bytes."
    return "\n".join([markdown("SQUIZD codecs", note, rows), files(8 if quick else data.LARGE[0])])


def coding(name: str, shape: tuple[int, int]) -> list[Row]:
    """One codec, out of its parts into a reused array and back."""
    spec, codec, values = prepared(CODECS[name], shape)
    parts: Any = codec.encode(values)
    out = np.empty(shape, values.dtype)
    seconds = oracles.interleave(
        {
            "decode": lambda: read_region(codec, parts, spec, full(shape), out),
            "encode": lambda: codec.encode(values),
        }
    )
    return [Row(f"{name}: {step}", duration, {}, out.nbytes) for step, duration in seconds.items()]


def prepared(codec_spec: CodecSpec, shape: tuple[int, int]) -> tuple[TensorSpec, Codec, np.ndarray]:
    """Spec, codec with complete parameters, and values."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32) / 50
    dtype = "bf16" if codec_spec.id == "tca_tbe" else "f32"
    spec, codec = TensorSpec(name="w", shape=shape, dtype=dtype), registry().codec(codec_spec)
    if dtype == "bf16":
        values = values.astype(ml_dtypes.bfloat16)
    return spec, codec.from_params(codec.fit_params(lambda: iter([values]), spec), codec.inner), values


def lossless(shape: tuple[int, int], quick: bool) -> list[Row]:
    """TCA-TBE, zstd (levels 3 and 19) and, unless quick, zipnn on the same bfloat16 bytes, interleaved."""
    spec, codec, values = prepared(CODECS["TCA-TBE"], shape)
    raw, out = values.tobytes(), np.empty(shape, values.dtype)
    parts: Any = codec.encode(values)
    packers = {f"zstd -{level}": zstandard.ZstdCompressor(level=level) for level in (3, 19)}
    packed = {name: packer.compress(raw) for name, packer in packers.items()}
    sizes = {
        "TCA-TBE": sum(part.nbytes for part in parts.values()),
        **{name: len(done) for name, done in packed.items()},
    }
    ratios = ", ".join(f"{name} {size / len(raw):.3f}" for name, size in sizes.items())
    pack: dict[str, Any] = {"ours": lambda: codec.encode(values)}
    pack |= {name: lambda packer=packer: packer.compress(raw) for name, packer in packers.items()}
    unpack: dict[str, Any] = {"ours": lambda: read_region(codec, parts, spec, full(shape), out)}
    unpack |= {name: lambda done=done: zstandard.decompress(done) for name, done in packed.items()}
    if not quick:
        peer = oracles.peer("zipnn")
        pack["zipnn"] = peer.prepare(zipnn_peer, raw=raw, unpack=False)
        unpack["zipnn"] = peer.prepare(zipnn_peer, raw=raw, unpack=True)
    rows = []
    for step, calls, repeat in (("compress", pack, 3), ("decompress", unpack, 7)):
        seconds = oracles.interleave(calls, repeat)
        rows.append(Row(f"bf16 {step} ({ratios})", seconds.pop("ours"), seconds, len(raw)))
    return rows


def zipnn_peer(raw: bytes, unpack: bool) -> object:
    """Runs in the peer; zipnn changes its input, so each call gets a copy."""
    import zipnn

    if not unpack:
        return lambda: zipnn.ZipNN(bytearray_dtype="bfloat16").compress(bytearray(raw))
    packed = zipnn.ZipNN(bytearray_dtype="bfloat16").compress(bytearray(raw))
    return lambda: zipnn.ZipNN(bytearray_dtype="bfloat16").decompress(bytes(packed))


def files(count: int) -> str:
    """Opening and touching beside np.memmap; what a conversion to INT4 takes of memory."""
    source = data.safetensors(count, data.LARGE[1])
    path = source.with_name(f"{count}.squizd")
    if not path.exists():
        squish.convert(source, path)
    size = path.stat().st_size
    seconds = {
        label: oracles.interleave({"ours": partial(ours, path, touch), "memmap": partial(raw, path, touch)})
        for label, touch in (("open and list", False), ("open and touch every page", True))
    }
    rows = [
        Row(label, times.pop("ours"), times, size, ">= 0.67x" if "touch" in label else "")
        for label, times in seconds.items()
    ]
    packed = source.with_name(f"{count}-int4.squizd")
    used = subprocess.run([sys.executable, "-c", MEMORY, source, packed], capture_output=True, text=True, check=True)
    note = (
        f"{size / 1e9:.2f} GB of f32. Converting it to INT4 took {float(used.stdout):.0f} MB of memory besides the"
        " imports (target: panels and 200 MB)."
    )
    return markdown("A large SQUIZD file", note, rows)


def ours(path: Path, touch: bool) -> object:
    """Every tensor as a view."""
    with squish.open(path) as file:
        return sum(int(file[name].numpy().reshape(-1)[::1024].view(np.uint32).sum()) if touch else 1 for name in file)


def raw(path: Path, touch: bool) -> object:
    """The bytes as one array."""
    mapped = np.memmap(path, np.uint8, "r")
    return int(mapped[::4096].sum()) if touch else mapped.size
