"""Weights that operators state have the values that onnxruntime computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import squish_core as squish

pytestmark = pytest.mark.oracle
oracles = pytest.importorskip("oracles", reason="the peers of the repository are not on the path")


def dequantized(path, dtype, shape, axis, block, zeros, scale, moved):
    """Runs in the peer: saves a model that dequantizes random codes, and returns its values."""
    import ml_dtypes
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)
    if block:
        grid = [-(-size // block) if number == axis % len(shape) else size for number, size in enumerate(shape)]
    else:
        grid = [] if axis is None else [shape[axis]]
    kind = getattr(TensorProto, dtype)
    width = {"INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2, "INT16": 16, "UINT16": 16, "INT32": 32}.get(dtype, 8)

    def tensor(name, dims):
        size = -(-int(np.prod(dims)) * width // 8)
        data = rng.integers(0, 256, size, np.uint8)
        if width < 8 and int(np.prod(dims)) * width % 8:
            data[-1] &= (1 << int(np.prod(dims)) * width % 8) - 1
        if dtype.startswith("FLOAT8"):
            real = {"FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E5M2": ml_dtypes.float8_e5m2}[dtype]
            data = rng.standard_normal(size).astype(real).view(np.uint8)
        return helper.make_tensor(name, kind, dims, data.tobytes(), raw=True)

    real = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16}[scale]
    scales = (rng.random(grid) + 0.5).astype(scale)
    initializers = [tensor("w_quantized", shape), helper.make_tensor("w_scale", real, grid, scales.tobytes(), raw=True)]
    if zeros:
        initializers.append(tensor("w_zero_point", grid))
    options = {} if axis is None else {"axis": axis}
    options |= {"block_size": block} if block else {}
    names = ["w_quantized", "w_scale", "w_zero_point"][: 2 + zeros]
    nodes = [helper.make_node("DequantizeLinear", names, ["y"], **options)]
    inputs, feed = [], {}
    if moved:
        nodes = [helper.make_node("Gather", ["w_quantized", "ids"], ["rows"]),
                 helper.make_node("DequantizeLinear", ["rows", *names[1:]], ["y"], **options)]  # fmt: skip
        inputs, feed = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])], {"ids": np.arange(shape[0])}
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", real, None)], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0].astype(np.float32)


CASES: list[tuple[str, tuple[int, ...], int | None, int, bool, str]] = [
    (dtype, *case, zeros, "f4")
    for dtype in ("INT8", "UINT8", "INT4", "UINT4")
    for case in (
        ((6, 64), None, 0), ((6, 64), 0, 0), ((6, 64), 1, 0), ((5, 7), None, 0), ((5, 7), 0, 0), ((5, 7), 1, 0),
        ((64, 6), 0, 16), ((6, 64), 1, 16), ((6, 64), -1, 32), ((6, 40), 1, 16), ((40, 6), 0, 16), ((5, 7), 1, 4),
        ((4, 3, 3, 3), 0, 0), ((4, 3, 3, 3), 1, 0), ((2, 6, 8), 1, 2), ((9,), None, 0),
    )
    for zeros in (False, True)
] + [
    ("INT16", (6, 64), 1, 0, True, "f4"), ("UINT16", (6, 64), 0, 0, True, "f4"), ("FLOAT8E4M3FN", (6, 64), None, 0, False, "f4"),
    ("FLOAT8E4M3FN", (6, 64), 1, 0, False, "f4"), ("FLOAT8E5M2", (6, 64), 0, 0, False, "f4"),
    ("INT8", (6, 64), 0, 0, True, "f2"), ("UINT4", (6, 64), 1, 16, True, "f2"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dequantized_weights_have_the_values_of_onnxruntime(tmp_path, case):
    path = tmp_path / "m.onnx"
    values = oracles.peer("onnxruntime").run(dequantized, **arguments(path, case), moved=False)
    check(path, values, case)


@pytest.mark.parametrize("case", [case for case in CASES if case[1:3] in (((6, 64), None), ((5, 7), None))], ids=str)
def test_rows_of_codes_are_those_of_the_weight(tmp_path, case):
    values = oracles.peer("onnxruntime").run(dequantized, **arguments(tmp_path / "m.onnx", case), moved=True)
    check(tmp_path / "m.onnx", values, case)


def arguments(path, case) -> dict[str, Any]:
    return dict(zip(("path", "dtype", "shape", "axis", "block", "zeros", "scale"), (str(path), *case), strict=True))


def check(path, values, case):
    with squish.open(path) as file:
        assert list(file) == ["w"]
        found = file["w"].numpy()
        rounded = found.astype(np.float16).astype(np.float32) if case[-1] == "f2" else found
        np.testing.assert_array_equal(rounded, values)
        for first in range(min(3, len(found))):
            np.testing.assert_array_equal(file["w"][first:], found[first:])
        assert not squish.verify(file, deep=True).problems
