"""UQFF: opening a sharded set, NumPy decoding and encoding of its types against MLX and hqq, memory of a conversion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import oracles
from squish_convert.rules import expand
from squish_testing import CountingSource
from squish_testing.codecs import read_region

import squish_core as squish
from benchmarks.data import FOLDER, safetensors
from benchmarks.table import Row, markdown
from squish_core.api import CodecSpec, TensorSpec, open_source
from squish_core.codecs.regions import full
from squish_core.plugins.registry import registry

TYPES = ("hqq1", "hqq2", "hqq3", "hqq4", "hqq8", "afq2", "afq3", "afq4", "afq6", "afq8", "fp8", "mxfp4", "f8q8")
GEMMA = Path(__file__).resolve().parent.parent / "demo-data" / "gemma.gguf"
PEAK = """
import sys, threading
import squish_core as squish
peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.01):
        line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
        peak = max(peak, int(line.split()[1]))
threading.Thread(target=watch, daemon=True).start()
source, target, encode = sys.argv[1:]
squish.convert(source, target, "uqff", encode or None)
done.set()
print(peak)
"""


def run(quick: bool) -> str:
    """Types one by one, one thread."""
    shape = (512, 2048) if quick else (2048, 2048)
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    values = (np.random.default_rng(0).standard_normal(shape, np.float32) * 0.05).astype(np.float32)
    rows = [opening()]
    for name in TYPES:
        codec = expand(CodecSpec(name), "uqff", registry())
        rows += coding(name, spec, values, codec.id, dict(codec.params))
    note = (
        f"{shape[0]}x{shape[1]} f32 weights, NumPy on one thread; Squish reuses arrays. Rates count f32 bytes. "
        "MLX runs on the CPU. The set has 64 layers of 2048x2048 in shards of 100 MB. " + memory()
    )
    return markdown("UQFF", note, rows)


def opening() -> Row:
    """A set of shards: no byte of a weight is read."""
    folder = FOLDER / "uqff"
    if not folder.exists():
        squish.convert(safetensors(64, (2048, 2048)), folder, "uqff:max_shard_size=100MB", "*=afq4")
    source = CountingSource(open_source(folder))
    squish.open(source)
    read = sum(length for _, _, length in source.log)
    seconds = oracles.interleave({"ours": lambda: squish.open(folder).close()})
    shards = len(list(folder.glob("*.uqff")))
    return Row(f"open {shards} shards (reads {read:,} bytes)", seconds["ours"], {})


def coding(name: str, spec: TensorSpec, values: np.ndarray, codec_id: str, options: dict[str, Any]) -> list[Row]:
    """Encoding and decoding of one type."""
    params = registry().codec_type(codec_id).params_for(spec, options)
    codec = registry().codec(CodecSpec(codec_id, params))
    parts: Any = codec.encode(values)
    out = np.empty(spec.shape, np.float32)
    calls: dict[str, dict[str, Any]] = {
        "encode": {"ours": lambda: codec.encode(values)},
        "decode": {"ours": lambda: read_region(codec, parts, spec, full(spec.shape), out)},
    }
    if name.startswith("afq"):
        for step, task in (("encode", mlx_quantize), ("decode", mlx_dequantize)):
            calls[step]["mlx"] = oracles.peer("mlx").prepare(task, values=values, bits=params["bits"])
    if name.startswith("hqq"):
        for step, task in (("encode", hqq_quantize), ("decode", hqq_dequantize)):
            calls[step]["hqq"] = oracles.peer("hqq").prepare(task, values=values, bits=params["bits"])
    rows = []
    for step, candidates in calls.items():
        seconds = oracles.interleave(candidates, 3 if step == "encode" else 7)
        rows.append(Row(f"{step} {name}", seconds.pop("ours"), seconds, values.nbytes))
    return rows


def memory() -> str:
    """Peak anonymous memory of converting the Gemma file (`make demo MODEL=gemma` fetches it), sampled."""
    if not GEMMA.exists():
        return "The Gemma file is not here; its memory was not measured."
    peaks = []
    for encode in ("", "q8_0"):
        target = FOLDER / f"gemma-{encode or 'kept'}"
        done = subprocess.run(
            [sys.executable, "-c", PEAK, GEMMA, target, encode], capture_output=True, text=True, check=True
        )
        peaks.append(f"{encode or 'codes kept'} {int(done.stdout) / 1024:.0f} MiB")
        for file in target.iterdir():
            file.unlink()
        target.rmdir()
    return f"Converting the Gemma file ({GEMMA.stat().st_size >> 20} MiB), peak own memory: {', '.join(peaks)}."


def mlx_quantize(values: np.ndarray, bits: int) -> object:
    """Runs in the peer."""
    import mlx.core as mx

    weights = mx.array(values)
    return lambda: mx.eval(mx.quantize(weights, group_size=64, bits=bits))


def mlx_dequantize(values: np.ndarray, bits: int) -> object:
    """Runs in the peer."""
    import mlx.core as mx

    parts = mx.quantize(mx.array(values), group_size=64, bits=bits)
    mx.eval(parts)
    return lambda: mx.eval(mx.dequantize(*parts, group_size=64, bits=bits))


def hqq_quantize(values: np.ndarray, bits: int) -> object:
    """Runs in the peer."""
    import torch
    from hqq.core.quantize import Quantizer

    torch.set_num_threads(1)
    weights = torch.from_numpy(values.copy())
    return lambda: Quantizer.quantize(weights, nbits=bits, axis=0, device="cpu")


def hqq_dequantize(values: np.ndarray, bits: int) -> object:
    """Runs in the peer."""
    import torch
    from hqq.core.quantize import Quantizer

    torch.set_num_threads(1)
    codes, meta = Quantizer.quantize(torch.from_numpy(values.copy()), nbits=bits, axis=0, device="cpu")
    return lambda: Quantizer.dequantize(codes, meta)
