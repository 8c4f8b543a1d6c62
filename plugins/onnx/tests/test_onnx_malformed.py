"""Malformed models raise a typed error that names the tensor and the byte, at little cost."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish
from squish_core.formats.protobuf import header, message, number, packed_list

MiB = 1 << 20
ENDLESS = b"\xff" * 11


def tensor(*fields: bytes, name: str = "w", dtype: int = 1, dims: tuple[int, ...] = (2,)) -> bytes:
    """An initializer."""
    return message(5, *(number(1, size) for size in dims), number(2, dtype), message(8, name), *fields)


def external(**entries: str) -> bytes:
    """The fields of external data."""
    pairs = [message(13, message(1, key), message(2, value)) for key, value in entries.items()]
    return b"".join(pairs) + number(14, 1)


def model(*parts: bytes) -> bytes:
    """A model with these parts of a graph."""
    return number(1, 10) + message(7, *parts)


def nested(depth: int) -> bytes:
    """Graphs in graphs."""
    graph = b""
    for _ in range(depth):
        graph = message(1, message(5, message(1, "body"), message(6, graph)))
    return model(graph)


RAW = message(9, bytes(8))
CASES = {
    "no graph": (number(1, 10), "graph", None),
    "cut in a tensor": (model(tensor(RAW))[:-3], "protobuf", 2),
    "an endless number": (number(1, 10) + message(7, b"\x28" + ENDLESS), "protobuf", 5),
    "field number 0": (model(b"\0\0"), "protobuf", 4),
    "a group": (model(b"\x0b"), "protobuf", 4),
    "a number for a tensor": (model(number(5, 3)), "protobuf", 4),
    "a negative dimension": (model(tensor(RAW, dims=(-2,))), "shape", 4),
    "65 dimensions": (model(tensor(RAW, dims=(1,) * 65)), "shape", None),
    "a million dimensions": (model(message(5, packed_list(1, *[1] * MiB), message(8, "w"))), "shape", None),
    "a shape beyond any array": (model(tensor(RAW, dims=(1 << 62, 1 << 62))), "shape", 4),
    "too few raw bytes": (model(tensor(message(9, bytes(7)))), "size", 4),
    "no values": (model(tensor()), "size", 4),
    "too few numbers": (model(tensor(packed_list(7, 1), dtype=7)), "size", 4),
    "numbers of another type": (model(tensor(packed_list(7, 1, 2))), "dtype", 4),
    "numbers of two types": (model(tensor(packed_list(5, 1), packed_list(7, 1), dtype=6)), "dtype", 4),
    "a packed number that does not end": (model(tensor(message(7, b"\x80\x80"), dtype=7)), "protobuf", None),
    "a name that is not UTF-8": (model(message(5, message(8, b"\xff"), number(2, 1))), "protobuf", None),
    "an empty name": (model(tensor(RAW, name="")), "name", 4),
    "a name of 2 KiB": (model(tensor(RAW, name="w" * 2048)), "name", None),
    "a name twice": (model(tensor(RAW), tensor(RAW)), "duplicate", None),
    "graphs 40 deep": (nested(40), "depth", None),
    "graphs 10000 deep": (nested(4000), "depth", None),
    "a sparse tensor without values": (model(message(15, number(3, 4))), "sparse", 4),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def plugin_is_loaded():
    """So that the first test does not count the memory of imports."""
    squish.open(model(tensor(RAW)), format="onnx").close()


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_model_is_an_error_that_says_where(name):
    data, code, offset = CASES[name]
    tracemalloc.start()
    with pytest.raises(squish.SquishError) as caught:
        squish.open(data, format="onnx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == code
    assert offset is None or caught.value.offset == offset
    assert peak < 4 * MiB + 8 * len(data)


OUTSIDE = ["../secret", "/etc/passwd", "a/../../secret", "C:/secret", "a\\b", "", ".hidden", "sub//weights", "w\0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with 64 bytes of weights, beside a file that no model may read."""
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(np.arange(16, dtype=np.float32).tobytes())
    return tmp_path / "model"


def opened(folder: Path, *tensors: bytes) -> squish.File:
    (folder / "model.onnx").write_bytes(model(*tensors))
    return squish.open(folder / "model.onnx")


def error_of(folder: Path, **entries: str) -> squish.SquishError:
    with pytest.raises(squish.SquishError) as caught:
        opened(folder, tensor(external(**entries)))
    assert caught.value.tensor == "w"
    return caught.value


@pytest.mark.parametrize("location", OUTSIDE)
def test_external_data_outside_the_folder_is_refused(folder, location):
    assert error_of(folder, location=location).code == "path"


def test_external_data_without_a_location_is_refused(folder):
    assert error_of(folder, offset="0").code == "path"


def test_a_model_is_not_its_own_external_data(folder):
    assert error_of(folder, location="model.onnx").code == "path"


@pytest.mark.skipif(os.name != "posix", reason="links need privileges on Windows")
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_external_data_through_a_link_is_refused(folder, link):
    link(folder.parent / "secret", folder / "linked")
    assert error_of(folder, location="linked").code == "link"


