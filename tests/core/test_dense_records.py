"""A format states where a dense tensor lies; the core makes the spec, the view and the array."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from squish_core.api import (
    DENSE,
    CodecSpec,
    DenseRecord,
    Encoding,
    FileRef,
    Filter,
    Index,
    LazyTensors,
    Part,
    Segment,
    TensorSpec,
    open_source,
)
from squish_core.file import File
from squish_core.limits import DEFAULT
from squish_core.plugins.registry import registry

VALUES = np.arange(6, dtype="<f4").reshape(2, 3)


def file_of(tmp_path: Path, data: bytes, tensors: LazyTensors) -> File:
    """An open file that holds these bytes and nothing else."""
    path = tmp_path / "data"
    path.write_bytes(data)
    index = Index(format="toy", version="", files=(FileRef("data", len(data)),), tensors=tensors)
    return File(open_source(path), index, registry(), DEFAULT)


def test_a_record_gives_a_spec_and_a_view(tmp_path: Path) -> None:
    tensors = LazyTensors({"w": DenseRecord("f32", (2, 3), 0, 8, "crc32c:0x0")})
    part = Part(dtype="f32", shape=(2, 3), segments=(Segment(0, 8, 24),), digest="crc32c:0x0")
    encoding = Encoding(codec=DENSE, parts={"data": part})
    assert tensors["w"] == TensorSpec(name="w", shape=(2, 3), dtype="f32", encodings=(encoding,))
    with file_of(tmp_path, bytes(8) + VALUES.tobytes(), tensors) as file:
        array = file.numpy()["w"]
        np.testing.assert_array_equal(array, VALUES)
        np.testing.assert_array_equal(file["w"].numpy(), VALUES)
        assert not array.flags.owndata
        np.testing.assert_array_equal(file.numpy(copy=True)["w"], VALUES)


def test_a_builder_may_give_records_and_specs(tmp_path: Path) -> None:
    records = {"w": DenseRecord("f32", (2, 3), 0, 0), "problem": "its dtype is unknown"}
    tensors = pickle.loads(pickle.dumps(LazyTensors(records, describe)))
    assert dict(tensors.dense_records()) == {"w": records["w"]}
    assert tensors["problem"].problem == "its dtype is unknown"
    assert tensors["w"].dense_record() == records["w"]


def test_the_fields_of_a_record_do_for_a_record(tmp_path: Path) -> None:
    fields = ("f32", (2, 3), 0, 0, None)
    tensors = LazyTensors({"w": fields})
    assert tensors["w"] == DenseRecord(*fields).spec("w")
    with file_of(tmp_path, VALUES.tobytes(), tensors) as file:
        np.testing.assert_array_equal(file.numpy()["w"], VALUES)
        np.testing.assert_array_equal(file.numpy(copy=True)["w"], VALUES)


def test_a_spec_is_built_once(tmp_path: Path) -> None:
    specs = []

    def build(name: str, record: DenseRecord) -> TensorSpec:
        specs.append(record.spec(name))
        return specs[-1]

    tensors = LazyTensors({"w": DenseRecord("f32", (2, 3), 0, 0)}, build)
    assert len(dict(tensors.dense_records())) == 1
    assert [tensors["w"]] == specs


def describe(name: str, record: DenseRecord | str) -> DenseRecord | TensorSpec:
    """A tensor, or why it cannot be read."""
    return TensorSpec(name=name, shape=(), dtype="f32", problem=record) if isinstance(record, str) else record


@pytest.mark.parametrize(("dtype", "shape", "stored"), [("bool", (2,), b"\1\0"), ("f4_e2m1", (4,), b"\x21\x43")])
def test_bools_and_packed_types_are_decoded(tmp_path: Path, dtype: str, shape: tuple[int, ...], stored: bytes) -> None:
    with file_of(tmp_path, stored, LazyTensors({"w": DenseRecord(dtype, shape, 0, 0)})) as file:
        array, tensor = file.numpy()["w"], file["w"].numpy()
        np.testing.assert_array_equal(array, tensor)
        assert file["w"].spec.encodings[0].parts["data"].nbytes == len(stored)
        assert not np.shares_memory(array, tensor)


@pytest.mark.parametrize(
    "change",
    [
        {"byteorder": ">"},
        {"filters": (Filter("zstd"),)},
        {"segments": (Segment(0, 0, 12), Segment(0, 16, 12))},
        {"segments": (), "data": VALUES.tobytes()},
        {"shape": (3, 2)},
        {"dtype": "u32"},
    ],
)
def test_a_tensor_that_no_view_can_show_has_no_dense_record(change: dict[str, object]) -> None:
    part = Part(dtype="f32", shape=(2, 3), segments=(Segment(0, 0, 24),))
    spec = TensorSpec(name="w", shape=(2, 3), dtype="f32", encodings=(Encoding(codec=DENSE, parts={"data": part}),))
    assert spec.dense_record() == DenseRecord("f32", (2, 3), 0, 0)
    changed = Encoding(codec=DENSE, parts={"data": evolve(part, **change)})
    assert evolve(spec, encodings=(changed,)).dense_record() is None
    other = Encoding(codec=CodecSpec("affine"), parts={"data": part})
    assert evolve(spec, encodings=(other,)).dense_record() is None
