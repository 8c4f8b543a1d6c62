"""Codes of a graph as quantized weights: as Squish, onnxruntime's tools and its model builder write them."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import squish_core as squish
from squish_core.formats.protobuf import message, number

GRAPH = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "data" / "graphs.py")))
fields, kinds, model, node, value = GRAPH.fields, GRAPH.kinds, GRAPH.model, GRAPH.node, GRAPH.value
ROWS, COLUMNS, BLOCK = 6, 64, 32
DTYPES = {"f4": 1, "f2": 10, "u1": 2}
RNG = np.random.default_rng(0)
SCALES = (RNG.random((ROWS, COLUMNS // BLOCK)) + 0.5).astype("f4")


def initializer(name: str, values: np.ndarray) -> bytes:
    """An initializer of any dtype."""
    sizes = [number(1, size) for size in values.shape]
    return message(5, *sizes, number(2, DTYPES[values.dtype.str[1:]]), message(8, name), message(9, values.tobytes()))


def attribute(name: str, value: int) -> bytes:
    return message(5, message(1, name), number(3, value), number(20, 2))


def product(*inputs: str, **attributes: int) -> bytes:
    """A MatMulNBits."""
    declared = {"N": ROWS, "K": COLUMNS, "bits": 4, "block_size": BLOCK, **attributes}
    return node(
        "MatMulNBits",
        ["x", *inputs],
        ["y"],
        message(7, "com.microsoft"),
        *(attribute(key, value) for key, value in declared.items()),
    )


def rows(*inputs: str, **attributes: int) -> bytes:
    """A GatherBlockQuantized."""
    declared = {"bits": 4, "block_size": BLOCK, **attributes}
    return node(
        "GatherBlockQuantized",
        [inputs[0], "x", *inputs[1:]],
        ["y"],
        message(7, "com.microsoft"),
        *(attribute(key, value) for key, value in declared.items()),
    )


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes in bytes, the first in the lowest bits; lines are padded to bytes."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_byte)])
    split = padded.reshape(*codes.shape[:-1], -1, per_byte).astype(np.uint8)
    return (split << (np.arange(per_byte, dtype=np.uint8) * bits)).sum(-1, dtype=np.uint8)


def matrix(bits: int, *, zeros: bool, scales: np.ndarray = SCALES, block: int = BLOCK) -> tuple[dict, np.ndarray]:
    """Arrays of a quantized matrix, and its values."""
    blocks = COLUMNS // block
    codes = RNG.integers(0, 1 << bits, (ROWS, blocks, block), np.uint8)
    points = RNG.integers(0, 1 << bits, (ROWS, blocks), np.uint8)
    arrays = {"data": packed(codes, bits), "scales": scales}
    if zeros:
        arrays["zeros"] = packed(points, bits)
    zero = points[..., None].astype(np.float32) if zeros else np.float32(1 << bits - 1)
    values = (codes - zero) * scales.reshape(ROWS, blocks, 1).astype(np.float32)
    return arrays, values.reshape(ROWS, COLUMNS).astype(np.float32)


def write(path: Path, arrays: dict[str, np.ndarray], names: dict[str, str], *nodes: bytes) -> Path:
    stored = [initializer(names[key], array) for key, array in arrays.items()]
    path.write_bytes(model(*nodes, node("Relu", ["y"], ["z"]), *stored, value(11, "x"), value(12, "z")))
    return path


NAMES = {
    "w": {"data": "w_quant", "scales": "w_scales", "zeros": "w_zero_points"},
    "onnx::MatMul_7": {"data": "onnx::MatMul_7_Q4", "scales": "onnx::MatMul_7_scales", "zeros": "onnx::MatMul_7_zp"},
    "q_proj.MatMulNBits.weight": {"data": "q_proj.MatMulNBits.qweight", "scales": "scales", "zeros": "qzeros"},
    "B": {"data": "B", "scales": "S", "zeros": "Z"},
}
FORMS = {
    "4 bits": (4, False, "f4", BLOCK), "4 bits, zero points": (4, True, "f4", BLOCK), "8 bits": (8, False, "f4", BLOCK),
    "8 bits, zero points": (8, True, "f4", BLOCK), "2 bits": (2, False, "f2", 16),
    "2 bits, zero points": (2, True, "f2", 16), "f16": (4, True, "f2", BLOCK),
}  # fmt: skip


@pytest.mark.parametrize("operator", ["product", "rows"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_codes_of_an_operator_are_a_weight(tmp_path, name, form, operator):
    bits, zeros, dtype, block = FORMS[form]
    scales = (RNG.random((ROWS, COLUMNS // block)) + 0.5).astype(dtype)
    arrays, values = matrix(bits, zeros=zeros, scales=scales, block=block)
    if operator == "rows":
        arrays["data"] = arrays["data"].reshape(ROWS, -1)
    names = [NAMES[name][key] for key in arrays]
    make = product if operator == "product" else rows
    path = write(tmp_path / "m.onnx", arrays, NAMES[name], make(*names, bits=bits, block_size=block))
    with squish.open(path) as file:
        assert list(file) == [name]
        assert file[name].spec.encodings[0].codec.id == "affine"
        assert np.array_equal(file[name].numpy(), values)
        assert not squish.verify(file, deep=True).problems
    squish.convert(path, tmp_path / "w.safetensors", encode="f32")
    with squish.open(tmp_path / "w.safetensors") as file:
        assert np.array_equal(file[name].numpy(), values)


PLAIN = {
    "another width": lambda: (matrix(4, zeros=False)[0], {"bits": 3}),
    "no block size": lambda: (matrix(4, zeros=False)[0], {"block_size": 0}),
    "a negative size": lambda: (matrix(4, zeros=False)[0], {"N": -ROWS}),
    "a huge size": lambda: (matrix(4, zeros=False)[0], {"K": 1 << 62}),
    "codes that do not fill the shape": lambda: (matrix(4, zeros=False)[0], {"N": ROWS - 1}),
    "prepacked": lambda: (matrix(4, zeros=False)[0], {"weight_prepacked": 1}),
    "scales of bytes": lambda: ({**matrix(4, zeros=False)[0], "scales": np.ones(SCALES.shape, "u1")}, {}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_other_codes_are_initializers(tmp_path, name):
    arrays, attributes = PLAIN[name]()
    path = write(tmp_path / "m.onnx", arrays, NAMES["w"], product(*(NAMES["w"][key] for key in arrays), **attributes))
    with squish.open(path) as file:
        assert set(file) == {NAMES["w"][key] for key in arrays}
        (note,) = squish.verify(file, deep=True).problems
        assert (note.code, note.severity, note.where) == ("codes", "note", "w_quant")
        assert "MatMulNBits" in note.message


@pytest.mark.parametrize(("operator", "domain", "position"), [
    ("DequantizeLinear", "", 0), ("DequantizeLinear", "com.microsoft", 0), ("MatMulInteger", "", 1),
    ("QLinearMatMul", "", 3), ("MatMulBnb4", "com.microsoft", 1),
])  # fmt: skip
def test_codes_of_other_operators_are_noted(tmp_path, operator, domain, position):
    inputs = ["x", "x", "x", "x", "scale"]
    inputs[position] = "w_quantized"
    arrays = {"data": np.ones((ROWS, COLUMNS), "u1"), "scales": SCALES}
    names = {"data": "w_quantized", "scales": "scale"}
    operation = node(operator, inputs, ["y"], *([message(7, domain)] if domain else []))
    with squish.open(write(tmp_path / "m.onnx", arrays, names, operation)) as file:
        (note,) = file.problems
        assert (note.code, note.where) == ("codes", "w_quantized")
        assert operator in note.message
    (note,) = squish.convert(tmp_path / "m.onnx", tmp_path / "m.safetensors").notes
    assert note.startswith("w_quantized: holds quantized codes")


def test_nodes_that_contradict_each_other_declare_no_weight(tmp_path):
    arrays, _ = matrix(4, zeros=False)
    nodes = product("w_quant", "w_scales"), product("w_quant", "w_scales", bits=2, K=2 * COLUMNS, block_size=2 * BLOCK)
    with squish.open(write(tmp_path / "m.onnx", arrays, NAMES["w"], *nodes)) as file:
        assert set(file) == {"w_quant", "w_scales"}


def test_a_name_that_is_taken_gives_way_to_that_of_the_codes(tmp_path):
    arrays, _ = matrix(4, zeros=False)
    path = write(
        tmp_path / "m.onnx",
        {**arrays, "zeros": np.ones(3, "f4")},
        {**NAMES["w"], "zeros": "w"},
        product("w_quant", "w_scales"),
    )
    with squish.open(path) as file:
        assert set(file) == {"w", "w_quant"}


@pytest.mark.parametrize("form", FORMS)
def test_codes_stay_in_their_own_graph_byte_for_byte(tmp_path, form):
    bits, zeros, dtype, block = FORMS[form]
    arrays, _ = matrix(
        bits, zeros=zeros, scales=(RNG.random((ROWS, COLUMNS // block)) + 0.5).astype(dtype), block=block
    )
    nodes = product(*(NAMES["w"][key] for key in arrays), bits=bits, block_size=block)
    source = write(tmp_path / "m.onnx", arrays, NAMES["w"], nodes)
    report = squish.convert(source, tmp_path / "new.onnx")
    assert {step.exactness.kind for step in report.steps} == {"bytes"}
    assert not report.notes
    every = (1, 2, 5, 11, 12, 13)
    assert sorted(fields((tmp_path / "new.onnx").read_bytes(), *every)) == sorted(fields(source.read_bytes(), *every))


OTHERS = {
    "q8_0": ["MatMulNBits", "Relu"], "f32": ["Transpose", "MatMul", "Relu"],
    "affine:bits=8,group_size=64,zero=128,signed=false,scale_dtype=f16": ["Cast", "MatMulNBits", "Relu"],
}  # fmt: skip


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("encode", OTHERS)
def test_other_codes_take_the_place_of_codes(tmp_path, encode, zeros):
    arrays, values = matrix(4, zeros=zeros)
    source = write(tmp_path / "m.onnx", arrays, NAMES["w"], product(*(NAMES["w"][key] for key in arrays)))
    squish.convert(source, tmp_path / "new.onnx", encode=encode, requantize=True)
    data = (tmp_path / "new.onnx").read_bytes()
    assert kinds(data) == OTHERS[encode]
    assert b"w_zero_points" not in data
    with squish.open(tmp_path / "new.onnx") as file:
        assert list(file) == ["w"]
        assert np.abs(file["w"].numpy() - values).max() <= 0.1


def test_codes_of_another_source_take_the_place_of_codes(tmp_path):
    arrays, values = matrix(4, zeros=True)
    graph = write(tmp_path / "m.onnx", arrays, NAMES["w"], product("w_quant", "w_scales", "w_zero_points"))
    squish.save(tmp_path / "w.gguf", {"w": values}, encode="q4_1")
    squish.convert(tmp_path / "w.gguf", tmp_path / "new.onnx", f"onnx:graph={graph}")
    assert squish.diff(tmp_path / "w.gguf", tmp_path / "new.onnx").tensors[0].state == "values"
    assert squish.diff(graph, tmp_path / "new.onnx").tensors[0].max_error > 0
