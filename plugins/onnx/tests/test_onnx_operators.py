"""Weights that operators state: read as one tensor, copied as they are, given other values where that is possible."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import squish_core as squish
from squish_core.formats.protobuf import message, number
from squish_core.testing import expect_error

GRAPH = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "data" / "graphs.py")))
fields, kinds, model, node, value = GRAPH.fields, GRAPH.kinds, GRAPH.model, GRAPH.node, GRAPH.value
CODES = {"f4": 1, "u1": 2, "i1": 3, "i4": 6, "f2": 10}
RNG = np.random.default_rng(0)
DATA = RNG.integers(-128, 128, (64, 96)).astype(np.int8)
SCALE, ZERO = np.float32(0.25), np.int8(3)
COLUMNS = (RNG.random(96) + 0.5).astype("f4")
BIAS = RNG.integers(-99, 99, 96).astype(np.int32)


def initializer(name: str, values: np.ndarray, kind: int = 0) -> bytes:
    sizes = [number(1, size) for size in values.shape]
    kind = kind or CODES[values.dtype.str[1:]]
    return message(5, *sizes, number(2, kind), message(8, name), message(9, values.tobytes()))


def integer(name: str, value: int) -> bytes:
    return message(5, message(1, name), number(3, value), number(20, 2))


def operation(kind: str, inputs: list[str], output: str = "y", domain: str = "", **attributes: int) -> bytes:
    extra = [integer(key, number_) for key, number_ in attributes.items()]
    return node(kind, inputs, [output], *([message(7, domain)] if domain else []), *extra)


def write(path: Path, arrays: dict[str, np.ndarray], *nodes: bytes, output: str = "y") -> Path:
    stored = [initializer(name, np.asarray(array)) for name, array in arrays.items()]
    path.write_bytes(model(*nodes, *stored, value(11, "x"), value(12, output)))
    return path


W = {"w_quantized": DATA, "w_scale": SCALE, "w_zero_point": ZERO}
OF_W = list(W)
ONE = ((DATA - np.float32(3)) * SCALE).astype(np.float32)
OPERATORS = {
    "DequantizeLinear": (["w_quantized", "w_scale", "w_zero_point"], ""),
    "DequantizeLinear of contrib": (["w_quantized", "w_scale", "w_zero_point"], "com.microsoft"),
    "QLinearMatMul": (["x", "s", "z", *OF_W, "s", "z"], ""),
    "QLinearConv": (["x", "s", "z", *OF_W, "s", "z"], ""),
    "QGemm": (["x", "s", "z", *OF_W, "", "s", "z"], "com.microsoft"),
    "MatMulIntegerToFloat": (["x", "w_quantized", "s", "w_scale", "z", "w_zero_point"], "com.microsoft"),
    "DynamicQuantizeMatMul": (["x", *OF_W], "com.microsoft"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_weight_has_its_values_and_its_name(tmp_path, name):
    inputs, domain = OPERATORS[name]
    path = write(tmp_path / "m.onnx", W, operation(name.partition(" ")[0], inputs, domain=domain))
    with squish.open(path) as file:
        assert (list(file), file.problems) == (["w"], ())
        np.testing.assert_array_equal(file["w"].numpy(), ONE)
        np.testing.assert_array_equal(file["w"][3:5, 1:7], ONE[3:5, 1:7])
        assert not squish.verify(file, deep=True).problems
    squish.convert(path, tmp_path / "w.safetensors", encode="f32")
    with squish.open(tmp_path / "w.safetensors") as file:
        np.testing.assert_array_equal(file["w"].numpy(), ONE)


@pytest.mark.parametrize(
    ("kind", "attributes", "axis"),
    [("DequantizeLinear", {}, 1), ("QGemm", {}, 1), ("QGemm", {"transB": 1}, 0), ("QLinearConv", {}, 0),
     ("DequantizeLinear", {"axis": 0}, 0), ("QLinearMatMul", {}, 1)],
)  # fmt: skip
def test_several_scales_are_along_the_axis_of_the_operator(tmp_path, kind, attributes, axis):
    scales = COLUMNS[: DATA.shape[axis]]
    arrays = {"w_quantized": DATA, "w_scale": scales}
    position = {"DequantizeLinear": 0}.get(kind, 3)
    inputs = ["x", "s", "z", "w_quantized", "w_scale", "", "", "s", "z"][3 - position :]
    domain = "com.microsoft" if kind == "QGemm" else ""
    path = write(tmp_path / "m.onnx", arrays, operation(kind, inputs, domain=domain, **attributes))
    with squish.open(path) as file:
        np.testing.assert_array_equal(file["w"].numpy(), DATA * (scales[:, None] if axis == 0 else scales))


APART = {
    "scales that are computed": (["w_quantized", "x"], {}, {}),
    "zero points that are computed": (["w_quantized", "w_scale", "x"], {}, {}),
    "several zero points": (OF_W, {"w_zero_point": np.zeros(2, "i1")}, {}),
    "zero points of another dtype": (OF_W, {"w_zero_point": np.uint8(3)}, {}),
    "scales of another size": (["w_quantized", "w_scale"], {"w_scale": COLUMNS[:7]}, {}),
    "an axis beyond the rank": (["w_quantized", "w_scale"], {"w_scale": COLUMNS}, {"axis": 2}),
    "blocks of another shape": (["w_quantized", "w_scale"], {"w_scale": COLUMNS}, {"block_size": 16}),
    "a huge block": (["w_quantized", "w_scale"], {"w_scale": COLUMNS}, {"block_size": 1 << 62}),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_codes_that_no_node_explains_are_noted(tmp_path, name):
    inputs, arrays, attributes = APART[name]
    path = write(tmp_path / "m.onnx", W | arrays, operation("DequantizeLinear", inputs, **attributes))
    with squish.open(path) as file:
        assert set(file) == set(W)
        (note,) = file.problems
        assert (note.code, note.severity, note.where) == ("codes", "note", "w_quantized")
        for values in (file["w_quantized"].numpy, file["w_quantized"].load):
            with expect_error(squish.TensorError, code="codes", tensor="w_quantized"):
                values()
        np.testing.assert_array_equal(np.asarray(file["w_quantized"].parts()["data"]), DATA)
    for target in ("copy.onnx", "copy.safetensors"):
        squish.convert(path, tmp_path / target)
        with squish.open(tmp_path / target) as file:
            np.testing.assert_array_equal(np.asarray(file["w_quantized"].parts()["data"]), DATA)
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(path, tmp_path / "values.safetensors", encode="f32")
    assert caught.value.code == "codes"


def test_nodes_that_contradict_each_other_explain_nothing(tmp_path):
    nodes = operation("DequantizeLinear", OF_W), operation("DequantizeLinear", ["w_quantized", "v_scale"], "v")
    with squish.open(write(tmp_path / "m.onnx", W | {"v_scale": np.float32(2)}, *nodes)) as file:
        assert set(file) == {*W, "v_scale"}
        assert [note.code for note in file.problems] == ["codes"]


def layer(path: Path) -> Path:
    """A product of dequantized weights, plus a dequantized bias, with a scale that both share."""
    nodes = (
        operation("DequantizeLinear", OF_W, "w_values"), operation("MatMul", ["x", "w_values"], "p"),
        operation("DequantizeLinear", ["b_quantized", "w_scale"], "b_values"), operation("Add", ["p", "b_values"]),
    )  # fmt: skip
    return write(path, W | {"b_quantized": BIAS, "v": COLUMNS}, *nodes)


EVERY = (1, 2, 5, 11, 12, 13)


def test_weights_and_biases_stay_in_their_own_graph_byte_for_byte(tmp_path):
    source = layer(tmp_path / "m.onnx")
    report = squish.convert(source, tmp_path / "new.onnx")
    assert {step.name: step.exactness.kind for step in report.steps} == {"w": "bytes", "b": "bytes", "v": "bytes"}
    assert not report.notes
    new, old = ((tmp_path / name).read_bytes() for name in ("new.onnx", "m.onnx"))
    assert sorted(fields(new, *EVERY)) == sorted(fields(old, *EVERY))


@pytest.mark.parametrize("encode", ["q8_0", "int4"])
def test_a_rule_for_all_tensors_leaves_the_codes_of_an_operator(tmp_path, encode):
    with expect_error(squish.SquishError, code="encode"):
        squish.convert(layer(tmp_path / "m.onnx"), tmp_path / "new.onnx", encode=encode)


@pytest.mark.parametrize(("encode", "extra"), [("f32", "Identity"), ("f16", "Cast")])
def test_values_take_the_place_of_codes(tmp_path, encode, extra):
    source = layer(tmp_path / "m.onnx")
    squish.convert(source, tmp_path / "new.onnx", encode=["v=keep", f"w={encode}"])
    assert kinds((tmp_path / "new.onnx").read_bytes()) == [extra, "MatMul", "DequantizeLinear", "Add"]
    with squish.open(tmp_path / "new.onnx") as file:
        assert set(file) == {"w", "b", "v"}
        assert file["w"].spec.encodings[0].codec.id == "dense"
        np.testing.assert_array_equal(file["w"].numpy(), ONE.astype({"f32": "f4", "f16": "f2"}[encode]))
        np.testing.assert_array_equal(file["b"].numpy(), BIAS * SCALE)


@pytest.mark.parametrize(
    ("name", "rule"),
    [("DequantizeLinear", "w=q8_0"), ("QLinearMatMul", "w=f32"), ("QLinearMatMul", "w=q8_0")],
)
def test_what_an_operator_cannot_take_is_refused_before_writing(tmp_path, name, rule):
    inputs, domain = OPERATORS[name]
    path = write(tmp_path / "m.onnx", W, operation(name, inputs, domain=domain))
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(path, tmp_path / "new.onnx", encode=rule, requantize=True)
    assert caught.value.code == "graph-use"
    assert "--encode 'w=" in caught.value.hint
    assert not (tmp_path / "new.onnx").exists()


def test_codes_go_to_other_formats(tmp_path):
    """Blocks of 32 with the middle as zero point are those of Q4_0, in whatever format they are."""
    values = RNG.standard_normal((64, 96)).astype("f4")
    squish.save(tmp_path / "w.gguf", {"w": values}, encode="q4_0")
    with squish.open(tmp_path / "w.gguf") as file:
        codes = file["w"].bound.codes((slice(0, 64), slice(0, 96)))
        expected = file["w"].numpy()
    packed = (codes.values[:, ::2] | codes.values[:, 1::2] << 4).astype(np.uint8)
    signed = packed ^ np.uint8(0x88)
    graph = (
        operation("DequantizeLinear", ["w_quantized", "w_scale"], axis=1, block_size=32),
        message(5, number(1, 64), number(1, 96), number(2, 22), message(8, "w_quantized"),
                message(9, signed.tobytes())),
        initializer("w_scale", codes.scale), value(11, "x"), value(12, "y"),
    )  # fmt: skip
    (tmp_path / "m.onnx").write_bytes(model(*graph))
    with squish.open(tmp_path / "m.onnx") as file:
        np.testing.assert_array_equal(file["w"].numpy(), expected)
    report = squish.convert(tmp_path / "m.onnx", tmp_path / "back.gguf")
    assert report.steps[0].action == "repack"
    assert squish.diff(tmp_path / "w.gguf", tmp_path / "back.gguf").tensors[0].state == "bytes"


def test_scales_of_activations_are_no_part_of_a_weight(tmp_path):
    nodes = (operation("QuantizeLinear", ["x", "x_scale"], "q"), operation("DequantizeLinear", ["q", "x_scale"], "d"),
             operation("DequantizeLinear", OF_W, "w_values"), operation("MatMul", ["d", "w_values"]))  # fmt: skip
    with squish.open(write(tmp_path / "m.onnx", W | {"x_scale": np.float32(2)}, *nodes)) as file:
        assert (set(file), file.problems) == ({"w", "x_scale"}, ())
