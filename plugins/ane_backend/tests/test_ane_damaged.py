"""Damaged packages open, or raise a typed error other than a plugin bug."""

import json
import random
import shutil
import zipfile
from pathlib import Path

import pytest
from squish_ane.coreml import constexpr
from squish_ane.coreml.program import Kind, Operation, Value
from squish_testing.mutations import mutant
from squish_testing.suite import typed_errors_only

import squish_core as squish
from squish_core.api import FormatError, SquishError

DATA = Path(__file__).parent / "data"
MODEL, MANIFEST = "Data/com.apple.CoreML/model.mlmodel", "Manifest.json"
NUMBERS = (0, 1, 2, 3, 5, 8, 10, 16, 21, 25, 31, 35, 36, 37, 38, 39, 63, 64, 127)
NAMES = sorted(
    {
        name.split("/")[0]
        for archive in ("packages.zip", "optimised.zip")
        for name in zipfile.ZipFile(DATA / archive).namelist()
    }
)


def with_other_numbers(data, seed):
    """A specification with one or two small numbers replaced: sizes, types, axes, offsets."""
    chance, out = random.Random(seed), bytearray(data)
    places = [at for at in range(1, len(data)) if data[at - 1] in (8, 16, 24) and data[at] < 128]
    for _ in range(chance.choice((1, 1, 2))):
        out[chance.choice(places)] = chance.choice(NUMBERS)
    return bytes(out)


def read(package, what):
    with typed_errors_only(what), squish.open(package) as file:
        for tensor in file.values():
            with typed_errors_only(what):
                tensor.numpy()


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_package_is_a_file_or_a_typed_error(packages, tmp_path, name):
    package = Path(shutil.copytree(packages / name, tmp_path / name))
    for path, damages in ((package / MODEL, (with_other_numbers, mutant)), (package / MANIFEST, (mutant,))):
        data = path.read_bytes()
        for damage in damages:
            for number in range(12):
                path.write_bytes(damage(data, number))
                read(package, f"{path.name}, {damage.__name__} {number}")
        path.write_bytes(data)


@pytest.mark.parametrize(
    "manifest",
    [
        {"itemInfoEntries": [], "rootModelIdentifier": 5},
        {"itemInfoEntries": "", "rootModelIdentifier": 0},
        {"itemInfoEntries": [{"path": "x"}], "rootModelIdentifier": "a"},
        {"itemInfoEntries": [[]], "rootModelIdentifier": 0},
    ],
)
def test_a_manifest_whose_entries_are_a_list_is_refused(packages, tmp_path, manifest):
    package = Path(shutil.copytree(packages / "lut4.mlpackage", tmp_path / "p.mlpackage"))
    (package / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(FormatError) as caught:
        squish.open(package)
    assert caught.value.code == "manifest"


def value(dtype, *shape):
    return Value(kind=Kind(dtype, shape), at=64)


OPERATIONS = {
    "vectors of nothing": ("constexpr_lut_to_dense", {
        "indices": value("u4", 4, 4), "lut": value("f16", 1, 1, 16, 0)}),
    "vectors of nothing under a mask": ("constexpr_lut_to_sparse", {
        "indices_nonzero_data": value("u4", 9), "indices_mask": value("u1", 4, 4), "lut": value("f16", 1, 1, 16, 0)}),
    "no groups": ("constexpr_lut_to_dense", {"indices": value("u4", 4, 4), "lut": value("f16", 0, 1, 16, 1)}),
    "groups that do not divide": ("constexpr_lut_to_dense", {
        "indices": value("u4", 4, 4), "lut": value("f16", 3, 1, 16, 1)}),
    "groups under a mask that do not divide": ("constexpr_lut_to_sparse", {
        "indices_nonzero_data": value("u4", 9), "indices_mask": value("u1", 4, 4), "lut": value("f16", 3, 1, 16, 1)}),
    "no blocks": ("constexpr_blockwise_shift_scale", {"data": value("i4", 4, 4), "scale": value("f16", 0, 1)}),
    "blocks that do not divide": ("constexpr_blockwise_shift_scale", {
        "data": value("i4", 4, 4), "scale": value("f16", 3, 2)}),
    "blocks under a mask that do not divide": ("constexpr_sparse_blockwise_shift_scale", {
        "nonzero_data": value("i4", 9), "data_mask": value("u1", 4, 4), "scale": value("f16", 3, 2)}),
    "zero points of another type": ("constexpr_sparse_blockwise_shift_scale", {
        "nonzero_data": value("i4", 9), "data_mask": value("u1", 4, 4), "scale": value("f16", 2, 2),
        "offset": value("u8", 2, 2)}),
}  # fmt: skip
UNREADABLE = {
    "integers of an unknown type": ("constexpr_affine_dequantize", {
        "quantized_data": value("", 4, 4), "zero_point": value(""), "scale": value("f16"), "axis": value("i32")}),
    "scales of an unknown type": ("constexpr_blockwise_shift_scale", {
        "data": value("i4", 4, 4), "scale": value("", 4, 1)}),
    "tables of an unknown type": ("constexpr_lut_to_dense", {
        "indices": value("u4", 4, 4), "lut": value("", 1, 1, 16, 1)}),
    "masked integers of an unknown type": ("constexpr_sparse_blockwise_shift_scale", {
        "nonzero_data": value("", 9), "data_mask": value("u1", 4, 4), "scale": value("f16", 2, 2)}),
}  # fmt: skip


def operation(kind, values):
    return Operation(type=kind, values=values, inputs={}, outputs=(("w", Kind("f16", (4, 4))),))


@pytest.mark.parametrize("name", OPERATIONS)
def test_inconsistent_operands_are_refused(name):
    with pytest.raises(SquishError) as caught:
        constexpr.tensor_of(operation(*OPERATIONS[name]))
    assert (caught.value.code, caught.value.tensor) == ("shape", "w")


@pytest.mark.parametrize("name", UNREADABLE)
def test_operands_of_unknown_type_leave_other_tensors_readable(name):
    with pytest.raises(constexpr.UnsupportedError):
        constexpr.tensor_of(operation(*UNREADABLE[name]))
