"""The compiled CPU backend beside the machine's measured limits and its peers: tables, each with a plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import oracles
from attrs import evolve, frozen
from squish_cpu.layouts.base import CACHE_LINE, aligned
from squish_cpu.library import library

from benchmarks.decoding import finite_blocks
from benchmarks.plot import dots
from benchmarks.table import Row, Section, markdown
from squish_core.api import CodecSpec, Encoding, FileRef, Index, Part, Segment, TensorSpec, dtypes
from squish_core.file import File
from squish_core.io.source import BytesSource
from squish_core.limits import DEFAULT
from squish_core.plugins.registry import registry
from squish_core.tensor import Tensor

CODECS = {
    "INT4 g32": CodecSpec("affine", {"bits": 4, "group_size": 32}),
    "MLX 4-bit g64": CodecSpec(
        "affine", {"bits": 4, "group_size": 64, "word": "u32", "offset": "bias", "scale_dtype": "f16"}
    ),
    "palette 16": CodecSpec("palette", {"bits": 4}),
    **{name.upper(): CodecSpec(f"ggml.{name}") for name in ("q4_0", "q8_0", "q4_k", "q6_k")},
    "MXFP4": CodecSpec("mx"),
    "bitmask 50 %": CodecSpec("bitmask", {"sparsity": 0.5}),
}
NUMBERS = {"Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}  # of ggml's types
ROUNDS = 9
FOURFOLD = 1 << 27
"""Bytes that no cache holds."""


@frozen
class Peer:
    """A way of somebody else: its environment, the function that runs there, and what that is called with."""

    environment: str
    code: Callable[..., object]
    args: Mapping[str, Any] = {}

    def prepared(self, **more: Any) -> Any:
        """The function, its weights ready in the peer's process, to be timed there."""
        return oracles.peer(self.environment).prepare(self.code, **self.args, **more)


def tensors(codec: CodecSpec, shape: tuple[int, int], copies: int = 1) -> list[Tensor]:
    """Equal tensors in memory, their parts on cache lines as in most files."""
    codec, stored = _stored(codec, shape)
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    declared = registry().codec(codec).parts(spec)
    step = sum(-(-stored[role].nbytes // CACHE_LINE) * CACHE_LINE for role in declared)
    memory, end, specs = aligned((copies * step,), "u8"), 0, {}
    for number in range(copies):
        parts = {}
        for role, (dtype, size) in declared.items():
            raw = stored[role].reshape(-1).view(np.uint8)
            memory[end : end + raw.size] = raw
            parts[role] = Part(dtype=dtype, shape=size, segments=(Segment(0, end, raw.size),))
            end += -(-raw.size // CACHE_LINE) * CACHE_LINE
        specs[f"w{number}"] = evolve(spec, name=f"w{number}", encodings=(Encoding(codec=codec, parts=parts),))
    index = Index(format="memory", version="", files=(FileRef("memory", end),), tensors=specs)
    return list(File(BytesSource(memory.data, "memory"), index, registry(), DEFAULT).values())


def _stored(codec: CodecSpec, shape: tuple[int, int]) -> tuple[CodecSpec, Mapping[str, np.ndarray]]:
    """Random codes and ordinary scales; a few rows encoded, again and again, where parts depend on each other."""
    if "sparsity" not in codec.params:
        declared = registry().codec(codec).parts(TensorSpec(name="w", shape=shape, dtype="f32"))
        return codec, {role: _random(kind, size) for role, (kind, size) in declared.items()}
    few = (math.gcd(shape[0], 256), shape[1])
    spec, values = (
        TensorSpec(name="w", shape=few, dtype="f32"),
        np.random.default_rng(0).standard_normal(few, np.float32),
    )
    codec_type = registry().codec_type(codec.id)
    implementation = codec_type.from_params(codec_type.params_for(spec, codec.params))
    params = implementation.fit_params(lambda: iter((values,)), spec)
    times = shape[0] // few[0]
    stored = {role: np.tile(part, times) for role, part in implementation.from_params(params).encode(values).items()}
    return CodecSpec(codec.id, {**params, "count": params["count"] * times}), stored


def _random(kind: str, size: tuple[int, ...]) -> np.ndarray:
    if kind in ("f32", "f16"):
        return np.random.default_rng(0).random(size, np.float32).astype(dtypes.to_numpy(kind))
    if kind == "f8_e8m0":
        return np.random.default_rng(0).integers(110, 128, size, np.uint8).view(dtypes.to_numpy(kind))
    raw = finite_blocks("", (dtypes.nbytes(kind, size),))
    return raw.view(dtypes.to_numpy(kind)).reshape(size)


def section(name: str, title: str, note: str, rows: list[Row]) -> Section:
    """The table, and the plot of what share of the limit (the first of `peers`) everybody reaches."""
    shares = []
    for row in rows:
        limit, *others = row.peers
        seconds = {"ours": row.ours, **{peer: row.peers[peer] for peer in others}}
        shares.append((row.operation, {peer: row.peers[limit] / duration for peer, duration in seconds.items()}))
    text = markdown(title, f"{note}\n\n![{title}: share of the limit](benchmarks/{name}.svg)", rows)
    return Section(text, {f"{name}.svg": dots(f"{title}: share of the limit", shares)})


def judged(ours: float, others: Mapping[str, float], least: Mapping[str, float]) -> str:
    """What is required, peer by peer (a first word stands for the best of several), and whether it is met."""
    verdicts = []
    for name, ratio in least.items():
        durations = [seconds for peer, seconds in others.items() if peer == name or peer.split()[0] == name]
        if durations:
            verdicts.append(f"{name} >= {ratio:.2f}x {'met' if min(durations) / ours >= ratio else '**missed**'}")
    return ", ".join(verdicts)


def instructions() -> str:
    """The instruction set that our kernels run with."""
    return library().active
