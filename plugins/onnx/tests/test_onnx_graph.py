"""Codes in an existing graph: the nodes that use a weight change, everything else stays byte for byte."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from squish_cli.app import run

import squish_core as squish
from squish_core.formats.protobuf import message, number

ROWS, COLUMNS = 32, 64
TRANSPOSE = message(5, message(1, "perm"), number(8, 1), number(8, 0), number(20, 7))


GRAPH = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "data" / "graphs.py")))
node, tensor, value, model = GRAPH.node, GRAPH.tensor, GRAPH.value, GRAPH.model
fields, kinds = GRAPH.fields, GRAPH.kinds
WEIGHT = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
OTHER = tensor("other", np.arange(4.0))
RELU = node("Relu", ["y"], ["z"])
EDGES = [value(11, "x"), value(12, "z"), value(13, "y")]
GRAPHS = {
    "MatMul": [tensor("w", WEIGHT.T), node("MatMul", ["x", "w"], ["y"])],
    "Transpose": [tensor("w", WEIGHT), node("Transpose", ["w"], ["t"], TRANSPOSE), node("MatMul", ["x", "t"], ["y"])],
    "Gemm": [tensor("w", WEIGHT.T), node("Gemm", ["x", "w", "other"], ["y"])],
    "Gather": [tensor("w", WEIGHT), node("Gather", ["w", "x"], ["y"])],
}


@pytest.fixture
def convert(tmp_path: Path):
    """A function that puts a weight into a graph and returns the new model's bytes and the report."""

    def run(
        *parts: bytes,
        encode: str | None = "affine:bits=4,group_size=32",
        names: dict | None = None,
        source=None,
        **version,
    ):
        (tmp_path / "old.onnx").write_bytes(model(*parts, RELU, OTHER, *EDGES, **version))
        source = source or {next(iter(names)) if names else "w": WEIGHT}
        to = f"onnx:graph={tmp_path / 'old.onnx'}"
        if names:
            (tmp_path / "names.json").write_text(json.dumps(names))
            to += f",names={tmp_path / 'names.json'}"
        (tmp_path / "out").mkdir()
        report = squish.convert(source, tmp_path / "out" / "new.onnx", to, encode)
        return (tmp_path / "out" / "new.onnx").read_bytes(), report

    return run


@pytest.mark.parametrize("name", GRAPHS)
def test_what_does_not_use_the_weight_stays_byte_for_byte(convert, name):
    data, report = convert(*GRAPHS[name])
    assert {RELU, OTHER, *EDGES} <= set(fields(data, 1, 5, 11, 12, 13))
    assert data.endswith(message(8, message(1, "com.microsoft"), number(2, 1))) or name == "Gather"
    assert message(14, message(1, "key"), message(2, "value")) in data
    assert not {"MatMul", "Transpose", "Gemm"} & set(kinds(data))
    assert report.steps[0].target.startswith("affine:bits=4,group_size=32")


def test_codes_are_those_of_the_source(convert, tmp_path):
    squish.save(tmp_path / "codes.gguf", {"w": WEIGHT}, encode="q4_0")
    convert(*GRAPHS["MatMul"], encode=None, source=tmp_path / "codes.gguf")
    with squish.open(tmp_path / "out" / "new.onnx") as file, squish.open(tmp_path / "codes.gguf") as source:
        assert file["w"].spec.encodings[0].codec.params["zero"] == 8
        assert np.array_equal(file["w"].numpy(), source["w"].numpy())


def test_names_map_tensors_to_initializers(convert):
    data, _ = convert(
        tensor("onnx::MatMul_7", WEIGHT.T),
        node("MatMul", ["x", "onnx::MatMul_7"], ["y"]),
        names={"model.layers.0.mlp.up_proj.weight": "onnx::MatMul_7"},
    )
    assert b"onnx::MatMul_7_quant" in data
    assert b"up_proj" not in data


def test_dense_values_take_the_place_of_others(convert, tmp_path):
    data, report = convert(tensor("w", np.zeros((COLUMNS, ROWS))), node("MatMul", ["x", "w"], ["y"]), encode=None)
    assert kinds(data) == ["Transpose", "MatMul", "Relu"]
    assert report.steps[0].exactness.kind == "bytes"
    assert report.notes[0].startswith("the graph keeps the values of 1 initializer: ")
    with squish.open(tmp_path / "out" / "new.onnx") as file:
        assert np.array_equal(file["w_stored"].numpy(), WEIGHT)


