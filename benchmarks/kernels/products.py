"""y = x W^T from stored codes, against reading the codes, against multiplying in registers, and against the peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracles

from benchmarks.kernels import CODECS, NUMBERS, ROUNDS, Peer, instructions, judged, limits, peers, section, tensors
from benchmarks.table import Row, Section
from squish_core.api import SquishError
from squish_core.tensor import Tensor

SQUARE, TALL = (4096, 4096), (14336, 4096)
CASES = {  # plot -> shape, vectors, threads
    "products-1": (TALL, 1, 1),
    "products-8": (SQUARE, 8, 1),
    "products-8-tall": (TALL, 8, 1),
    "products-64": (SQUARE, 64, 1),
    "products-1-two-threads": (TALL, 1, 2),
}
COLD = 96 << 20  # bytes of weights in a pass over copies: three times the caches
ONE_VECTOR = ("mlx", "numba", "torch f32")  # no loop for more, or too slow to wait for
FEW = 8  # vectors; more are bound by arithmetic, and one copy does
WAYS = {
    "f32": "activations=f32",
    "int8": "activations=int8",
    **{f"{kind} repacked": f"activations={kind},repack=rows" for kind in ("f32", "bf16", "int8")},
}
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
CODES = ("ggml Q4_0", "ggml Q4_K", "onnxruntime int8", "torch bf16")  # bf16 is the nearest to codes that torch has
VALUES = ("onnxruntime f32", "torch f32", "numba", "NumPy")
NIBBLES = {kind: VALUES if kind.startswith("f32") else CODES for kind in WAYS}  # way -> those who multiply like that
PEERS_OF = {
    **{(codec, kind): names for codec in ("INT4 g32", "Q4_0", "Q4_K") for kind, names in NIBBLES.items()},
    **{("MLX 4-bit g64", kind): (*names, "mlx") for kind, names in NIBBLES.items()},
    **{(codec, kind): (f"ggml {codec}",) for codec in ("Q8_0", "Q6_K") for kind in ("f32", "int8")},
}
TWO_THREADS = 1.7  # minimum speedup of reading with two threads for a target to apply


NOTE = (
    "{copies}; all calls are interleaved. {limit} Rates count the bytes that a product reads: the stored ones, or "
    "those of the copy. ggml (Q4_0, Q4_K), onnxruntime and torch repack weights when they load them, so their targets "
    "apply to our `repacked` rows; the others multiply a file's bytes in place. ggml rounds activations to 8-bit "
    "codes; NumPy decodes panels of INT4 and multiplies them with BLAS on all threads."
)
READ = "`read` reads these bytes once."
FMA = "`FMA` multiplies and adds in registers as often as f32 needs; codes may be faster."
PASS = "A call passes over more copies of the weights than fit the caches"


def run(quick: bool) -> Section:
    """A table for each case."""
    cases = {"products-1": ((512, 4096), 1, 1), "products-8": ((512, 4096), 8, 1)} if quick else CASES
    sections = []
    for name, (shape, count, threads) in cases.items():
        title = f"y = x W^T: {shape[0]}x{shape[1]}, vectors: {count}, threads: {threads} ({instructions()})"
        note = NOTE.format(copies=PASS if count <= FEW else "One copy", limit=READ if count == 1 else FMA)
        sections.append(section(name, title, note, multiply(shape, count, threads, 3 if quick else ROUNDS)))
    plots = {name: svg for section in sections for name, svg in section.plots.items()}
    return Section("\n".join(section.text for section in sections), plots)


def multiply(shape: tuple[int, int], count: int, threads: int, rounds: int) -> list[Row]:
    """Every codec, peer and limit in turns, for one shape and number of vectors."""
    x = np.random.default_rng(1).standard_normal((count, shape[1]), np.float32)
    calls: dict[Any, Any] = {}
    read: dict[tuple[str, str], int] = {}  # bytes of a product
    passes: dict[Any, int] = {}  # products of a call
    for codec, spec in CODECS.items():
        few = tensors(spec, (8, shape[1]))[0]
        ways = {kind: f"cpu:threads={threads},{way}" for kind, way in WAYS.items()}
        ways = {kind: way for kind, way in ways.items() if runs(few, way)}
        matrices = tensors(spec, shape, -(-COLD // (few.nbytes * shape[0] // 8)) if count <= FEW else 1) if ways else []
        for kind, way in ways.items():
            cost = matrices[0].plan(way).chosen.cost
            assert cost is not None
            calls[codec, kind], read[codec, kind], passes[codec, kind] = (
                passing(matrices, way, x),
                cost.moved,
                len(matrices),
            )
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
    seconds = {name: duration / passes.get(name, 1) for name, duration in measured.items()}
    gain = seconds["read on one"] / seconds["read"]

    rows = []
    for (codec, kind), nbytes in read.items():
        mine, limit = seconds[codec, kind], "read" if count == 1 else "FMA"
        amount = nbytes if count == 1 else 2 * shape[0] * shape[1] * count
        others = {limit: probes[limit].seconds(seconds[limit], amount)}
        others |= {name: seconds[name] for name in PEERS_OF.get((codec, kind), ()) if name in seconds}
        least = required(codec, kind, shape, count, threads)
        target = judged(mine, others, least)
        if threads > 1 and gain < TWO_THREADS:
            target = f"not judged: two threads read {gain:.2f}x as fast as one"
        rows.append(Row(f"{codec}, {kind}", mine, others, nbytes, target))
    return rows


def required(codec: str, kind: str, shape: tuple[int, int], count: int, threads: int) -> dict[str, float]:
    """The least ratios to a limit and to peers."""
    nibbles = kind == "int8 repacked"
    if threads > 1:
        return {"read": 0.75}
    if count == 1 and kind.startswith("f32"):
        return {"read": 0.25 if instructions() == "avx2" else 0.62}
    if kind == "bf16 repacked":
        return {"ggml Q4_0": 1.2} if count > FEW else {}
    if count == 1:
        return {"read": 0.8, **({"ggml": 1.2, "torch bf16": 1.5} if nibbles else {})}
    if count == FEW:
        ratio = 1.25 if shape == SQUARE else 1.0
        return {"ggml": ratio, "onnxruntime": ratio} if nibbles else {}
    return {"FMA": 0.55} if kind.startswith("f32") else {}


def passing(matrices: list[Tensor], backend: str, x: np.ndarray) -> Callable[[], object]:
    """A pass over all copies."""
    weights = [tensor.load(backend) for tensor in matrices]
    return lambda: [weight.linear(x) for weight in weights]


def runs(tensor: Tensor, backend: str) -> bool:
    """Whether the backend has a kernel for it."""
    try:
        tensor.plan(backend)
    except SquishError:
        return False
    return True
