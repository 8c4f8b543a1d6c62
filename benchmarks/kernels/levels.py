"""The same kernels with each instruction set that runs here, one thread, as shares of what the machine does at best."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import oracles
from squish_cpu.layouts.base import aligned
from squish_cpu.library import INSTRUCTIONS, library

from benchmarks.kernels import CODECS, ROUNDS, limits, tensors
from benchmarks.kernels.products import COLD, passing

CHOSEN = ("INT4 g32", "MLX 4-bit g64", "Q8_0", "Q4_K", "Q6_K")
LEAST = {"avx2": 0.25}  # of reading, for products


def run(quick: bool) -> str:
    """A line for each codec: decoding to f32 and bf16 against `set`, products with one vector against `read`."""
    shape, rounds = ((512, 4096), 3) if quick else ((4096, 4096), ROUNDS)
    levels = library().instructions
    ways = ("to f32", "to bf16", "y = x W^T")
    note = (
        f"{shape[0]}x{shape[1]} weights; shares of `set` (decoding into a reused array) and of `read` (one vector, f32 "
        "activations, uncached weights), both measured with the best instructions, all interleaved. "
        f"Required: products with avx2 >= {LEAST['avx2']:.2f}."
    )
    lines = [
        "## Compiled kernels by instruction set (one thread)", "", note, "",
        f"| codec | {' | '.join(f'{way}, {level}' for way in ways for level in levels)} |",
        f"|---|{'---|' * len(ways) * len(levels)}",
    ]  # fmt: skip
    for codec in CHOSEN:
        rates = shares(codec, shape, levels, rounds)
        cells = [f"{rates[way, level]:.2f}{verdict(way, level, rates[way, level])}" for way in ways for level in levels]
        lines.append(f"| {codec} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def verdict(way: str, level: str, share: float) -> str:
    """Whether what is required of products is met."""
    return "" if way != "y = x W^T" or share >= LEAST.get(level, 0) else " **missed**"


def shares(codec: str, shape: tuple[int, int], levels: tuple[str, ...], rounds: int) -> dict[tuple[str, str], float]:
    """What share of its limit each way reaches with each instruction set; the best, the first, has the probes."""
    one = tensors(CODECS[codec], shape)[0]
    copies = tensors(CODECS[codec], shape, -(-COLD // one.nbytes))
    weight, outs = one.load("cpu:threads=1"), {dtype: aligned(shape, dtype) for dtype in ("f32", "bf16")}
    products = passing(copies, "cpu:threads=1", np.ones((1, shape[1]), np.float32))
    probes = limits.limits()
    calls: dict[Any, Callable[[], object]] = {}
    for level in levels:
        calls["use", level] = partial(use, level)
        if level == levels[0]:
            calls |= {name: probes[name].call for name in ("set", "read")}
        calls |= {(f"to {dtype}", level): partial(weight.dense, dtype=dtype, out=out) for dtype, out in outs.items()}
        calls["y = x W^T", level] = products
    amounts = {
        **{f"to {dtype}": ("set", out.nbytes) for dtype, out in outs.items()},
        "y = x W^T": ("read", one.nbytes * len(copies)),
    }
    seconds: dict[Any, float] = oracles.interleave(calls, rounds)
    use(levels[0])
    return {
        (way, level): probes[limit].seconds(seconds[limit], amount) / seconds[way, level]
        for way, (limit, amount) in amounts.items()
        for level in levels
    }


def use(level: str) -> None:
    """Run with these instructions from now on."""
    os.environ[INSTRUCTIONS] = level
    library.cache_clear()
    library()