def test_external_data_of_the_graph_is_copied(convert, tmp_path):
    (tmp_path / "old.data").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    entries = [
        message(13, message(1, key), message(2, text)) for key, text in (("location", "old.data"), ("offset", "8"))
    ]
    far = message(5, number(1, 4), number(2, 1), message(8, "far"), *entries, number(14, 1))
    convert(far, *GRAPHS["MatMul"])
    with squish.open(tmp_path / "out" / "new.onnx") as file:
        assert file["far"].numpy().tolist() == [2, 3, 4, 5]


ATTRIBUTE = message(5, message(1, "body"), message(6, message(1, message(1, "w"), message(2, "b"), message(4, "Abs"))))
ERRORS = {
    "no initializer": ([tensor("v", WEIGHT.T)], "tensor-unused"),
    "another shape": ([tensor("w", WEIGHT[:8].T), node("MatMul", ["x", "w"], ["y"])], "shape"),
    "the wrong side": ([tensor("w", WEIGHT), node("Transpose", ["w"], ["t"]), node("MatMul", ["t", "x"], ["y"])],
                       "graph-use"),
    "another operator": ([tensor("w", WEIGHT), node("Conv", ["x", "w"], ["y"])], "graph-use"),
    "the left operand": ([tensor("w", WEIGHT), node("MatMul", ["w", "x"], ["y"])], "graph-use"),
    "both operands": ([tensor("w", WEIGHT), node("MatMul", ["w", "w"], ["y"])], "graph-use"),
    "one operand": ([tensor("w", WEIGHT.T), node("MatMul", ["w"], ["y"])], "graph-use"),
    "no operator": ([tensor("w", WEIGHT.T), node("", ["x", "w"], ["y"])], "graph-use"),
    "no output": ([tensor("w", WEIGHT), node("Transpose", ["w"], [])], "graph-use"),
    "no use": ([tensor("w", WEIGHT)], "graph-use"),
    "an output": ([tensor("w", WEIGHT.T), node("MatMul", ["x", "w"], ["y"]), value(12, "w")], "graph-use"),
    "a graph in a node": ([*GRAPHS["MatMul"], node("If", ["y"], ["q"], ATTRIBUTE)], "graph-use"),
    "a cycle": ([tensor("w", WEIGHT), node("Transpose", ["w"], ["t"]), node("Transpose", ["t"], ["w"])], "graph-use"),
    "a scaled product": ([tensor("w", WEIGHT.T),
                          node("Gemm", ["x", "w"], ["y"], message(5, message(1, "alpha"), b"\x15\0\0\0\x40"))],
                         "graph-use"),
    "a name in use": ([*GRAPHS["MatMul"], tensor("w_quant", WEIGHT)], "duplicate"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_graph_that_cannot_take_the_weight_is_refused(convert, tmp_path, name):
    parts, code = ERRORS[name]
    with pytest.raises(squish.SquishError) as caught:
        convert(*parts)
    assert caught.value.code == code
    assert not list((tmp_path / "out").iterdir())


def test_an_error_names_the_tensor_and_an_encoding_that_has_its_name(convert):
    mapped = [tensor("v", WEIGHT), node("Conv", ["x", "v"], ["y"])]
    with pytest.raises(squish.SquishError) as caught:
        convert(*mapped, names={"layer.weight": "v"})
    assert (caught.value.code, caught.value.tensor) == ("graph-use", "layer.weight")
    assert "layer.weight=f32" in (caught.value.hint or "")


def test_the_error_for_codes_of_an_unused_weight_names_an_encoding_that_works(convert, tmp_path):
    with pytest.raises(squish.SquishError) as caught:
        convert(tensor("w", WEIGHT))
    error = caught.value
    assert (error.code, error.tensor, error.expected) == ("graph-use", "w", "f32")
    assert (error.found or "").startswith("affine:")  # the codes, not an operator: there is none
    (encode,) = re.findall("--encode '(.*?)'", error.hint or "")
    (tmp_path / "out").rmdir()
    convert(tensor("w", np.zeros_like(WEIGHT)), encode=encode)
    with squish.open(tmp_path / "out" / "new.onnx") as file:
        assert np.array_equal(file["w"].numpy(), WEIGHT)


@pytest.mark.parametrize("version", [{"ir": 3}, {"opset": 12}])
def test_a_graph_of_an_older_version_is_refused(convert, version):
    with pytest.raises(squish.SquishError) as caught:
        convert(*GRAPHS["MatMul"], **version)
    assert caught.value.code == "version"


@pytest.mark.parametrize(("names", "code"), [({"a": 3}, "names"), ({"a": "absent"}, "tensor-unused")])
def test_names_that_do_not_fit_are_refused(convert, names, code):
    with pytest.raises(squish.SquishError) as caught:
        convert(*GRAPHS["MatMul"], names=names)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["external", "types"])
def test_a_model_in_its_own_graph_keeps_its_values_and_nodes(tmp_path, name):
    source = Path(__file__).parent / "data" / f"{name}.onnx"
    squish.convert(source, tmp_path / "new.onnx", f"onnx:graph={source}")
    kept = (1, 2, 11, 12, 13)
    assert fields((tmp_path / "new.onnx").read_bytes(), *kept) == fields(source.read_bytes(), *kept)
    assert squish.diff(source, tmp_path / "new.onnx").same


SQUARE = np.random.default_rng(1).standard_normal((COLUMNS, COLUMNS)).astype(np.float32)
OWN = {
    "MatMul": [node("MatMul", ["x", "w"], ["y"])],
    "Gemm": [node("Gemm", ["x", "w", "other"], ["y"])],
    "Transpose": [node("Transpose", ["w"], ["t"], TRANSPOSE), node("MatMul", ["x", "t"], ["y"])],
}


@pytest.mark.parametrize("name", OWN)
def test_square_weights_of_a_model_keep_their_values_in_its_own_graph(tmp_path, name):
    source = tmp_path / "old.onnx"
    source.write_bytes(model(tensor("w", SQUARE), *OWN[name], RELU, OTHER, *EDGES))
    squish.convert(source, tmp_path / "new.onnx", f"onnx:graph={source}")
    assert fields((tmp_path / "new.onnx").read_bytes(), 1, 11, 12, 13) == fields(source.read_bytes(), 1, 11, 12, 13)
    assert squish.diff(source, tmp_path / "new.onnx").same


@pytest.fixture(params=["", "safetensors"])
def own_graph(request, tmp_path):
    """A function that writes a model with a weight of [K, N]; returns a source with its values, and the model."""

    def write(values: np.ndarray) -> tuple[Path, Path]:
        source = graph = tmp_path / "old.onnx"
        source.write_bytes(model(tensor("w", values), *OWN["MatMul"], RELU, *EDGES) + message(2, "an exporter"))
        if request.param:
            squish.convert(graph, source := tmp_path / "old.safetensors")
        (tmp_path / "out").mkdir()
        return source, graph

    return write


@pytest.mark.parametrize("values", [SQUARE, WEIGHT.T])
def test_a_weight_whose_rows_are_inputs_has_no_codes_with_blocks_along_rows(tmp_path, values, own_graph):
    source, graph = own_graph(values)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, tmp_path / "out" / "new.onnx", f"onnx:graph={graph}", "q8_0")
    assert (caught.value.code, caught.value.tensor) == ("graph-use", "w")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("values", "encode"), [(WEIGHT.T, "affine:bits=4,group_size=16"), (SQUARE, ["w=int4:transposed=true"])]
)
def test_a_weight_whose_rows_are_inputs_has_codes_with_blocks_along_inputs(tmp_path, values, encode, own_graph):
    source, graph = own_graph(values)
    report = squish.convert(source, tmp_path / "out" / "new.onnx", f"onnx:graph={graph}", encode)
    assert "transposed=True" in report.steps[0].target
    assert kinds((tmp_path / "out" / "new.onnx").read_bytes()) == ["MatMulNBits", "Relu"]
    with squish.open(tmp_path / "out" / "new.onnx") as file:
        block = file["w"].spec.encodings[0].codec.params["group_size"]
        scales = np.repeat(file["w"].parts()["scale"].numpy(), block, axis=-1)
        assert (np.abs(file["w"].numpy() - values.T) <= scales * 0.51).all()


