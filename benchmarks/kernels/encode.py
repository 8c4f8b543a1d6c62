"""Encoding float32, one thread, against reading it and against everybody who encodes the same codec."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import numpy as np
import oracles
from squish_cpu.library import THREADS

from benchmarks.kernels import CODECS, NUMBERS, ROUNDS, Peer, instructions, judged, limits, peers, section
from benchmarks.table import Row, Section
from squish_core.api import CodecSpec, TensorSpec
from squish_core.plugins.registry import registry

SHAPE = (2048, 4096)
Q4_0 = {
    "ggml Q4_0": Peer("ggml", peers.ggml_encode, {"kind": 2}),
    "gguf-py Q4_0": Peer("gguf", peers.gguf_encode, {"kind": "Q4_0"}),
}
PEERS = {
    "INT4 g32": {
        **Q4_0, "mlx": Peer("mlx", peers.mlx_encode, {"group": 32}), "numba": Peer("numba", peers.numba_encode)
    },
    "MLX 4-bit g64": {"mlx": Peer("mlx", peers.mlx_encode, {"group": 64})},
    "INT4 g32, searched": {},
    "MLX 4-bit g64, searched": {},
    **{name: {"ggml": Peer("ggml", peers.ggml_encode, {"kind": NUMBERS[name]})} for name in NUMBERS},
    **{
        f"{name}, weighed": {"ggml": Peer("ggml", peers.ggml_encode, {"kind": NUMBERS[name], "weighed": True})}
        for name in ("Q4_K", "Q5_K", "Q6_K")
    },
    "Q4_0": Q4_0,
    "Q8_0": {
        "ggml": Peer("ggml", peers.ggml_encode, {"kind": 8}),
        "gguf-py": Peer("gguf", peers.gguf_encode, {"kind": "Q8_0"}),
    },
}  # fmt: skip
HOW: dict[str, dict[str, str]] = {"": {}, "weighed": {"search": "activations"}, "searched": {"search": "mse"}}
LEAST = {
    "INT4 g32": {"ggml": 5, "gguf-py": 15, "mlx": 15},
    **{name + how: {"ggml": 10} for name in ("Q4_K", "Q5_K", "Q6_K") for how in ("", ", weighed")},
}


def run(quick: bool) -> Section:
    """Each codec with an encoder."""
    shape = (256, 4096) if quick else SHAPE
    with patch.dict(os.environ, {THREADS: "1"}):
        rows = [encode(name, shape, 3 if quick else ROUNDS) for name in PEERS]
    note = (
        f"{shape[0]}x{shape[1]} f32. `read` reads them once; rates count input bytes. GGML blocks equal libggml's "
        "byte for byte, with activation statistics (imatrix), too. INT4 is also compared with encoders of Q4_0, which "
        "has the same bits and groups but another scale; its target is 20 GB/s. Searched: each group gets the best of "
        "twelve ranges (`search=mse`)."
    )
    return section("encode", f"Compiled encoders ({instructions()}, one thread)", note, rows)


def encode(name: str, shape: tuple[int, int], rounds: int) -> Row:
    """One codec; NumPy's encoder too, where there is one beside the compiled one."""
    kind, _, how = name.partition(", ")
    base = CODECS.get(kind) or CodecSpec(f"ggml.{kind.lower()}")
    spec = CodecSpec(base.id, {**base.params, **HOW[how]})
    activations = np.random.default_rng(1).random(shape[1], np.float32)
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    tensor = TensorSpec(name="w", shape=shape, dtype="f32")
    params = registry().encoder_type(spec).params_for(tensor, spec.params)
    codec = registry().codec(CodecSpec(spec.id, params))
    spec = CodecSpec(spec.id, codec.fit_params(lambda: iter((values,)), tensor))
    ours, codec = registry().encoder(spec), registry().codec(spec)
    limit = limits.limits()["read"]
    theirs = {peer: way.prepared(shape=shape) for peer, way in PEERS[name].items()}
    calls: dict[str, Any] = {
        "ours": lambda: ours.encode(values, activations=activations), "read": limit.call, **theirs,
    }  # fmt: skip
    if ours is not codec and kind not in ("Q4_K", "Q5_K", "Q6_K"):
        calls["NumPy"] = lambda: codec.encode(values)
    seconds = oracles.interleave(calls, rounds)
    mine = seconds.pop("ours")
    others = {"read": limit.seconds(seconds.pop("read"), values.nbytes), **seconds}
    return Row(name, mine, others, values.nbytes, judged(mine, others, LEAST.get(name, {})))
