"""Operands of products: arrays of other libraries are taken by value, or refused with what to do about it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from random_parts import random_tensor

from squish_core.api import CodecSpec, SquishError
from squish_core.backends.weight import Weight
from squish_core.io.buffer import Buffer

COLUMNS = 64


class Foreign:
    """As a torch tensor: NumPy's protocol fails with `error`, and DLPack exports another object's memory."""

    def __init__(self, exporter: Any, error: Exception, *, device: int = 1, requires_grad: bool = False) -> None:
        self.exporter, self.error, self.device, self.requires_grad = exporter, error, device, requires_grad

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise type(self.error)(*self.error.args)  # a new one: its traceback holds the array

    def __dlpack__(self, **options: Any) -> Any:
        return self.exporter.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


UNSUPPORTED = TypeError("Got unsupported ScalarType BFloat16")


@pytest.fixture
def weight() -> Weight:
    return random_tensor(CodecSpec("affine", {"bits": 4, "group_size": 32}), (5, COLUMNS), finite=True).load()


def bf16(values: np.ndarray) -> Buffer:
    """The upper halves of floats, as a stored array of bf16."""
    return Buffer(memoryview((values.view(np.uint32) >> 16).astype("<u2").tobytes()), "bf16", values.shape)


def test_bf16_of_another_library_is_taken_by_value(weight: Weight) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, COLUMNS)).astype(np.float32)  # exact in bf16
    np.testing.assert_array_equal(weight.linear(Foreign(bf16(x), UNSUPPORTED)), weight.linear(x))


@pytest.mark.parametrize("view", ["transposed", "reversed", "every second"])
def test_strides_are_followed(weight: Weight, view: str) -> None:
    values = np.random.default_rng(0).standard_normal((COLUMNS, 2 * COLUMNS), np.float32)
    x = {"transposed": values.T[:3], "reversed": values[::-1, COLUMNS - 1 :: -1], "every second": values[:3, ::2]}[view]
    np.testing.assert_array_equal(weight.linear(Foreign(x, UNSUPPORTED)), weight.linear(np.ascontiguousarray(x)))


def test_an_operand_without_rows_gives_a_product_without_rows(weight: Weight) -> None:
    assert weight.linear(Foreign(np.empty((0, COLUMNS), np.float32), UNSUPPORTED)).shape == (0, 5)


def test_the_memory_of_an_operand_is_released(weight: Weight) -> None:
    x = np.ones((2, COLUMNS), np.float32)
    before = sys.getrefcount(x)
    foreign = Foreign(x, UNSUPPORTED)
    weight.linear(foreign)
    del foreign
    assert sys.getrefcount(x) == before


def test_a_tensor_that_requires_a_gradient_is_refused_with_the_next_step(weight: Weight) -> None:
    error = RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    x = Foreign(np.ones(COLUMNS, np.float32), error, requires_grad=True)
    with pytest.raises(SquishError) as refusal:
        weight.linear(x)
    assert (refusal.value.code, refusal.value.tensor) == ("operand", "w")
    assert ".detach()" in str(refusal.value.hint)


def test_a_view_that_its_library_must_resolve_first_is_not_read_through_dlpack(weight: Weight) -> None:
    """DLPack exports the memory of torch's negated views without their sign."""
    error = RuntimeError("Can't call numpy() on Tensor that has negative bit set.")
    with pytest.raises(SquishError) as refusal:
        weight.linear(Foreign(np.ones(COLUMNS, np.float32), error))
    assert (refusal.value.code, refusal.value.tensor) == ("operand", "w")
    assert "negative bit" in str(refusal.value.found)


@pytest.mark.parametrize(
    "x",
    [
        Foreign(np.ones(COLUMNS, np.float32), TypeError("can't convert cuda:0 device type tensor"), device=2),
        Foreign(np.ones(COLUMNS, np.complex64), UNSUPPORTED),
        np.ones(COLUMNS, np.complex64),
        [[1.0], [2.0, 3.0]],
        ["one"] * COLUMNS,
    ],
    ids=["cuda", "complex by DLPack", "complex", "ragged", "text"],
)
def test_operands_must_be_arrays_of_real_numbers(weight: Weight, x: Any) -> None:
    with pytest.raises(SquishError) as refusal:
        weight.linear(x)
    assert (refusal.value.code, refusal.value.tensor) == ("operand", "w")
    assert refusal.value.found


def test_ids_that_cannot_be_an_array_are_refused(weight: Weight) -> None:
    with pytest.raises(SquishError) as refusal:
        weight.embed(Foreign(object(), TypeError("can't convert meta device type tensor to numpy")))
    assert (refusal.value.code, refusal.value.tensor) == ("ids", "w")