def test_square_codes_of_a_model_behind_a_transposition_stay_its_own(tmp_path):
    source = tmp_path / "old.onnx"
    shape = message(5, number(1, 2), number(2, 7), message(8, "shape"), message(9, np.int64([0, -1]).tobytes()))
    source.write_bytes(model(tensor("w", SQUARE), shape, *OWN["Transpose"], RELU, *EDGES))
    report = squish.convert(source, tmp_path / "new.onnx", f"onnx:graph={source}", "affine:bits=8,group_size=64")
    assert "MatMulNBits" in kinds((tmp_path / "new.onnx").read_bytes())
    assert {step.name: step.target for step in report.steps}["shape"] == "i64"
    with squish.open(tmp_path / "new.onnx") as file:
        assert file["shape"].numpy().tolist() == [0, -1]


def test_weights_of_a_model_take_the_place_of_transposed_ones_of_another(tmp_path):
    (tmp_path / "old.onnx").write_bytes(model(tensor("w", WEIGHT), *OWN["Transpose"], RELU, *EDGES))
    (tmp_path / "graph.onnx").write_bytes(model(tensor("w", WEIGHT.T), *OWN["MatMul"], RELU, *EDGES))
    squish.convert(tmp_path / "old.onnx", tmp_path / "new.onnx", f"onnx:graph={tmp_path / 'graph.onnx'}")
    assert kinds((tmp_path / "new.onnx").read_bytes()) == ["Transpose", "MatMul", "Relu"]


