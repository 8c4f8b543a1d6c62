"""The compiled CPU backend: decoding, products and encoding on one thread, against the machine's limits and peers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import oracles
from squish_cpu.backend import aligned
from squish_cpu.library import THREADS, library

from benchmarks.decoding import finite_blocks
from benchmarks.table import Row, markdown
from squish_core.api import CodecSpec, TensorSpec, dtypes
from squish_core.plugins import registry
from squish_core.testing.sources import memory_file

SHAPE, TALL = (4096, 4096), (14336, 4096)
INT4 = {"bits": 4, "group_size": 32}
CODECS = {
    "INT4 g32": CodecSpec("affine", INT4),
    "MLX 4-bit g64": CodecSpec(
        "affine", {"bits": 4, "group_size": 64, "word": "u32", "offset": "bias", "scale_dtype": "f16"}
    ),
    "palette 16": CodecSpec("palette", {"bits": 4}),
    **{name: CodecSpec(f"ggml.{name}") for name in ("q4_0", "q8_0", "q4_k", "q6_k")},
    "MXFP4": CodecSpec("mx"),
}
ENCODED = ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k")
NUMBERS = {"q4_0": 2, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14}  # of ggml's types
TARGETS = {name: ">= 0.72 of set" if name in ("q8_0", "q6_k") else ">= 0.80 of set" for name in CODECS}


def run(quick: bool) -> str:
    """Three tables, one thread, everything interleaved."""
    os.environ[THREADS] = "1"
    shape, tall = ((512, 4096), (512, 4096)) if quick else (SHAPE, TALL)
    tensors = {name: (tensor(codec, shape), tensor(codec, tall)) for name, codec in CODECS.items()}
    chosen = library().chosen
    decoded = [decode(name, pair[0], dtype) for name, pair in tensors.items() for dtype in ("f32", "bf16")]
    products = [multiply(name, pair[1], count) for name, pair in tensors.items() for count in (1, 8, 64)]
    return "\n".join(
        (
            markdown(
                f"Compiled decode ({chosen}, one thread)",
                f"{shape[0]}x{shape[1]} weights into a reused array. `set` writes as many bytes past the caches, so "
                "its ratio is the share of the machine's limit that is reached; rates are of bytes out.",
                decoded,
            ),
            markdown(
                f"Compiled products ({chosen}, one thread)",
                f"y = x W^T, W {tall[0]}x{tall[1]}, f32 activations. `read` reads the stored bytes once; rates are of "
                "those.",
                products,
            ),
            markdown(
                f"Compiled encoders ({chosen}, one thread)",
                f"{shape[0]}x{shape[1]} f32; the blocks are those of libggml, byte for byte. Rates are of bytes in.",
                [encode(name, shape) for name in ENCODED],
            ),
        )
    )


def tensor(codec: CodecSpec, shape: tuple[int, int]) -> Any:
    """A tensor of random codes and ordinary scales, in memory."""
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    stored: dict[str, np.ndarray] = {}
    for role, (kind, size) in registry().codec(codec).parts(spec, codec.params).items():
        if kind in ("f32", "f16"):
            stored[role] = np.random.default_rng(0).random(size, np.float32).astype(dtypes.to_numpy(kind))
        else:
            raw = finite_blocks("", (dtypes.nbytes(kind, size),))
            stored[role] = raw.view(dtypes.to_numpy(kind)).reshape(size)
    return memory_file(registry(), {"w": (spec, codec, stored)})[0]["w"]


def decode(name: str, tensor: Any, dtype: str) -> Row:
    """Into a reused array, against filling it, NumPy, and for GGML blocks libggml and gguf-py (f32)."""
    weight, out = tensor.load("cpu"), aligned(tensor.shape, dtype)
    calls: Any = {
        "ours": lambda: weight.dense(dtype=dtype, out=out),
        "set": lambda: library().fill(out.ctypes.data, out.nbytes),
    }
    if dtype == "f32":
        values = np.empty(tensor.shape, np.float32)
        calls["NumPy"] = lambda: tensor.numpy(out=values)
        if name in NUMBERS:
            blocks = tensor.parts()["data"].numpy()
            calls["ggml"] = oracles.peer("ggml").prepare(ggml_decode, blocks=blocks, number=NUMBERS[name])
    seconds = oracles.interleave(calls)
    target = TARGETS[name] if dtype == "f32" else ""
    return Row(f"{name} to {dtype}", seconds.pop("ours"), seconds, out.nbytes, target)


def multiply(name: str, tensor: Any, count: int) -> Row:
    """Against reading the stored bytes, and against NumPy (decoded panels and BLAS) for a single vector."""
    weight, other = tensor.load("cpu"), tensor.load("numpy")
    x = np.random.default_rng(0).standard_normal((count, tensor.shape[1]), np.float32)
    nbytes = tensor.nbytes // 1024 * 1024
    memory = aligned((nbytes,), "f32")[: nbytes // 4]
    memory[:] = 1
    calls: Any = {"ours": lambda: weight.linear(x), "read": lambda: library().read(memory.ctypes.data, nbytes)}
    if count == 1:
        calls["NumPy"] = lambda: other.linear(x)
    seconds = oracles.interleave(calls)
    return Row(f"{name}, {count} vector{'s' * (count > 1)}", seconds.pop("ours"), seconds, nbytes)


def encode(name: str, shape: tuple[int, int]) -> Row:
    """Against libggml, and the NumPy encoder where there is one."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    spec = CodecSpec(f"ggml.{name}")
    ours, codec = registry().encoder(spec), registry().codec(spec)
    calls: Any = {"ours": lambda: ours.encode(values, {})}
    calls["ggml"] = oracles.peer("ggml").prepare(ggml_encode, values=values, number=NUMBERS[name])
    if name in ("q4_0", "q8_0"):
        calls["NumPy"] = lambda: codec.encode(values, {})
    seconds = oracles.interleave(calls)
    return Row(name, seconds.pop("ours"), seconds, values.nbytes, ">= 10x ggml" if name.endswith("_k") else "")


def ggml_decode(blocks: np.ndarray, number: int) -> object:
    """Runs in the peer: into a reused array."""
    import ctypes
    import os

    import ggml
    import numpy as np

    base = ctypes.CDLL(os.path.join(os.path.dirname(ggml.__file__), "lib", "libggml-base.so"))
    elements, nbytes, name = {
        2: (32, 18, "q4_0"), 8: (32, 34, "q8_0"), 12: (256, 144, "q4_K"), 14: (256, 210, "q6_K"),
    }[number]  # fmt: skip
    call = getattr(base, f"dequantize_row_{name}")
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    out = np.zeros(blocks.size // nbytes * elements, np.float32)
    return lambda: call(blocks.ctypes.data, out.ctypes.data, out.size)


def ggml_encode(values: np.ndarray, number: int) -> object:
    """Runs in the peer: into a reused array."""
    import ctypes
    import os

    import ggml
    import numpy as np

    base = ctypes.CDLL(os.path.join(os.path.dirname(ggml.__file__), "lib", "libggml-base.so"))
    call = base.ggml_quantize_chunk
    call.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    out = np.zeros(values.nbytes, np.uint8)
    return lambda: call(number, values.ctypes.data, out.ctypes.data, 0, *values.shape, None)
