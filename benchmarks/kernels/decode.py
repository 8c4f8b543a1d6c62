"""Decoding into a reused array, one thread, against filling it and against everybody who decodes the same codec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import oracles
from squish_cpu.layouts.base import aligned

from benchmarks.kernels import CODECS, NUMBERS, ROUNDS, Peer, instructions, judged, limits, peers, section, tensors
from benchmarks.table import Row, Section
from squish_core.api import SquishError
from squish_core.tensor import Tensor

SHAPE = (4096, 4096)
PEERS = {
    "INT4 g32": {"numba": Peer("numba", peers.numba_decode)},
    "MLX 4-bit g64": {"mlx": Peer("mlx", peers.mlx_decode, {"mode": "affine", "group": 64})},
    "MXFP4": {"mlx": Peer("mlx", peers.mlx_decode, {"mode": "mxfp4", "group": 32})},
    **{
        name: {
            "ggml": Peer("ggml", peers.ggml_decode, {"kind": NUMBERS[name]}),
            "gguf-py": Peer("gguf", peers.gguf_decode, {"kind": name}),
        }
        for name in ("Q4_0", "Q8_0", "Q4_K", "Q6_K")
    },
}
LEAST = {
    "INT4 g32": {"set": 0.8},
    "MLX 4-bit g64": {"set": 0.8, "mlx": 20},
    "palette 16": {"set": 0.8},
    "Q4_K": {"set": 0.8, "ggml": 0.95, "gguf-py": 20},
    "Q8_0": {"set": 0.72, "ggml": 0.95, "gguf-py": 10},
    "Q6_K": {"set": 0.72, "ggml": 5, "gguf-py": 20},
    "bitmask 50 %": {"set": 0.72},
}
LEAST_16 = {name: {"set": 0.6 if name == "Q6_K" else 0.8} for name in LEAST if name not in ("Q8_0", "bitmask 50 %")}


def run(quick: bool) -> Section:
    """Each codec to f32 and to bf16."""
    shape = (512, 4096) if quick else SHAPE
    rows, left = [], []
    for name, codec in CODECS.items():
        tensor = tensors(codec, shape)[0]
        try:
            tensor.plan("cpu")
        except SquishError:
            left.append(name)
            continue
        rows += list(decode(name, tensor, 3 if quick else ROUNDS))
    note = (
        f"{shape[0]}x{shape[1]} weights into a reused array. `set` writes as many bytes past the caches, so its ratio "
        "is the share of the machine's limit. Rates count output bytes."
    )
    note += f" No kernel: {', '.join(left)}." if left else ""
    return section("decode", f"Compiled decode ({instructions()}, one thread)", note, rows)


def decode(name: str, tensor: Tensor, rounds: int) -> Iterator[Row]:
    """One codec; all that is measured takes turns."""
    weight, values = tensor.load("cpu:threads=1"), np.empty(tensor.shape, np.float32)
    limit = limits.limits()["set"]
    outs = {dtype: aligned(tensor.shape, dtype) for dtype in ("f32", "bf16")}

    def into(dtype: str) -> Any:
        return lambda: weight.dense(dtype=dtype, out=outs[dtype])

    theirs = {peer: way.prepared(shape=tensor.shape) for peer, way in PEERS.get(name, {}).items()}
    calls = {
        **{dtype: into(dtype) for dtype in outs},
        "set": limit.call,
        **theirs,
        "NumPy": lambda: tensor.numpy(dtype="f32", out=values),
    }
    seconds = oracles.interleave(calls, rounds)
    for dtype, out in outs.items():
        others = {"set": limit.seconds(seconds["set"], out.nbytes)}
        if dtype == "f32":
            others |= {peer: seconds[peer] for peer in (*theirs, "NumPy")}
        least = (LEAST if dtype == "f32" else LEAST_16).get(name, {})
        yield Row(f"{name} to {dtype}", seconds[dtype], others, out.nbytes, judged(seconds[dtype], others, least))