def write_folder(folder: Path, source: Path) -> Path:
    """A folder with the model and its data."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(source.read_bytes())
    (folder / "external.data").write_bytes(source.with_name("external.data").read_bytes())
    return folder


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("name", ["external", "types"])
def test_a_model_keeps_its_graph_without_options(tmp_path, name, kind):
    source = Path(__file__).parent / "data" / f"{name}.onnx"
    report = squish.convert(
        write_folder(tmp_path / "old", source) if kind == "folder" else source, tmp_path / "new.onnx"
    )
    kept = (1, 2, 11, 12, 13)
    assert fields((tmp_path / "new.onnx").read_bytes(), *kept) == fields(source.read_bytes(), *kept)
    assert not report.dropped
    assert not report.notes
    assert squish.diff(source, tmp_path / "new.onnx").same


def test_codes_take_the_place_of_weights_without_options(tmp_path):
    source = tmp_path / "old.onnx"
    source.write_bytes(model(*GRAPHS["Transpose"], OTHER, RELU, *EDGES))
    assert run(["convert", str(source), str(tmp_path / "new.onnx"), "--encode", "q8_0"]) == 0
    data = (tmp_path / "new.onnx").read_bytes()
    assert kinds(data) == ["MatMulNBits", "Relu"]
    assert {RELU, OTHER, *EDGES} <= set(fields(data, 1, 5, 11, 12, 13))
    assert message(14, message(1, "key"), message(2, "value")) in data


def test_initializers_that_are_left_out_keep_their_values(tmp_path):
    source = tmp_path / "old.onnx"
    words = message(5, number(1, 1), number(2, 8), message(8, "words"), message(6, "text"))
    source.write_bytes(model(*GRAPHS["Transpose"], OTHER, words, RELU, *EDGES))
    report = squish.convert(source, tmp_path / "new.onnx", only="w")
    assert {OTHER, words} <= set(fields((tmp_path / "new.onnx").read_bytes(), 5))
    assert report.notes[0].startswith("the graph keeps the values of 2 initializers: ")


def inside(*initializers: bytes) -> bytes:
    """A node with a graph of these initializers."""
    return node("If", ["y"], ["q"], message(5, message(1, "body"), message(6, *initializers)))


def test_initializers_of_graphs_inside_nodes_take_values(tmp_path):
    old = Path(__file__).parent / "data" / "nested.onnx"
    report = squish.convert(old, tmp_path / "new.onnx")
    assert not report.dropped
    assert squish.diff(old, tmp_path / "new.onnx").same
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(model(inside(tensor("w", np.zeros((COLUMNS, 512)))), RELU, *EDGES))
    values = np.random.default_rng(2).standard_normal((COLUMNS, 512)).astype(np.float32)
    squish.convert({"0/body/w": values}, tmp_path / "other.onnx", f"onnx:graph={graph}")
    with squish.open(tmp_path / "other.onnx") as file:
        assert np.array_equal(file["0/body/w"].numpy(), values)
        assert file.index.tensors["0/body/w"].encodings[0].parts["data"].segments[0].file == 1


def test_external_data_inside_nodes_moves_along(tmp_path):
    (tmp_path / "old.data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    location = message(13, message(1, "location"), message(2, "old.data"))
    far = message(5, number(1, 4), number(2, 1), message(8, "far"), location, number(14, 1))
    (tmp_path / "old.onnx").write_bytes(model(*GRAPHS["Transpose"], inside(far), RELU, *EDGES))
    (tmp_path / "out").mkdir()
    for only in ("w", None):
        squish.convert(tmp_path / "old.onnx", tmp_path / "out" / "new.onnx", only=only, overwrite=True)
        with squish.open(tmp_path / "out" / "new.onnx") as file:
            assert file["2/body/far"].numpy().tolist() == [0, 1, 2, 3]


INSIDE = {
    "codes": (WEIGHT, "affine:bits=4,group_size=32", "graph-use"),
    "shape": (WEIGHT.T, None, "shape"),
    "dtype": (WEIGHT.astype(np.float16), None, "dtype"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_has_no_place_inside_a_node_is_refused(tmp_path, name):
    values, encode, code = INSIDE[name]
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(model(inside(tensor("w", WEIGHT)), RELU, *EDGES))
    (tmp_path / "out").mkdir()
    with pytest.raises(squish.SquishError) as caught:
        squish.convert({"0/body/w": values}, tmp_path / "out" / "new.onnx", f"onnx:graph={graph}", encode)
    assert (caught.value.code, caught.value.tensor) == (code, "0/body/w")
    assert not list((tmp_path / "out").iterdir())


def test_a_model_takes_its_own_place(tmp_path):
    original = Path(__file__).parent / "data" / "external.onnx"
    folder = write_folder(tmp_path / "old", original)
    source = folder / "model.onnx"
    squish.convert(source, source, overwrite=True)
    (folder / "external.data").unlink()
    assert squish.diff(original, source).same


def test_a_model_in_memory_asks_for_a_graph(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(model(*GRAPHS["Transpose"], RELU, *EDGES), tmp_path / "out" / "new.onnx")
    assert caught.value.code == "config"
    assert not list((tmp_path / "out").iterdir())


def test_a_damaged_graph_is_a_typed_error_or_a_model(tmp_path):
    """Every byte of a small graph replaced, and the file cut at every length."""
    data = model(*GRAPHS["Transpose"], RELU, *EDGES)
    start = data.index(WEIGHT.tobytes())
    offsets = [*range(start), *range(start + WEIGHT.nbytes, len(data))]
    damaged = [data[:offset] + bytes([data[offset] ^ 128]) + data[offset + 1 :] for offset in offsets]
    damaged += [data[:length] for length in offsets]
    squish.save(tmp_path / "w.gguf", {"w": WEIGHT}, encode="q4_0")
    codes = set()
    with squish.open(tmp_path / "w.gguf") as source:
        for data in damaged:
            (tmp_path / "old.onnx").write_bytes(data)
            try:
                squish.convert(source, tmp_path / "new.onnx", f"onnx:graph={tmp_path / 'old.onnx'}", dry_run=True)
            except squish.SquishError as error:
                codes.add(error.code)
    assert {"protobuf", "tensor-unused"} <= codes
    assert "plugin-bug" not in codes


def test_the_command_takes_the_graph_and_the_names(tmp_path):
    (tmp_path / "old.onnx").write_bytes(model(*GRAPHS["MatMul"], RELU, *EDGES))
    (tmp_path / "names.json").write_text('{"layer.weight": "w"}')
    squish.save(tmp_path / "w.gguf", {"layer.weight": WEIGHT}, encode="q4_0")
    (tmp_path / "out").mkdir()
    graph = ["--graph", str(tmp_path / "old.onnx"), "--names", str(tmp_path / "names.json")]
    assert run(["convert", str(tmp_path / "w.gguf"), str(tmp_path / "out" / "new.onnx"), *graph]) == 0
    assert kinds((tmp_path / "out" / "new.onnx").read_bytes()) == ["MatMulNBits", "Relu"]
    assert run(["convert", str(tmp_path / "w.gguf"), str(tmp_path / "new.gguf"), *graph, "--to", "gguf"]) == 2
