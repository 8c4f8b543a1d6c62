"""What the peers run, each in its own process: weights of random codes are made there, and a call is a pass over all.

Functions here are sent as text: they import inside and use nothing of this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def ggml_multiply(kind: int, shape: list[int], copies: int, count: int, threads: int) -> object:
    """libggml's graph of one product, weights repacked where it can."""
    import ctypes
    import os

    import ggml

    folder = os.path.join(os.path.dirname(ggml.__file__), "lib")
    base, cpu = (
        ctypes.CDLL(os.path.join(folder, f"libggml-{name}.so"), ctypes.RTLD_GLOBAL) for name in ("base", "cpu")
    )
    pointer, number = ctypes.c_void_p, ctypes.c_int64

    class Room(ctypes.Structure):
        _fields_ = (("size", ctypes.c_size_t), ("buffer", pointer), ("no_alloc", ctypes.c_bool))

    def function(library: Any, name: str, result: Any, *arguments: Any) -> Any:
        symbol = getattr(library, name)
        symbol.restype, symbol.argtypes = result, arguments
        return symbol

    init = function(base, "ggml_init", pointer, Room)
    new_2d = function(base, "ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, number, number)
    allocate = function(base, "ggml_backend_alloc_ctx_tensors_from_buft", pointer, pointer, pointer)
    fill = function(base, "ggml_backend_tensor_set", None, pointer, pointer, ctypes.c_size_t, ctypes.c_size_t)
    product = function(base, "ggml_mul_mat", pointer, pointer, pointer, pointer)
    new_graph = function(base, "ggml_new_graph", pointer, pointer)
    expand = function(base, "ggml_build_forward_expand", None, pointer, pointer)
    compute = function(base, "ggml_backend_graph_compute", ctypes.c_int, pointer, pointer)
    row_size = function(base, "ggml_row_size", ctypes.c_size_t, ctypes.c_int, number)
    buffer_type = function(base, "ggml_backend_cpu_buffer_type", pointer)()
    repacking = function(cpu, "_Z35ggml_backend_cpu_repack_buffer_typev", pointer)()
    backend = function(cpu, "ggml_backend_cpu_init", pointer)()
    function(cpu, "ggml_backend_cpu_set_n_threads", None, pointer, ctypes.c_int)(backend, threads)

    rows, columns = shape
    blocks = np.random.default_rng(0).integers(0, 0x3C, rows * row_size(kind, columns), np.uint8)
    x = np.random.default_rng(1).standard_normal((count, columns), np.float32)
    graphs = []
    for _ in range(copies):
        weights, values = (init(Room(1 << 20, None, True)) for _ in range(2))
        w, a = new_2d(weights, kind, columns, rows), new_2d(values, 0, columns, count)
        graph = new_graph(values)
        expand(graph, product(values, w, a))
        allocate(weights, repacking if kind in (2, 12) else buffer_type)
        allocate(values, buffer_type)
        fill(w, blocks.ctypes.data, 0, blocks.nbytes)
        fill(a, x.ctypes.data, 0, x.nbytes)
        graphs.append(graph)
    return lambda: [compute(backend, graph) for graph in graphs]


def onnx_multiply(level: int, shape: list[int], copies: int, count: int, threads: int) -> object:
    """MatMulNBits with blocks of 32; accuracy level 0 multiplies in f32, 4 in int8."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rows, columns = shape
    chance = np.random.default_rng(0)
    codes = numpy_helper.from_array(chance.integers(0, 256, (rows, columns // 32, 16), np.uint8), "B")
    scales = numpy_helper.from_array(chance.random(rows * columns // 32, np.float32), "S")
    node = helper.make_node(
        "MatMulNBits",
        ["A", "B", "S"],
        ["Y"],
        domain="com.microsoft",
        K=columns,
        N=rows,
        bits=4,
        block_size=32,
        accuracy_level=level,
    )
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, size])
        for name, size in (("A", columns), ("Y", rows))
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [codes, scales])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # between turns it must not take a core
    sessions = [onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]) for _ in range(copies)]
    x = chance.standard_normal((count, columns), np.float32)
    return lambda: [session.run(None, {"A": x}) for session in sessions]


def torch_multiply(dtype: str, shape: list[int], copies: int, count: int, threads: int) -> object:
    """int4pack for the CPU, groups of 32."""
    import torch

    rows, columns = shape
    chance = np.random.default_rng(0)
    codes = torch.from_numpy(chance.integers(0, 16, shape, np.int32))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    kind = getattr(torch, dtype)
    scales = torch.from_numpy(chance.random((columns // 32, rows, 2), np.float32)).to(kind)
    weights = [(packed.clone(), scales.clone()) for _ in range(copies)]
    x = torch.from_numpy(chance.standard_normal((count, columns), np.float32)).to(kind)
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu

    def call() -> None:
        torch.set_num_threads(threads)
        for codes, scales in weights:
            multiply(x, codes, 32, scales)

    return call


def mlx_multiply(shape: list[int], copies: int, count: int, threads: int) -> object:
    """quantized_matmul on the CPU, groups of 64; its number of threads is its own affair."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    rows, columns = shape
    chance = np.random.default_rng(0)
    codes = chance.integers(0, 1 << 32, (rows, columns // 8), np.uint32)
    scales, biases = chance.random((2, rows, columns // 64), np.float32)
    weights = [[mx.array(part) for part in (codes, scales, biases)] for _ in range(copies)]
    x = mx.array(chance.standard_normal((count, columns), np.float32))

    def call() -> None:
        for codes, scales, biases in weights:
            mx.eval(mx.quantized_matmul(x, codes, scales, biases, transpose=True, group_size=64, bits=4))

    return call


def numba_multiply(shape: list[int], copies: int, count: int, threads: int) -> object:
    """A loop over symmetric 4-bit codes in groups of 32, one vector."""
    import numba

    @numba.njit(parallel=True, fastmath=True, boundscheck=False, error_model="numpy")
    def multiply(codes, scales, even, odd, y):  # type: ignore[no-untyped-def]
        for row in numba.prange(codes.shape[0]):
            sums = np.zeros(16, np.float32)
            for group in range(scales.shape[1]):
                scale = scales[row, group]
                for i in range(16):
                    byte = codes[row, group * 16 + i]
                    low, high = np.float32(byte & 15) - np.float32(8), np.float32(byte >> 4) - np.float32(8)
                    sums[i] += scale * (low * even[group * 16 + i] + high * odd[group * 16 + i])
            y[row] = sums.sum()

    rows, columns = shape
    chance = np.random.default_rng(0)
    codes, scales = chance.integers(0, 256, (rows, columns // 2), np.uint8), chance.random((rows, columns // 32), "f4")
    weights = [(codes.copy(), scales.copy()) for _ in range(copies)]
    x, y = chance.standard_normal(columns, np.float32), np.empty(rows, np.float32)
    even, odd = x[0::2].copy(), x[1::2].copy()

    def call() -> None:
        numba.set_num_threads(threads)
        for codes, scales in weights:
            multiply(codes, scales, even, odd, y)

    return call


def ggml_decode(kind: int, shape: list[int]) -> object:
    """libggml's own loop, into a reused array."""
    import ctypes
    import os

    import ggml

    base = ctypes.CDLL(os.path.join(os.path.dirname(ggml.__file__), "lib", "libggml-base.so"))
    base.ggml_row_size.restype, base.ggml_row_size.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_int64]
    name = {2: "q4_0", 8: "q8_0", 12: "q4_K", 14: "q6_K"}[kind]
    call = getattr(base, f"dequantize_row_{name}")
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    blocks = np.random.default_rng(0).integers(0, 0x3C, shape[0] * base.ggml_row_size(kind, shape[1]), np.uint8)
    out = np.zeros(shape, np.float32)
    return lambda: call(blocks.ctypes.data, out.ctypes.data, out.size)


def gguf_decode(kind: str, shape: list[int]) -> object:
    """gguf-py, into an array of its own."""
    import gguf

    quant = gguf.GGMLQuantizationType[kind]
    elements, nbytes = gguf.GGML_QUANT_SIZES[quant]
    blocks = np.random.default_rng(0).integers(0, 0x3C, (shape[0], shape[1] // elements * nbytes), np.uint8)
    return lambda: gguf.quants.dequantize(blocks, quant)


def mlx_decode(mode: str, group: int, shape: list[int]) -> object:
    """mx.dequantize on the CPU, to f32."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    values = mx.array(np.random.default_rng(0).standard_normal(shape, np.float32))
    parts = mx.quantize(values, group_size=group, bits=4, mode=mode)
    mx.eval(parts)
    return lambda: mx.eval(mx.dequantize(*parts, group_size=group, bits=4, mode=mode, dtype=mx.float32))


def numba_decode(shape: list[int]) -> object:
    """A loop over symmetric 4-bit codes in groups of 32, into a reused array."""
    import numba

    @numba.njit(fastmath=True, boundscheck=False, error_model="numpy")
    def decode(codes, scales, out):  # type: ignore[no-untyped-def]
        for row in range(codes.shape[0]):
            for group in range(scales.shape[1]):
                scale = scales[row, group]
                for i in range(16):
                    byte, at = codes[row, group * 16 + i], group * 32 + 2 * i
                    out[row, at] = (np.float32(byte & 15) - np.float32(8)) * scale
                    out[row, at + 1] = (np.float32(byte >> 4) - np.float32(8)) * scale

    rows, columns = shape
    chance = np.random.default_rng(0)
    codes, scales = (
        chance.integers(0, 256, (rows, columns // 2), np.uint8),
        chance.random((rows, columns // 32), np.float32),
    )
    out = np.zeros(shape, np.float32)
    return lambda: decode(codes, scales, out)


def ggml_encode(kind: int, shape: list[int], weighed: bool = False) -> object:
    """ggml_quantize_chunk, with an importance matrix where asked for, into a reused array."""
    import ctypes
    import os

    import ggml

    base = ctypes.CDLL(os.path.join(os.path.dirname(ggml.__file__), "lib", "libggml-base.so"))
    call = base.ggml_quantize_chunk
    call.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    out = np.zeros(values.nbytes, np.uint8)
    weights = np.square(np.random.default_rng(1).random(shape[1], np.float32)).ctypes if weighed else None
    return lambda: call(kind, values.ctypes.data, out.ctypes.data, 0, *shape, weights)


def gguf_encode(kind: str, shape: list[int]) -> object:
    """gguf-py's encoder."""
    import gguf

    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return lambda: gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])


def mlx_encode(group: int, shape: list[int]) -> object:
    """mx.quantize on the CPU."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    values = mx.array(np.random.default_rng(0).standard_normal(shape, np.float32))
    return lambda: mx.eval(mx.quantize(values, group_size=group, bits=4))


def numba_encode(shape: list[int]) -> object:
    """Symmetric 4-bit codes in groups of 32, into reused arrays."""
    import numba

    @numba.njit(fastmath=True, boundscheck=False, error_model="numpy")
    def encode(values, codes, scales):  # type: ignore[no-untyped-def]
        for row in range(scales.shape[0]):
            for group in range(scales.shape[1]):
                at, most = group * 32, np.float32(0)
                for i in range(32):
                    most = max(most, abs(values[row, at + i]))
                scales[row, group] = most / np.float32(7)
                factor = np.float32(7) / most if most else np.float32(0)
                for i in range(16):
                    low = np.int32(np.floor(values[row, at + 2 * i] * factor + np.float32(8.5)))
                    high = np.int32(np.floor(values[row, at + 2 * i + 1] * factor + np.float32(8.5)))
                    codes[row, group * 16 + i] = np.uint8(low | high << 4)

    rows, columns = shape
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    codes, scales = np.zeros((rows, columns // 2), np.uint8), np.zeros((rows, columns // 32), np.float32)
    return lambda: encode(values, codes, scales)
