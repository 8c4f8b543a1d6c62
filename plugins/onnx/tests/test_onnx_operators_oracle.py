"""Weights that operators state have the values that onnxruntime computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
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
        ((6, 64), None, 0),
        ((6, 64), 0, 0),
        ((6, 64), 1, 0),
        ((5, 7), None, 0),
        ((5, 7), 0, 0),
        ((5, 7), 1, 0),
        ((64, 6), 0, 16),
        ((6, 64), 1, 16),
        ((6, 64), -1, 32),
        ((6, 40), 1, 16),
        ((40, 6), 0, 16),
        ((5, 7), 1, 4),
        ((4, 3, 3, 3), 0, 0),
        ((4, 3, 3, 3), 1, 0),
        ((2, 6, 8), 1, 2),
        ((9,), None, 0),
    )
    for zeros in (False, True)
] + [
    ("INT16", (6, 64), 1, 0, True, "f4"),
    ("UINT16", (6, 64), 0, 0, True, "f4"),
    ("FLOAT8E4M3FN", (6, 64), None, 0, False, "f4"),
    ("FLOAT8E4M3FN", (6, 64), 1, 0, False, "f4"),
    ("FLOAT8E5M2", (6, 64), 0, 0, False, "f4"),
    ("INT8", (6, 64), 0, 0, True, "f2"),
    ("UINT4", (6, 64), 1, 16, True, "f2"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dequantized_weights_have_the_values_of_onnxruntime(tmp_path, case):
    path = tmp_path / "m.onnx"
    values = oracles.peer("onnxruntime").run(dequantized, **arguments(path, case), moved=False)
    check(path, values, case)


GATHERED = [case for case in CASES if case[0] in ("INT8", "UINT8") and case[1:3] in (((6, 64), None), ((5, 7), None))]


@pytest.mark.parametrize("case", GATHERED, ids=str)
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


def padded(path, bits, block, columns, zeros, ordered, gathered):
    """Runs in the peer: saves a product with blocks that do not fill rows or bytes, and returns its matrix."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rows, rng = 6, np.random.default_rng(0)
    blocks = -(-columns // block)
    data = rng.integers(0, 256, (rows, blocks, block * bits // 8), np.uint8)
    arrays = {"w_Q4": data, "w_scales": (rng.random((rows, blocks)) + 0.5).astype("f4")}
    if zeros == "packed":
        points = rng.integers(0, 1 << bits, (rows, blocks), np.uint8)
        per_byte = 8 // bits
        wide = np.pad(points, [(0, 0), (0, -blocks % per_byte)]).reshape(rows, -1, per_byte)
        arrays["w_zp"] = (wide << (np.arange(per_byte, dtype=np.uint8) * bits)).sum(-1).astype(np.uint8)
    elif zeros:
        arrays["w_zp"] = (rng.random((rows, blocks)) * (1 << bits)).astype("f4")
    if ordered:
        arrays["w_order"] = rng.permutation(np.arange(columns) // block).astype(np.int32)
    names = ["w_Q4", "w_scales", "w_zp" if zeros else "", "w_order" if ordered else ""]
    options = {"domain": "com.microsoft", "bits": bits, "block_size": block}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])
    if gathered:
        arrays["w_Q4"] = data.reshape(rows, -1)[:, : columns * bits // 8].copy()
        names[1:1] = ["x"]
        x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
        node = helper.make_node(
            "GatherBlockQuantized", [name for name in names if name], ["y"], gather_axis=0, quantize_axis=1, **options
        )
    else:
        node = helper.make_node("MatMulNBits", ["x", *names], ["y"], N=rows, K=columns, accuracy_level=1, **options)
    graph = helper.make_graph(
        [node],
        "g",
        [x],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = np.arange(rows) if gathered else np.eye(columns, dtype="f4")
    y = session.run(None, {"x": feed})[0]
    return y if gathered else y.T


@pytest.mark.parametrize(
    ("bits", "block", "columns", "zeros", "ordered", "gathered"),
    [
        *((bits, 32, columns, zeros, False, False)
          for bits in (4, 8) for columns in (40, 96, 100, 33) for zeros in ("", "packed", "float")
          if (bits, zeros) != (8, "float")),  # which onnxruntime refuses
        (4, 16, 48, "packed", False, True), (4, 32, 64, "", True, False), (4, 32, 80, "float", True, False),
        (2, 16, 48, "packed", False, False), (2, 64, 72, "", False, False),
    ],
)  # fmt: skip
def test_blocks_that_do_not_fill_rows_have_the_values_of_onnxruntime(
    tmp_path, bits, block, columns, zeros, ordered, gathered
):
    path = tmp_path / "m.onnx"
    values = oracles.peer("onnxruntime").run(
        padded,
        path=str(path),
        bits=bits,
        block=block,
        columns=columns,
        zeros=zeros,
        ordered=ordered,
        gathered=gathered,
    )
    with squish.open(path) as file:
        assert list(file) == ["w"]
        assert file["w"].shape == values.shape
        np.testing.assert_allclose(file["w"].numpy(), values, rtol=0, atol=1e-5)
        assert not squish.verify(file, deep=True).problems


def products(path, zeros, axis):
    """Runs in the peer: saves products with int8 weights, and returns what they multiply by."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rng, columns, rows = np.random.default_rng(0), 16, 5
    grid = [rows] if axis else []
    arrays = {}
    for name in "abc":
        arrays[f"{name}_quantized"] = rng.integers(-128, 128, (columns, rows)).astype(np.int8)
        arrays[f"{name}_scale"] = (rng.random(grid) + 0.5).astype("f4")
        arrays[f"{name}_zero_point"] = rng.integers(-3, 3, grid).astype(np.int8)
    of = {name: [f"{name}_{part}" for part in ("quantized", "scale", "zero_point")] for name in "abc"}
    zero = {name: of[name][2] if zeros else "" for name in "abc"}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        helper.make_node("MatMulInteger", ["xq", of["a"][0], "xz", zero["a"]], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["xs", of["a"][1]], ["s"]),
        helper.make_node("Mul", ["f", "s"], ["ya"]),
        helper.make_node("MatMulIntegerToFloat", ["xq", of["b"][0], "xs", of["b"][1], "xz", zero["b"]], ["yb"],
                         domain="com.microsoft"),
        helper.make_node("DynamicQuantizeMatMul", ["x", of["c"][0], of["c"][1], zero["c"]], ["yc"],
                         domain="com.microsoft"),
    ]  # fmt: skip
    float_ = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", float_, ["n", columns])],
        [helper.make_tensor_value_info(f"y{name}", float_, None) for name in "abc"],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if zeros or "zero" not in name],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": 255 * np.eye(columns, dtype="f4")})  # quantized without an error
    return {name: output / 255 for name, output in zip("abc", outputs)}


@pytest.mark.parametrize("axis", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_of_integers_multiply_by_the_values(tmp_path, zeros, axis):
    expected = oracles.peer("onnxruntime").run(products, path=str(tmp_path / "m.onnx"), zeros=zeros, axis=axis)
    with squish.open(tmp_path / "m.onnx") as file:
        assert sorted(file) == ["a", "b", "c"]
        for name, values in expected.items():
            np.testing.assert_allclose(file[name].numpy(), values, rtol=1e-5)
