"""Rows of a tensor, and one tensor of a stack, read through a codec around another."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_convert.arrays import in_memory

from squish_core.errors import CodecError
from squish_core.model import CodecSpec, TensorSpec
from squish_core.tensor import Tensor

VALUES = np.arange(5 * 4 * 6, dtype=np.float32).reshape(5, 4, 6)
FILE = in_memory({"w": VALUES}, registry=toys.registry())


def cut(shape: tuple[int, ...], **params: object) -> Tensor:
    """A part of the values, read through the codec."""
    (encoding,) = FILE.index.tensors["w"].encodings
    codec = CodecSpec("slice", params, encoding.codec)
    spec: TensorSpec = evolve(FILE.index.tensors["w"], shape=shape, encodings=(evolve(encoding, codec=codec),))
    return Tensor(FILE, spec)


@pytest.mark.parametrize("rows", [slice(0, 2), slice(1, 2)])
def test_any_region_of_rows_is_read(rows: slice) -> None:
    tensor = cut((2, 4, 6), start=3, rows=5, single=False)
    np.testing.assert_array_equal(tensor[rows, 1:3], VALUES[3:5][rows, 1:3])


@pytest.mark.parametrize("number", [0, 4])
def test_one_tensor_of_a_stack_is_read(number: int) -> None:
    tensor = cut((4, 6), start=number, rows=5, single=True)
    np.testing.assert_array_equal(tensor.numpy(), VALUES[number])
    np.testing.assert_array_equal(tensor[1:3, 2:5], VALUES[number, 1:3, 2:5])


@pytest.mark.parametrize(
    ("shape", "params"),
    [
        ((2, 4, 6), {"start": 4, "rows": 5, "single": False}), ((4, 6), {"start": 5, "rows": 5, "single": True}),
        ((4, 6), {"start": -1, "rows": 5, "single": True}), ((4, 6), {"start": 0, "rows": 5}), ((4, 6), {}),
        ((), {"start": 0, "rows": 5, "single": False}),
    ],
)  # fmt: skip
def test_a_slice_beyond_the_tensor_is_refused(shape: tuple[int, ...], params: dict[str, object]) -> None:
    with pytest.raises(CodecError) as caught:
        cut(shape, **params).numpy()
    assert caught.value.code == "params"


def test_a_slice_alone_is_no_codec() -> None:
    with pytest.raises(CodecError) as caught:
        toys.registry().codec(CodecSpec("slice"))
    assert caught.value.code == "params"
