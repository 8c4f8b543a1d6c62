"""Tensors whose groups of rows alternate in a larger one, read through codecs around another."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_convert.arrays import in_memory
from squish_convert.mapping.codecs.groups import Groups
from squish_convert.mapping.row_views import deinterleave, interleave, transpose

from squish_core.errors import SquishError
from squish_core.model import CodecSpec, TensorSpec
from squish_core.tensor import Tensor

WHOLE = np.arange(2 * 12 * 4, dtype=np.float32).reshape(2, 12, 4)
HEADS = np.arange(15 * 4, dtype=np.float32).reshape(15, 4)
PIECES = {"a": HEADS.reshape(3, 5, 4)[:, :3], "b": HEADS.reshape(3, 5, 4)[:, 3:]}
FRAMES = np.arange(3 * 2 * 2 * 5 * 5, dtype=np.float32).reshape(3, 2, 2, 5, 5)
"""A convolution over two images."""
SLICES = {"f": FRAMES, "f0": FRAMES[:, :, 0], "f1": FRAMES[:, :, 1]}
ARRAYS = {"w": WHOLE, "h": HEADS, **PIECES, "t": PIECES["a"].swapaxes(1, 2), "v": HEADS[0], **SLICES}
FILE = in_memory({name: np.ascontiguousarray(values) for name, values in ARRAYS.items()}, registry=toys.registry())
SINGLE, FOLDED = Groups((1, 2), 1), Groups((3, 2), 0, 2)
IMAGES = Groups((1, 1), 2, 0)


def spec(name: str) -> TensorSpec:
    return FILE.index.tensors[name]


def test_pieces_are_read_by_regions() -> None:
    rows = WHOLE.reshape(2, 4, 3, 4)
    expected = (rows[:, :, :1].reshape(2, 4, 4), rows[:, :, 1:].reshape(2, 8, 4))
    for number, values in enumerate(expected):
        tensor = Tensor(FILE, deinterleave(spec("w"), SINGLE, number))
        np.testing.assert_array_equal(tensor.numpy(), values)
        np.testing.assert_array_equal(tensor[1:, 1:3, 2:], values[1:, 1:3, 2:])


def test_folded_pieces_have_an_axis_for_the_groups() -> None:
    for number, name in enumerate(PIECES):
        tensor = Tensor(FILE, deinterleave(spec("h"), FOLDED, number))
        np.testing.assert_array_equal(tensor.numpy(), PIECES[name])
        np.testing.assert_array_equal(tensor[1:2, 1:, 1:3], PIECES[name][1:2, 1:, 1:3])


def test_pieces_without_the_axis_are_its_rows() -> None:
    for number in range(2):
        tensor = Tensor(FILE, deinterleave(spec("f"), IMAGES, number))
        np.testing.assert_array_equal(tensor.numpy(), FRAMES[:, :, number])
        np.testing.assert_array_equal(tensor[1:, :1, 2:], FRAMES[1:, :1, number, 2:])
    tensor = Tensor(FILE, interleave([spec("f0"), spec("f1")], IMAGES, FILE.registry))
    np.testing.assert_array_equal(tensor.numpy(), FRAMES)
    np.testing.assert_array_equal(tensor[1:, :1, 1:, 2:], FRAMES[1:, :1, 1:, 2:])


@pytest.mark.parametrize("first", ["a", "t"])
def test_the_larger_tensor_is_read_by_regions(first: str) -> None:
    piece = transpose(spec("t")) if first == "t" else spec("a")
    tensor = Tensor(FILE, interleave([piece, spec("b")], FOLDED, FILE.registry))
    np.testing.assert_array_equal(tensor.numpy(), HEADS)
    np.testing.assert_array_equal(tensor[4:11, 1:3], HEADS[4:11, 1:3])


@pytest.mark.parametrize(("name", "groups"), [("w", SINGLE), ("h", FOLDED), ("f", IMAGES)])
def test_pieces_become_the_stored_tensor_again(name: str, groups: Groups) -> None:
    pieces = [deinterleave(spec(name), groups, number) for number in range(2)]
    again = interleave(pieces, groups, FILE.registry)
    assert (again.shape, again.encodings) == (spec(name).shape, spec(name).encodings)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("h", SINGLE), ("v", SINGLE), ("w", Groups((5, 2), 1)), ("w", IMAGES)],
)
def test_rows_that_do_not_divide_are_refused(name: str, groups: Groups) -> None:
    with pytest.raises(SquishError) as caught:
        deinterleave(spec(name), groups, 0)
    assert caught.value.code == "params"


def test_tensors_of_different_codecs_do_not_alternate() -> None:
    other = evolve(spec("b"), dtype="f16")
    with pytest.raises(SquishError) as caught:
        interleave([spec("a"), other], FOLDED, FILE.registry)
    assert (caught.value.code, caught.value.tensor) == ("rows", "b")


@pytest.mark.parametrize("codec", ["interleave", "deinterleave"])
@pytest.mark.parametrize(
    "params",
    [
        {}, {"rows": (1,), "axis": 0, "axes": 1}, {"rows": (1, 0), "axis": 0, "axes": 1},
        {"rows": (1, 1), "axis": 0, "axes": 1, "number": 2}, {"rows": (1, 2), "axis": 0, "axes": 0},
        {"rows": (1, 1), "axis": 0, "axes": 3}, {"rows": (1, 1), "axis": 0, "axes": True},
    ],
)  # fmt: skip
def test_parameters_that_are_no_groups_are_refused(codec: str, params: dict[str, object]) -> None:
    (encoding,) = spec("w").encodings
    damaged = evolve(encoding, codec=CodecSpec(codec, params, encoding.codec))
    with pytest.raises(SquishError) as caught:
        Tensor(FILE, evolve(spec("w"), encodings=(damaged,))).numpy()
    assert caught.value.code == "params"
    with pytest.raises(SquishError) as caught:
        toys.registry().codec(CodecSpec(codec))
    assert caught.value.code == "params"
