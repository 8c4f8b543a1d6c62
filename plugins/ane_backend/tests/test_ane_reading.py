"""Packages written by coremltools decode bit-identically to coremltools."""

import json
import math
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from squish_ane.coreml import blobs, constexpr
from squish_ane.coreml.program import MOST_NUMBERS, Kind, Operation, Value, kind_of, read_program
from squish_ane.coreml.program import _value as program_value
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import FormatError, LimitError, Limits, MissingFileError, SquishError
from squish_core.formats.protobuf import Message, message, number

DATA = Path(__file__).parent / "data"
WEIGHTS = dict(np.load(DATA / "weights.npz"))
OPTIMISED = dict(np.load(DATA / "optimised.npz"))


def matrix(file):
    """The weight; the zero bias is a separate tensor."""
    (matrix,) = (tensor for tensor in file.values() if len(tensor.shape) == 2)
    return matrix


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_values_match_coremltools(packages, name):
    with squish.open(packages / f"{name}.mlpackage") as file:
        assert file.format == "mlpackage"
        assert not file.problems
        tensor = matrix(file)
        assert (tensor.shape, tensor.dtype) == (WEIGHTS[name].shape, "f16")
        assert tensor.numpy().astype(np.float16).tobytes() == WEIGHTS[name].tobytes()
        np.testing.assert_array_equal(tensor[1:3, 2:5], tensor.numpy()[1:3, 2:5])


@pytest.mark.parametrize("name", sorted(OPTIMISED))
def test_optimized_packages_match_coremltools(packages, name):
    with squish.open(packages / f"{name}.mlpackage") as file:
        assert not file.problems
        expected = OPTIMISED[name]
        (tensor,) = (tensor for tensor in file.values() if tensor.shape == expected.shape)
        assert tensor.dtype == "f16"
        assert tensor.numpy().astype(np.float16).tobytes() == expected.tobytes()
        np.testing.assert_array_equal(tensor[1:3, 2:5], tensor.numpy()[1:3, 2:5])
        np.testing.assert_array_equal(tensor[5:], tensor.numpy()[5:])
    assert squish.verify(packages / f"{name}.mlpackage", deep=True).ok


def test_a_large_integer_constant_is_read_in_bounded_memory():
    """Two bytes per number; Python objects would take a hundred times as much."""
    data = message(3, message(1, message(2, number(1, 1) * 1_000_000)))
    (field,) = Message.of(message(1, kind_of(2, 23, (1_000_000,)) + data))
    tracemalloc.start()
    try:
        value = program_value(field)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value.numbers == (1,) * MOST_NUMBERS
    assert peak < 1 << 20


def test_too_many_operations_are_refused_early(package):
    with expect_error(LimitError, code="count", offset=692, expected="at most 1"):
        read_program(model_of(package).read_bytes(), Limits(tensors=1))


def test_unsupported_operations_are_reported(package):
    data = model_of(package).read_bytes()
    model_of(package).write_bytes(data.replace(b"constexpr_blockwise_shift_scale", b"constexpr_blockwise_shift_plate"))
    with squish.open(package) as file:
        assert list(file) == ["y_bias_0"]
        assert "constexpr_blockwise_shift_plate" in file.problems[0].message


@pytest.mark.parametrize(
    "name", ["old_lut4", "lut4_groups", "int4_blocks", "uint4_blocks_offset", "lut4_vectors", "old_sparse",
             "joint", "sparse_int8"]
)  # fmt: skip
def test_rewriting_a_package_keeps_its_codes(packages, tmp_path, name):
    """Codes are copied, not decoded, and read back equal."""
    target = tmp_path / "again.mlpackage"
    report = squish.convert(packages / f"{name}.mlpackage", target)
    assert [(step.action, str(step.exactness)) for step in report.steps] == [("copy", "bytes")] * 2
    with squish.open(target) as file:
        tensor = matrix(file)
        assert tensor.numpy().astype(np.float16).tobytes() == WEIGHTS[name].tobytes()


@pytest.mark.parametrize(
    "name", ["box_int4", "box_int4_columns", "box_uint4_offsets", "box_int8_offsets", "box_int4_kernel",
             "lut_groups_of_columns", "sparse_int4_blocks", "sparse_uint4_blocks", "sparse_int4_boxes",
             "sparse_int8_offsets", "sparse_int8_tensor", "sparse_lut_groups"]
)  # fmt: skip
def test_rewriting_a_package_keeps_its_boxes(packages, tmp_path, name):
    target = tmp_path / "again.mlpackage"
    report = squish.convert(packages / f"{name}.mlpackage", target)
    assert {(step.action, str(step.exactness)) for step in report.steps} == {("copy", "bytes")}
    with squish.open(target) as file:
        assert any(tensor.numpy().astype(np.float16).tobytes() == OPTIMISED[name].tobytes() for tensor in file.values())


@pytest.mark.parametrize("name", ["lut_channel_scale", "lut_int8", "lut_scaled_after", "sparse_lut_int8"])
def test_palettes_with_scales_are_read_but_not_written(packages, tmp_path, name):
    with pytest.raises(SquishError) as caught:
        squish.convert(packages / f"{name}.mlpackage", tmp_path / "again.mlpackage")
    assert caught.value.code == "refused"


@pytest.mark.parametrize("name", ["box_int4", "box_int4_columns", "box_uint4_offsets"])
def test_box_codes_repack_to_groups(packages, tmp_path, name):
    target = tmp_path / "model.squizd"
    report = squish.convert(packages / f"{name}.mlpackage", target, encode={"*bias*": "f16"})
    assert "repack" in {step.action for step in report.steps}
    with squish.open(target) as file:
        np.testing.assert_array_equal(matrix(file).numpy().astype(np.float16), OPTIMISED[name])


