"""What small calls cost beside the work they do: one small tensor, and resolving every tensor of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import oracles

import squish_core as squish
from benchmarks.table import Row, markdown

NOTE = """\
Warm, in one process; each time is a mean over many calls. "The codec alone" decodes the stored bytes into an existing
array. The model has 338 tensors of a few kinds."""
LAYERS, REPEATS = 28, 200
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
VECTORS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "bias")


def run(quick: bool) -> str:
    """Rows for a tensor and for a model."""
    rounds = 3 if quick else 15
    with TemporaryDirectory() as folder:  # each read looks at the file, which takes long on some file systems
        return markdown("Small calls", NOTE, [*one_tensor(Path(folder), rounds), *a_model(Path(folder), rounds)])


def one_tensor(folder: Path, rounds: int) -> list[Row]:
    """`numpy()` of a q8_0 tensor of 32 x 64 against its codec."""
    path = folder / "one-q8_0.gguf"
    squish.save(path, {"w": np.random.default_rng(0).standard_normal((32, 64), np.float32)}, encode="q8_0")
    file = squish.open(path)
    bound = file["w"].bound
    parts: dict[str, Any] = {role: np.asarray(part) for role, part in bound.parts.items()}
    region, out = (slice(0, 32), slice(0, 64)), np.empty((32, 64), np.float32)
    codec = repeated(lambda: bound.codec.decode(parts, bound.spec, region=region, out=out))
    tensor = file["w"]
    rows = []
    for name, call in {"numpy()": tensor.numpy, "look up and numpy()": lambda: file["w"].numpy()}.items():
        seconds = oracles.interleave({"ours": repeated(call), "the codec alone": codec}, rounds)
        rows.append(row(f"{name}, 32 x 64 of q8_0", seconds, REPEATS))
    return rows


def a_model(folder: Path, rounds: int) -> list[Row]:
    """Chains of all tensors: of each alone, and as one plan."""
    path = folder / "338-q8_0.gguf"
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (64, 256), "output_norm.weight": (64,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": (32, 256) for name in MATRICES}
        shapes |= {f"blk.{layer}.{name}.weight": (64,) for name in VECTORS}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    squish.save(path, arrays, encode="q8_0")
    file = squish.open(path)
    calls: dict[str, Callable[[], object]] = {
        "plan() of each": lambda: [tensor.plan() for tensor in file.values()],
        "File.plan()": file.plan,
        "open": lambda: squish.open(path),
        "open and File.plan()": lambda: squish.open(path).plan(),
    }
    seconds = oracles.interleave(calls, rounds)
    return [Row(f"{name}, {len(file)} tensors", seconds[name], {}) for name in calls]


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """The call, many times: one alone is shorter than what a clock tells apart."""

    def run() -> None:
        for _ in range(REPEATS):
            call()

    return run


def row(operation: str, seconds: dict[str, float], repeats: int) -> Row:
    """A row of one call of many."""
    per_call = {name: total / repeats for name, total in seconds.items()}
    return Row(operation, per_call.pop("ours"), per_call)
