"""What a model's initializers are: every element type, raw or as numbers, inside or beside the model."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish
from squish_core.formats.protobuf import message, number

DATA = Path(__file__).parent / "data"
DRAWN = runpy.run_path(str(DATA / "drawn.py"))


@pytest.fixture(scope="module")
def types():
    with squish.open(DATA / "types.onnx") as file:
        yield file


@pytest.mark.parametrize(
    "name", [*(f"raw.{dtype}" for dtype in DRAWN["RAW"]), *(f"numbers.{dtype}" for dtype in DRAWN["NUMBERS"])]
)
def test_values_of_every_element_type_are_those_that_onnx_wrote(types, name):
    expected = DRAWN["values"](name.partition(".")[2])
    values = types[name].numpy()
    assert values.dtype == expected.dtype
    assert values.tobytes() == expected.tobytes()


def test_a_scalar_has_no_axes(types):
    assert types["scalar"].shape == ()
    assert types["scalar"].numpy() == 7


def test_metadata_is_that_of_the_model(types):
    assert types.metadata["architecture"] == "none"
    assert types.metadata["onnx.ir_version"] == 10


def test_properties_do_not_take_the_place_of_the_models_own_fields():
    entry = message(14, message(1, "onnx.ir_version"), message(2, "text"))
    with squish.open(number(1, 10) + message(7) + entry, format="onnx") as file:
        assert (file.metadata["onnx.ir_version"], file.index.version) == (10, "10")


def test_a_folder_is_its_model(tmp_path):
    shutil.copy(DATA / "external.onnx", tmp_path / "model.onnx")
    shutil.copy(DATA / "external.data", tmp_path)
    with squish.open(tmp_path) as file:
        assert file["large"].numpy()[1, 0] == 64


def test_a_model_is_recognized_without_its_suffix(tmp_path):
    shutil.copy(DATA / "types.onnx", tmp_path / "model.bin")
    with squish.open(tmp_path / "model.bin") as file:
        assert file.format == "onnx"


def test_raw_and_external_values_are_views():
    for name, tensor in (("types", "raw.f32"), ("external", "large")):
        with squish.open(DATA / f"{name}.onnx") as file:
            assert not file[tensor].numpy().flags.owndata


def test_strings_and_unknown_types_are_listed_with_the_reason():
    tensors = [message(5, number(2, code), message(8, f"type {code}")) for code in (8, 99)]
    with squish.open(number(1, 10) + message(7, *tensors), format="onnx") as file:
        for name, reason in (("type 8", "strings"), ("type 99", "99")):
            assert reason in str(file[name].spec.problem)
            with pytest.raises(squish.TensorError):
                file[name].numpy()


def test_a_sparse_initializer_is_listed_with_the_reason():
    values = message(1, number(1, 1), number(2, 1), message(8, "sparse"), message(9, bytes(4)))
    with squish.open(number(1, 10) + message(7, message(15, values, number(3, 4))), format="onnx") as file:
        assert "sparse" in str(file["sparse"].spec.problem)


def test_opening_reads_no_weights(tmp_path):
    """A sparse file of 4 GiB beside the model opens at once."""
    with open(tmp_path / "weights", "wb") as weights:
        weights.truncate(1 << 32)
    entries = [message(13, message(1, "location"), message(2, "weights")), number(14, 1)]
    tensor = message(5, number(1, 1 << 30), number(2, 1), message(8, "w"), *entries)
    (tmp_path / "model.onnx").write_bytes(number(1, 10) + message(7, tensor))
    with squish.open(tmp_path / "model.onnx") as file:
        assert file["w"][-1] == np.float32(0)
