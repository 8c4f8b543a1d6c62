"""onnx reads the same values from the same files, and onnxruntime computes with the same values of codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
oracles = pytest.importorskip("oracles", reason="the peers of the repository are not on the path")
DATA = Path(__file__).parent / "data"


def initializers(path):
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    return {initializer.name: numpy_helper.to_array(initializer).tobytes() for initializer in model.graph.initializer}


@pytest.mark.parametrize("name", ["types", "external"])
def test_onnx_reads_the_same_values(name):
    expected = oracles.peer("onnxruntime").run(initializers, path=str(DATA / f"{name}.onnx"))
    with squish.open(DATA / f"{name}.onnx") as file:
        assert set(expected) == set(file)
        for tensor, data in expected.items():
            assert np.ascontiguousarray(file[tensor].numpy()).tobytes() == data, tensor


def run_codes(path, bits, block, zeros, dtype):
    """Runs in the peer: saves a model with codes, and returns their values as its operators compute them."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rows, columns, rng = 6, 2 * block, np.random.default_rng(0)
    size, kind = columns * bits // 8, {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16}[dtype]
    codes = rng.integers(0, 256, (2, rows, size), np.uint8)
    scales = (rng.random((2, rows, 2)) + 0.5).astype(dtype)
    arrays = {"w_Q4": codes[0].reshape(rows, 2, -1), "e_Q4": codes[1], "w_scales": scales[0], "e_scales": scales[1]}
    if zeros:
        points = rng.integers(0, 256, (2, rows, bits // 4), np.uint8)
        arrays |= {"w_zero_points": points[0], "e_zero_points": points[1]}
    options = {"domain": "com.microsoft", "bits": bits, "block_size": block}
    of = {name: [name + suffix for suffix in ("_Q4", "_scales", "_zero_points")[: 2 + zeros]] for name in "we"}
    nodes = [
        helper.make_node("MatMulNBits", ["x", *of["w"]], ["y"], N=rows, K=columns, accuracy_level=1, **options),
        helper.make_node(
            "GatherBlockQuantized", [of["e"][0], "ids", *of["e"][1:]], ["z"], gather_axis=0, quantize_axis=1, **options
        ),
    ]
    inputs = helper.make_tensor_value_info("x", kind, ["n", columns]), helper.make_tensor_value_info(
        "ids", TensorProto.INT64, ["m"])  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in "yz"]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    y, z = session.run(None, {"x": np.eye(columns, dtype=dtype), "ids": np.arange(rows)})
    return {"w": y.T.astype(np.float32), "e": z.astype(np.float32)}


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize(
    ("bits", "block", "zeros"), [(4, 16, True), (4, 128, False), (8, 32, False), (8, 16, True), (2, 64, False)]
)
def test_codes_have_the_values_that_onnxruntime_computes_with(tmp_path, bits, block, zeros, dtype):
    path = tmp_path / "m.onnx"
    expected = oracles.peer("onnxruntime").run(
        run_codes, path=str(path), bits=bits, block=block, zeros=zeros, dtype=dtype
    )
    with squish.open(path) as file:
        assert set(file) == set(expected)
        for name, values in expected.items():
            atol = 1e-6 if dtype == "f4" else 2e-3 * np.abs(values).max()
            assert np.allclose(file[name].numpy(), values, rtol=0, atol=atol), name