@pytest.mark.skipif(os.name != "posix", reason="links need privileges on Windows")
@pytest.mark.parametrize("opened", ["model.onnx", "."])
def test_the_hubs_cache_links_the_model_and_its_data_into_one_folder(tmp_path, opened):
    """As onnxruntime since 1.32: external data may lie in the folder that the link to the model leads to."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "revision" / "onnx"
    for each in (blobs, snapshot):
        each.mkdir(parents=True)
    (blobs / "1").write_bytes(model(tensor(external(location="model.onnx_data"))))
    (blobs / "2").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "secret").write_bytes(bytes(8))
    (snapshot / "model.onnx").symlink_to("../../../blobs/1")
    data = snapshot / "model.onnx_data"
    data.symlink_to("../../../blobs/2")
    with squish.open(snapshot / opened) as file:
        assert file["w"].numpy().tolist() == [1, 2]
    for target in ("../../../secret", "/etc/hostname"):
        data.unlink()
        data.symlink_to(target)
        with pytest.raises(squish.SquishError) as caught:
            squish.open(snapshot / opened)
        assert caught.value.code == "link"
    data.unlink()
    (blobs / "2").unlink()
    os.link(tmp_path / "secret", blobs / "2")
    data.symlink_to("../../../blobs/2")
    with pytest.raises(squish.SquishError) as caught:
        squish.open(snapshot / opened)
    assert caught.value.code == "link"


def test_values_in_two_fields_are_a_warning(folder):
    raw, floats = np.array([1, 2], "<f4").tobytes(), np.array([3, 4], "<f4").tobytes()
    with opened(folder, tensor(message(9, raw), message(4, floats))) as file:
        assert file["w"].numpy().tolist() == [1, 2]
        (problem,) = file.problems
    assert (problem.code, problem.severity, problem.where) == ("doubled", "warning", "w")
    assert "raw_data and float_data" in problem.message
    assert [each.code for each in squish.verify(folder / "model.onnx").problems] == ["doubled"]


@pytest.mark.skipif(os.name != "posix", reason="links need privileges on Windows")
def test_external_data_in_a_linked_folder_is_refused(folder):
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "weights").write_bytes(bytes(8))
    (folder / "sub").symlink_to(folder.parent / "other")
    assert error_of(folder, location="sub/weights").code == "link"


@pytest.mark.parametrize(("entries", "code"), [
    ({"offset": "-1"}, "external"), ({"offset": "0x10"}, "external"), ({"length": "8 "}, "external"),
    ({"offset": "9" * 5000}, "external"), ({"length": "9"}, "size"), ({"offset": "60"}, "size"),
    ({"offset": "60", "length": "8"}, "bounds"), ({"offset": str(1 << 62), "length": "8"}, "bounds"),
])  # fmt: skip
def test_external_data_with_a_wrong_range_is_refused(folder, entries, code):
    assert error_of(folder, location="weights", **entries).code == code


def test_external_data_that_overlaps_is_refused(folder):
    tensors = [
        tensor(external(location="weights", offset=offset, length="8"), name=f"at {offset}") for offset in ("0", "4")
    ]
    with pytest.raises(squish.FormatError) as caught:
        opened(folder, *tensors)
    assert caught.value.code == "overlap"


def test_external_data_missing_from_the_folder_is_named(folder):
    error = error_of(folder, location="gone")
    assert (error.code, error.tensor, error.file) == ("missing", "w", str(folder / "gone"))


def test_external_data_in_a_folder_of_the_model_is_read(folder):
    (folder / "sub").mkdir()
    (folder / "weights").rename(folder / "sub" / "weights")
    with opened(folder, tensor(external(location="sub/weights", offset="8"))) as file:
        assert file["w"].numpy().tolist() == [2, 3]


BYTES = tensor(message(9, bytes(2)), name="codes", dtype=2, dims=(1, 2))
"""A matrix of bytes, for which nodes are read."""


@pytest.mark.parametrize(
    ("node", "code"), [(message(1, *[message(1, "x")] * 70_000), "count"), (b"\n\0" * 40, "header")]
)
def test_nodes_with_too_many_values_are_refused(node, code):
    with pytest.raises(squish.LimitError) as caught:
        squish.open(model(BYTES, node), format="onnx", limits=squish.Limits(header=10_000 if code == "header" else MiB))
    assert caught.value.code == code


@pytest.mark.parametrize("kind", ["MatMulNBits", "Gather", "GatherBlockQuantized"])
@pytest.mark.parametrize("inputs", [0, 1, 2, 9])
def test_operators_without_their_inputs_declare_nothing(kind, inputs):
    names = [message(1, "codes")] * inputs
    node = message(1, *names, message(4, kind), b"" if kind == "Gather" else message(7, "com.microsoft"))
    with squish.open(model(BYTES, node), format="onnx") as file:
        assert list(file) == ["codes"]


@pytest.mark.parametrize("number_", [1, 10])
def test_a_header_of_2_gib_costs_nothing(tmp_path, number_):
    """A node or a text of 2 GiB: the file is sparse, and no page of it is read."""
    size = (1 << 31) + 5
    start = number(1, 10) + header(7, size + 6) + header(number_, size)
    with open(tmp_path / "model.onnx", "wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    tracemalloc.start()
    if number_ == 1:
        with pytest.raises(squish.LimitError) as caught:
            squish.open(tmp_path / "model.onnx")
        assert (caught.value.code, caught.value.offset) == ("header", 2 + len(header(7, size + 6)))
    else:
        squish.open(tmp_path / "model.onnx").close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MiB


def test_keys_of_external_data_change_nothing_else(folder):
    entries = {"location": "weights", "__class__": "x", "info": "y"}
    with opened(folder, tensor(external(**entries))) as file:
        assert file["w"].numpy().tolist() == [0, 1]
