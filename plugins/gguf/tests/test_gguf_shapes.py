"""Shapes that GGUF cannot store: read from ComfyUI's keys, and written with them."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import squish_core as squish

KEY = "comfy.gguf.orig_shape."


def shape_key(raw, name, sizes, code=5):
    form = {4: "I", 5: "i", 10: "Q", 11: "q"}[code]
    return raw.array(f"{KEY}{name}", code, len(sizes), struct.pack(f"<{len(sizes)}{form}", *sizes))


def comfy_file(raw, sizes, *, code=0, element_type=5, name="conv.weight"):
    """A file with one tensor of 9 x 32 numbers, dense or of Q8_0, and the key of its shape."""
    values = np.arange(288, dtype="f4").reshape(9, 32)
    data = values.tobytes()
    if code == 8:
        data = b"".join(struct.pack("<e32b", 1, *(int(value) % 100 for value in row)) for row in values)
    pairs = (raw.text("general.architecture", "sdxl"), shape_key(raw, name, sizes, element_type))
    return raw.file(pairs, (raw.tensor("conv.weight", (32, 9), code),), data.ljust(-(-len(data) // 32) * 32, b"\0"))


@pytest.mark.parametrize("element_type", [4, 5, 10, 11])
@pytest.mark.parametrize("sizes", [(8, 4, 3, 3), (288,), (3, 3, 32), (2, 2, 2, 4, 9)])
def test_a_key_gives_a_dense_tensor_its_shape(raw, sizes, element_type):
    with squish.open(comfy_file(raw, sizes, element_type=element_type)) as file:
        assert file["conv.weight"].shape == sizes
        np.testing.assert_array_equal(file["conv.weight"].numpy(), np.arange(288, dtype="f4").reshape(sizes))
        assert not file.problems
        assert not any(key.startswith(KEY) for key in file.metadata)


@pytest.mark.parametrize("sizes", [(8, 4, 3, 3), (3, 3, 32), (3, 3, 1, 1, 32)])
def test_a_key_gives_blocks_their_shape(raw, sizes, tmp_path):
    data = comfy_file(raw, sizes, code=8)
    expected = (np.arange(288) % 100).reshape(sizes)
    with squish.open(data) as file:
        tensor = file["conv.weight"]
        assert tensor.shape == sizes
        np.testing.assert_array_equal(tensor.numpy(), expected)
        np.testing.assert_array_equal(tensor[1:3], expected[1:3])
        squish.convert(file, tmp_path / "copy.gguf")
        squish.convert(file, tmp_path / "copy.safetensors", encode="f32")
    with squish.open(tmp_path / "copy.safetensors") as file:
        np.testing.assert_array_equal(file["conv.weight"].numpy(), expected)
    with squish.open(tmp_path / "copy.gguf") as file:
        assert file["conv.weight"].spec.encodings[0].codec == tensor.spec.encodings[0].codec
        np.testing.assert_array_equal(file["conv.weight"].numpy(), expected)


def test_a_dense_tensor_is_written_in_its_own_shape(raw, tmp_path):
    (tmp_path / "model.gguf").write_bytes(comfy_file(raw, (8, 4, 3, 3)))
    squish.convert(tmp_path / "model.gguf", tmp_path / "copy.gguf")
    data = (tmp_path / "copy.gguf").read_bytes()
    assert KEY.encode() not in data
    assert raw.string("conv.weight") + struct.pack("<I4Q", 4, 3, 3, 4, 8) in data


@pytest.mark.parametrize("sizes", [(8, 4, 3), (-1, 288), (0,), (), (1,) * 17, (288, 1 << 30)])
def test_a_shape_that_does_not_fit_is_ignored_with_a_warning(raw, sizes):
    with squish.open(comfy_file(raw, sizes)) as file:
        assert file["conv.weight"].shape == (9, 32)
        assert [(problem.code, problem.severity, problem.where) for problem in file.problems] == [
            ("shape", "warning", f"{KEY}conv.weight")
        ]


def test_a_shape_of_no_tensor_stays_a_key(raw):
    with squish.open(comfy_file(raw, (8, 4, 3, 3), name="other.weight")) as file:
        assert file["conv.weight"].shape == (9, 32)
        assert f"{KEY}other.weight" in file.metadata


@pytest.mark.parametrize(
    ("shape", "encode", "stored"),
    [
        ((8, 2, 2, 2, 4), None, (16, 2, 2, 4)),
        ((2, 3, 2, 2, 2, 32), "q8_0", (12, 2, 2, 32)),
        ((8, 4, 3, 3), None, (8, 4, 3, 3)),
    ],
)
def test_more_than_four_dimensions_are_written_with_a_key(shape, encode, stored, tmp_path, raw):
    values = np.random.default_rng(0).standard_normal(shape).astype("f4")
    report = squish.save(tmp_path / "out.gguf", {"conv.weight": values}, encode=encode)
    data = (tmp_path / "out.gguf").read_bytes()
    assert report.size == len(data)
    assert raw.string("conv.weight") + struct.pack(f"<I{len(stored)}Q", len(stored), *reversed(stored)) in data
    assert (shape_key(raw, "conv.weight", shape) in data) == (stored != shape)
    with squish.open(tmp_path / "out.gguf") as file:
        assert file["conv.weight"].shape == shape
        np.testing.assert_allclose(file["conv.weight"].numpy(), values, atol=0.02 if encode else 0)
        assert str(file["conv.weight"].spec.encodings[0].codec) == (f"ggml.{encode}" if encode else "dense")
