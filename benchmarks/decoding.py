"""NumPy decoding of GGML blocks and affine codes, against gguf-py."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
from squish_testing.codecs import read_region

from benchmarks.table import Row, markdown
from squish_core.api import CodecSpec, TensorSpec
from squish_core.codecs.regions import full
from squish_core.plugins.registry import registry

SHAPE = (4096, 4096)
TARGETS = {"q4_k": ">= 2x", "q6_k": ">= 1.7x", "q8_0": ">= 2.5x"}
TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


def run(quick: bool) -> str:
    """Each block type, one thread, output reused by us (gguf-py allocates its own)."""
    shape = (512, 4096) if quick else SHAPE
    rows = [decode(name, shape) for name in TYPES]
    note = (
        f"{shape[0]}x{shape[1]} weights to f32; Squish decodes into a reused array, gguf-py into a new one. "
        "Rates count f32 bytes."
    )
    return markdown("NumPy decode", note, rows)


def decode(name: str, shape: tuple[int, int]) -> Row:
    """One block type."""
    codec = registry().codec(CodecSpec(f"ggml.{name}"))
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    _, stored = codec.parts(spec)["data"]
    blocks = finite_blocks(name, stored)
    out = np.empty(shape, np.float32)
    theirs = oracles.peer("gguf").prepare(gguf_decode, blocks=blocks, kind=name.upper())
    parts: Any = {"data": blocks}
    calls: Any = {"ours": lambda: read_region(codec, parts, spec, full(shape), out), "gguf-py": theirs}
    seconds = oracles.interleave(calls)
    return Row(name, seconds.pop("ours"), seconds, 4 * out.size, TARGETS.get(name, ""))


def finite_blocks(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random blocks whose 16-bit scales are ordinary numbers: no byte above 0x3B where an exponent may lie."""
    return np.random.default_rng(0).integers(0, 0x3C, shape, np.uint8)


def gguf_decode(blocks: np.ndarray, kind: str) -> object:
    """Runs in the peer."""
    import gguf

    quant = gguf.GGMLQuantizationType[kind]
    return lambda: gguf.quants.dequantize(blocks, quant)
