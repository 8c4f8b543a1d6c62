"""y = x W^T from stored codes, against reading the codes, against multiplying in registers, and against the peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracles

from benchmarks.kernels import CODECS, NUMBERS, ROUNDS, Peer, instructions, judged, limits, peers, section, tensors
from benchmarks.table import Row, Section
from squish_core.api import SquishError
from squish_core.tensors import Tensor

SQUARE, TALL = (4096, 4096), (14336, 4096)
CASES = ((TALL, 1, 1), (SQUARE, 8, 1), (TALL, 8, 1), (SQUARE, 64, 1), (TALL, 1, 2))  # shape, vectors, threads
COLD = 96 << 20  # bytes of weights in a pass over copies: three times the caches
ONE_VECTOR = ("mlx", "numba", "torch f32")  # no loop for more, or too slow to wait for
FEW = 8  # vectors; more are bound by arithmetic, and one copy does
ACTIVATIONS = ("f32", "int8")
PEERS = {
    **{
        f"ggml {name}": Peer("ggml", peers.ggml_multiply, {"kind": NUMBERS[name]})
        for name in ("Q4_0", "Q8_0", "Q4_K", "Q6_K")
    },
    "onnxruntime f32": Peer("onnxruntime", peers.onnx_multiply, {"level": 0}),
    "onnxruntime int8": Peer("onnxruntime", peers.onnx_multiply, {"level": 4}),
    "torch f32": Peer("torch", peers.torch_multiply, {"dtype": "float32"}),
    "torch bf16": Peer("torch", peers.torch_multiply, {"dtype": "bfloat16"}),
    "mlx": Peer("mlx", peers.mlx_multiply),
    "numba": Peer("numba", peers.numba_multiply),
}  # fmt: skip
FOUR_BITS = (
    "ggml Q4_0",
    "ggml Q4_K",
    "onnxruntime f32",
    "onnxruntime int8",
    "torch f32",
    "torch bf16",
    "numba",
    "NumPy",
)
BESIDE = {
    "INT4 g32": FOUR_BITS, "Q4_0": FOUR_BITS, "Q4_K": FOUR_BITS, "MLX 4-bit g64": (*FOUR_BITS, "mlx"),
    "Q8_0": ("ggml Q8_0",), "Q6_K": ("ggml Q6_K",),
}  # fmt: skip
TWO_THREADS = 1.7  # two threads must read so many times faster than one to be judged by it


def run(quick: bool) -> Section:
    """All cases in one table."""
    cases = [((512, 4096), 1, 1), ((512, 4096), 8, 1)] if quick else CASES
    rows = [row for shape, count, threads in cases for row in multiply(shape, count, threads, 3 if quick else ROUNDS)]
    note = (
        "y = x W^T; one turn is a pass over so many copies of the weights that none is in a cache (64 vectors: one). "
        "`read` reads the stored bytes once; `FMA` multiplies and adds as often as f32 needs, in registers (codes of "
        "activations may be faster). Rates are of stored bytes. ggml repacks Q4_0 and Q4_K when it loads; NumPy "
        "decodes panels of INT4 and multiplies by BLAS with all its threads."
    )
    return section("products", f"Compiled products ({instructions()})", note, rows)


def multiply(shape: tuple[int, int], count: int, threads: int, rounds: int) -> list[Row]:
    """Every codec, peer and limit in turns, for one shape and number of vectors."""
    x = np.random.default_rng(1).standard_normal((count, shape[1]), np.float32)
    calls: dict[Any, Any] = {}
    stored: dict[tuple[str, str], int] = {}  # bytes of a product
    passes: dict[Any, int] = {}  # products of a call
    for codec, spec in CODECS.items():
        few = tensors(spec, (8, shape[1]))
        ways = {kind: f"cpu:threads={threads},activations={kind}" for kind in ACTIVATIONS}
        ways = {kind: way for kind, way in ways.items() if passing(few, way, x)}
        nbytes = few[0].nbytes * shape[0] // 8
        made = tensors(spec, shape, -(-COLD // nbytes) if count <= FEW else 1) if ways else []
        for kind, way in ways.items():
            calls[codec, kind], stored[codec, kind], passes[codec, kind] = passing(made, way, x), nbytes, len(made)
    copies = passes["INT4 g32", "f32"]
    for name, peer in PEERS.items():
        if count == 1 or name not in ONE_VECTOR:
            more: Any = {"shape": shape, "copies": copies, "count": count, "threads": threads}
            calls[name], passes[name] = peer.prepared(**more), copies
    if count == 1:
        calls["NumPy"] = passing(tensors(CODECS["INT4 g32"], shape), "numpy", x)
    one, probes = limits.limits()["read"], limits.limits(threads)
    calls |= {"read": probes["read"].call, "FMA": probes["FMA"].call, "read on one": one.call}
    measured: dict[Any, float] = oracles.interleave(calls, rounds)
    seconds = {name: found / passes.get(name, 1) for name, found in measured.items()}
    gain = seconds["read on one"] / seconds["read"]

    rows = []
    for (codec, kind), nbytes in stored.items():
        mine, limit = seconds[codec, kind], "read" if count == 1 else "FMA"
        amount = nbytes if count == 1 else 2 * shape[0] * shape[1] * count
        others = {limit: probes[limit].seconds(seconds[limit], amount)}
        others |= {name: seconds[name] for name in BESIDE.get(codec, ()) if name in seconds}
        least = required(codec, kind, shape, count, threads)
        target = judged(mine, others, least)
        if threads > 1 and gain < TWO_THREADS:
            target = f"not judged: two threads read {gain:.2f}x as fast as one"
        vectors = f"{count} vector{'s' * (count > 1)}{', two threads' * (threads > 1)}"
        rows.append(Row(f"{codec}, {kind}, {shape[0]}x{shape[1]}, {vectors}", mine, others, nbytes, target))
    return rows


def required(codec: str, kind: str, shape: tuple[int, int], count: int, threads: int) -> dict[str, float]:
    """The least ratios to a limit and to peers."""
    nibbles = BESIDE.get(codec, ())[:-1] and kind != "f32"
    if threads > 1:
        return {"read": 0.75}
    if count == 1 and kind == "f32":
        return {"read": 0.25 if instructions() == "avx2" else 0.62}
    if count == 1:
        return {"read": 0.8, **({"ggml": 1.2, "torch bf16": 1.5} if nibbles else {})}
    if count == FEW:
        ratio = 1.25 if shape == SQUARE else 1.0
        return {"ggml": ratio, "onnxruntime": ratio} if nibbles else {}
    return {"FMA": 0.55} if kind == "f32" else {"ggml Q4_0": 1.2} if kind == "bf16" else {}


def passing(made: list[Tensor], backend: str, x: np.ndarray) -> Callable[[], object] | None:
    """A pass over all copies; None where the backend has no kernel for it."""
    try:
        weights = [tensor.load(backend) for tensor in made]
    except SquishError:
        return None
    return lambda: [weight.linear(x) for weight in weights]
