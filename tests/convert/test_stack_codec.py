"""Tensors stacked on reading, as a codec around another."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from squish_convert.arrays import in_memory
from squish_convert.mapping.row_views import RowViews

from squish_core.errors import CodecError
from squish_core.model import CodecSpec, Encoding, Part, TensorSpec
from squish_core.tensor import Tensor

VALUES = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
DENSE = CodecSpec("dense", {"dtype": "f32"})
FILE = in_memory({"w": VALUES}, registry=toys.registry())


def stack(shape: tuple[int, ...] = VALUES.shape) -> Tensor:
    """The values, each matrix in a part of its own."""
    parts = {
        f"{number}.data": Part(dtype="f32", shape=(4, 6), data=matrix.tobytes()) for number, matrix in enumerate(VALUES)
    }
    encoding = Encoding(codec=CodecSpec("stack", {}, DENSE), parts=parts)
    return Tensor(FILE, TensorSpec(name="w", shape=shape, dtype="f32", encodings=(encoding,)))


@pytest.mark.parametrize("members", [slice(0, 3), slice(1, 2), slice(2, 3)])
def test_any_region_is_read_from_its_tensors(members: slice) -> None:
    np.testing.assert_array_equal(stack()[members, 1:3, 2:5], VALUES[members, 1:3, 2:5])


def test_a_tensor_of_a_stack_is_its_own_parts() -> None:
    tensor = stack()
    member = RowViews(FILE).member(tensor.spec, 1)
    assert (member.shape, member.encodings[0].codec, set(member.encodings[0].parts)) == ((4, 6), DENSE, {"data"})
    np.testing.assert_array_equal(Tensor(FILE, member).numpy(), VALUES[1])


def test_a_part_of_another_shape_is_refused() -> None:
    with pytest.raises(CodecError) as caught:
        stack(shape=()).numpy()
    assert caught.value.code == "params"


def test_a_stack_alone_is_no_codec() -> None:
    with pytest.raises(CodecError) as caught:
        toys.registry().codec(CodecSpec("stack"))
    assert caught.value.code == "params"