@pytest.fixture
def package(packages, tmp_path):
    return Path(shutil.copytree(packages / "int4_blocks.mlpackage", tmp_path / "p.mlpackage"))


def weights_of(package):
    return package / "Data/com.apple.CoreML/weights/weight.bin"


def model_of(package):
    return package / "Data/com.apple.CoreML/model.mlmodel"


def patched(path, at, data):
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("at", "data", "offset", "found"),
    [
        (4, b"\x01", 0, 1),
        (64, b"\0", 64, "0xdeadbe00"),
        (68, b"\x01", 64, "f16"),
        (72, b"\x01", 64, "513 bytes with 0 spare bits"),
        (80, b"\x01", 64, 1),
        (82, b"\xff", 64, 16711808),
        (88, b"\x04", 64, "512 bytes with 4 spare bits"),
    ],
)  # fmt: skip
def test_inconsistent_records_are_refused(package, at, data, offset, found):
    patched(weights_of(package), at, data)
    fields = {"file": str(weights_of(package)), "tensor": "constexpr_blockwise_shift_scale_0"}
    with expect_error(FormatError, code="blob", offset=offset, found=found, **fields):
        squish.open(package)


def test_the_message_about_a_record_names_file_tensor_offset_and_values(package):
    patched(weights_of(package), 68, b"\x01")
    with expect_error(FormatError, code="blob") as caught:
        squish.open(package)
    assert str(caught.value) == (
        f"{weights_of(package)}: constexpr_blockwise_shift_scale_0: blob dtype mismatch "
        "(at byte 64, expected i4, found f16)"
    )


@pytest.mark.parametrize("name", ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"])
def test_missing_files_are_reported(package, name):
    (package / name).unlink()
    with pytest.raises(SquishError):
        squish.open(package, format="mlpackage")


def test_missing_weights_are_reported(package):
    shutil.rmtree(weights_of(package).parent)
    with expect_error(MissingFileError, code="missing", tensor="constexpr_blockwise_shift_scale_0"):
        squish.open(package)


@pytest.mark.parametrize("deep", [False, True])
def test_links_are_not_followed(package, deep):
    place = weights_of(package).parent if deep else weights_of(package)
    moved = package.parent / "elsewhere"
    place.rename(moved)
    place.symlink_to(moved)
    with expect_error(FormatError, code="link", tensor="constexpr_blockwise_shift_scale_0"):
        squish.open(package)


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "/etc/passwd", "com.apple.CoreML/../../../x", 5, None, "", "x" * 2000, "com.apple.CoreML"],
)
def test_manifest_paths_stay_inside(package, path):
    manifest = json.loads((package / "Manifest.json").read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = path
    (package / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SquishError) as caught:
        squish.open(package)
    assert caught.value.code != "plugin-bug"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"itemInfoEntries": 3}', "[" * 100000, '{"rootModelIdentifier": []}'])
def test_damaged_manifests_are_refused(package, text):
    (package / "Manifest.json").write_text(text)
    with expect_error(FormatError, code="manifest"):
        squish.open(package)


def test_weights_in_another_file_are_refused(package):
    raw = model_of(package).read_bytes()
    name = b"@model_path/weights/weight.bin"
    model_of(package).write_bytes(
        raw.replace(name, b"@model_path/../../../../weight".ljust(len(name), b"x")[: len(name)])
    )
    with expect_error(
        FormatError,
        code="path",
        tensor="constexpr_blockwise_shift_scale_0",
        expected="@model_path/weights/weight.bin",
        found="'@model_path/../../../../weight'",
    ):
        squish.open(package)


def constant(dtype, shape):
    return Value(kind=Kind(dtype, shape), data=bytes(blobs.nbytes(dtype, math.prod(shape))))


TABLES = {
    "fewer entries than indices": ("constexpr_lut_to_dense", {
        "indices": constant("u4", (4, 4)), "lut": constant("f16", (1, 1, 15, 1))}),
    "more entries": ("constexpr_lut_to_dense", {
        "indices": constant("u2", (4, 4)), "lut": constant("f16", (1, 1, 16, 1))}),
    "iOS16, not a power of two": ("constexpr_lut_to_dense", {
        "indices": constant("u8", (8,)), "lut": constant("f16", (10,)),
        "shape": constant("u32", (2,))}),
    "under a mask": ("constexpr_lut_to_sparse", {
        "indices_nonzero_data": constant("u4", (9,)), "indices_mask": constant("u1", (4, 4)),
        "lut": constant("f16", (1, 1, 8, 1))}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_indices_cannot_exceed_their_table(name):
    """A table without 2**bits entries is refused before any index is read."""
    kind, values = TABLES[name]
    operation = Operation(type=kind, values=values, inputs={}, outputs=(("w", Kind("f16", (4, 4))),))
    with expect_error(FormatError, code="shape", tensor="w"):
        constexpr.tensor_of(operation)


@pytest.mark.parametrize("name", ["old_sparse", "sparse", "joint", "sparse_int8"])
def test_a_mask_with_the_wrong_number_of_bits_is_refused(packages, tmp_path, name):
    package = Path(shutil.copytree(packages / f"{name}.mlpackage", tmp_path / "p.mlpackage"))
    with squish.open(package) as file:
        (segment,) = matrix(file).spec.encodings[0].parts["mask"].segments
    raw = weights_of(package).read_bytes()[segment.offset]
    patched(weights_of(package), segment.offset, bytes([raw ^ 1]))
    with squish.open(package) as file, expect_error(SquishError, code="mask"):
        matrix(file).numpy()
