"""onnxruntime computes the same with codes in an existing graph as with their values in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracles
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = pytest.mark.oracle
SHAPES = {"embed": (48, 64), "turned": (96, 64), "product": (64, 96), "gemm": (32, 64), "gemm_turned": (48, 32)}
"""As the source stores them: [N, K]."""


def save_graph(path, dtype, shapes, external):
    """Runs in the peer: every way to use a weight, in one graph; the last product is by the embedding."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kind = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16}[dtype]
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.standard_normal(shape if name in ("embed", "turned", "gemm") else shape[::-1])
        for name, shape in shapes.items()
    }
    arrays["bias"] = rng.standard_normal(shapes["gemm"][0])
    initializers = [
        numpy_helper.from_array(array.astype("f4" if dtype == "f32" else "f2"), name) for name, array in arrays.items()
    ]
    initializers.append(numpy_helper.from_array(np.array([-1, 64], np.int64), "flat"))
    nodes = [
        helper.make_node("Gather", ["embed", "ids"], ["rows"]),
        helper.make_node("Transpose", ["turned"], ["turned_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned_t"], ["a"]),
        helper.make_node("MatMul", ["a", "product"], ["b"]),
        helper.make_node("Reshape", ["b", "flat"], ["c"]),
        helper.make_node("Gemm", ["c", "gemm", "bias"], ["d"], transB=1),
        helper.make_node("Gemm", ["d", "gemm_turned"], ["e"]),
        helper.make_node("Transpose", ["embed"], ["embed_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "embed_t"], ["logits"]),
    ]
    outputs = {"e": ["m", 48], "logits": ["batch", "n", 48]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "n"])],
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save_model(model, path, save_as_external_data=external, size_threshold=64)


def outputs(path):
    """Runs in the peer: what a graph computes."""
    import onnx
    import onnxruntime

    onnx.checker.check_model(path)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [output.astype(np.float32) for output in session.run(None, {"ids": np.array([[3, 1, 40]], np.int64)})]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("encode", ["q4_0", "q8_0", "q4_1", "affine:bits=8,group_size=32,offset=zero_point"])
def test_codes_compute_as_their_values(tmp_path, dtype, encode, external):
    peer, graph = oracles.peer("onnxruntime"), tmp_path / "graph.onnx"
    peer.run(save_graph, path=str(graph), dtype=dtype, shapes=SHAPES, external=external)
    rng = np.random.default_rng(2)
    arrays = {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
    squish.save(tmp_path / "codes.zt", arrays, encode=encode)
    for name, encoding in (("codes", None), ("values", dtype)):
        (tmp_path / name).mkdir()
        squish.convert(tmp_path / "codes.zt", tmp_path / name / "m.onnx", f"onnx:graph={graph}", encoding)
    expected, actual = (peer.run(outputs, path=str(tmp_path / name / "m.onnx")) for name in ("values", "codes"))
    for before, after in zip(expected, actual, strict=True):
        assert np.abs(before - after).max() <= (1e-4 if dtype == "f32" else 2e-3 * np.abs(before).max())


def test_a_decoder_with_codes_in_its_graph_is_the_decoder_with_codes(tmp_path):
    source = families.make("llama", tmp_path / "llama")
    for name in ("graph", "codes", "direct"):
        (tmp_path / name).mkdir()
    squish.convert(source, tmp_path / "graph" / "m.onnx")
    squish.convert(source, tmp_path / "m.gguf", encode="q4_0")
    squish.convert(tmp_path / "m.gguf", tmp_path / "direct" / "m.onnx")
    squish.convert(tmp_path / "m.gguf", tmp_path / "codes" / "m.onnx", f"onnx:graph={tmp_path / 'graph' / 'm.onnx'}")
    config = (tmp_path / "graph" / "genai_config.json").read_bytes()
    (tmp_path / "codes" / "genai_config.json").write_bytes(config)
    ids = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5]]
    direct, codes = (
        engines.ask("onnxruntime", Path(tmp_path / name / "m.onnx"), ids, tokens=8) for name in ("direct", "codes")
    )
    assert engines.difference(direct, codes, 1e-5) == ""


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("encode", ["int4", "affine:bits=8,group_size=32,offset=bias"])
def test_codes_of_a_model_compute_in_its_own_graph_as_their_values(tmp_path, encode, dtype):
    """Weights of [K, N] too; the values take the place of the codes again."""
    peer, graph = oracles.peer("onnxruntime"), tmp_path / "graph.onnx"
    peer.run(save_graph, path=str(graph), dtype=dtype, shapes=SHAPES, external=True)
    for name in ("codes", "copy", "values"):
        (tmp_path / name).mkdir()
    report = squish.convert(graph, tmp_path / "codes" / "m.onnx", encode=encode)
    assert {step.name for step in report.steps if step.action == "encode"} == set(SHAPES)
    report = squish.convert(tmp_path / "codes" / "m.onnx", tmp_path / "copy" / "m.onnx")
    assert {step.exactness.kind for step in report.steps} == {"bytes"}
    squish.convert(tmp_path / "codes" / "m.onnx", tmp_path / "values" / "m.onnx", encode=dtype)
    codes, copy, values = (
        peer.run(outputs, path=str(tmp_path / name / "m.onnx")) for name in ("codes", "copy", "values")
    )
    for one, same, other in zip(codes, copy, values, strict=True):
        assert np.array_equal(one, same)
        assert np.abs(one - other).max() <= (1e-4 if dtype == "f32" else 2e-3) * np.abs(other).max()
