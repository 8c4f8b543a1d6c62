"""Matrices that are read through a codec around another with their last two axes swapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_convert.arrays import in_memory
from squish_convert.mapping.row_views import RowViews, transpose

from squish_core.errors import CodecError
from squish_core.model import CodecSpec
from squish_core.tensor import Tensor

VALUES = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
FILE = in_memory({"w": VALUES, "v": VALUES[0, 0]}, registry=toys.registry())
SPEC = FILE.index.tensors["w"]


def test_any_region_is_read() -> None:
    tensor = Tensor(FILE, transpose(SPEC))
    assert tensor.shape == (3, 6, 4)
    np.testing.assert_array_equal(tensor.numpy(), VALUES.swapaxes(1, 2))
    np.testing.assert_array_equal(tensor[1:3, 2:5, 1:2], VALUES.swapaxes(1, 2)[1:3, 2:5, 1:2])


def test_a_matrix_that_is_transposed_twice_is_the_stored_one() -> None:
    twice = transpose(transpose(SPEC))
    assert (twice.shape, twice.encodings) == (SPEC.shape, SPEC.encodings)


def test_the_rows_of_several_matrices_are_those_of_one_and_are_separated_again() -> None:
    views = RowViews(FILE)
    joined = views.reshape(transpose(SPEC), (18, 4))
    tensor, expected = Tensor(FILE, joined), VALUES.swapaxes(1, 2).reshape(18, 4)
    np.testing.assert_array_equal(tensor.numpy(), expected)
    np.testing.assert_array_equal(tensor[4:14, 1:3], expected[4:14, 1:3])
    assert transpose(views.reshape(joined, (3, 6, 4))).encodings == SPEC.encodings


@pytest.mark.parametrize("joined", [0, 4, "3", True])
def test_rows_of_another_number_of_matrices_are_refused(joined: Any) -> None:
    spec = RowViews(FILE).reshape(transpose(SPEC), (18, 4))
    (encoding,) = spec.encodings
    codec = evolve(encoding.codec, params={"joined": joined})
    with pytest.raises(CodecError) as caught:
        Tensor(FILE, evolve(spec, encodings=(evolve(encoding, codec=codec),))).numpy()
    assert caught.value.code in ("params", "shape")


def test_a_vector_is_refused() -> None:
    (encoding,) = FILE.index.tensors["v"].encodings
    codec = CodecSpec("transpose", {}, encoding.codec)
    with pytest.raises(CodecError) as caught:
        Tensor(FILE, evolve(FILE.index.tensors["v"], encodings=(evolve(encoding, codec=codec),))).numpy()
    assert caught.value.code == "params"


def test_a_transpose_alone_is_no_codec() -> None:
    with pytest.raises(CodecError) as caught:
        toys.registry().codec(CodecSpec("transpose"))
    assert caught.value.code == "params"
