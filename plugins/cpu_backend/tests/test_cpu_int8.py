"""Int8 activations: the error is bounded by their rounding, and they are opt-in."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case, every, name_of
from random_parts import random_tensor
from squish_cpu.backend import NUMBERS, weights_of
from squish_cpu.layouts import layout_of
from squish_cpu.layouts.base import UncoveredError
from squish_cpu.library import library
from squish_testing import expect_error

from squish_core.api import CodecSpec, SquishError

WISH = "cpu:activations=int8"


CASES = [case for case in every() if len(case[1]) == 2 and case[1][1] % 32 == 0]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_error_is_bounded_by_activation_rounding(case: Case, instructions: str) -> None:
    """Half a step (max|x| / 254) per activation times its weight, plus float32 summation."""
    codec, shape, dtype = case
    tensor = random_tensor(codec, shape, dtype=dtype)
    try:
        weight = tensor.load(WISH)
    except SquishError as error:
        if error.code != "no-chain":
            raise
        return
    assert not weight.chain.chosen.exact
    values = tensor.numpy().astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    values = values[finite]
    x = np.random.default_rng(0).standard_normal((3, shape[1]), np.float32)
    x[:, :32] *= 40
    x[1, 32:64] = 0
    steps = np.repeat(np.abs(x).reshape(3, -1, 32).max(axis=2) / 254, 32, axis=1).astype(np.float64)
    # Codes are summed uncentered, so rounding is relative to the largest code.
    room = 1e-4 * np.abs(values).max(axis=1, initial=0) * np.abs(x).sum(axis=1, dtype=np.float64)[:, None]
    error = np.abs(weight.linear(x)[:, finite] - x.astype(np.float64) @ values.T)
    assert (error <= steps @ np.abs(values).T * 1.001 + room).all()


@pytest.mark.parametrize("case", [*every()], ids=name_of)
def test_kernels_exist_exactly_for_the_declared_layouts(case: Case, instructions: str) -> None:
    """A product without a kernel would return uninitialized memory."""
    tensor = random_tensor(case[0], case[1], dtype=case[2])
    codec = tensor.spec.encodings[0].codec
    layout = layout_of(codec, tensor.spec)
    weights, arrays = weights_of(layout, {role: part.numpy() for role, part in tensor.parts().items()})
    try:
        layout.check_int8()
    except UncoveredError:
        covered = False
    else:
        covered = True
    x = np.zeros((1, layout.columns), np.float32)
    room, out = np.empty(8 * layout.columns + 4096, np.float32), np.empty(layout.rows, np.float32)
    multiplied = library().multiply_as(
        weights, NUMBERS["int8"], 0, layout.rows, x.ctypes.data, 1, room.ctypes.data, out.ctypes.data, layout.rows, 1
    )
    assert bool(multiplied) == covered, arrays.keys()


@pytest.mark.parametrize("magnitude", [3e-38, 1e-40, 1e-45])
def test_tiny_activations_give_tiny_products(magnitude: float, instructions: str) -> None:
    """Their scale has no finite inverse."""
    tensor = random_tensor(CodecSpec("ggml.q8_0"), (8, 256))
    values = tensor.numpy()
    finite = np.isfinite(values).all(axis=1)
    y = tensor.load(WISH).linear(np.full((1, 256), magnitude, np.float32))[:, finite]
    assert finite.any()
    assert (np.abs(y) <= 256 * magnitude * np.abs(values[finite]).max()).all()


def test_int8_activations_are_opt_in() -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_k"), (8, 256))
    assert tensor.plan().chosen.exact
    assert "int8 activations" in tensor.plan(WISH).explain()
    with expect_error(SquishError, code="backend", found="activations=int4"):
        tensor.plan("cpu:activations=int4")
    with pytest.raises(SquishError) as refusal:
        random_tensor(CodecSpec("ggml.q3_k"), (8, 256)).plan(WISH)
    assert refusal.value.code == "no-chain"


def test_threads_are_an_option() -> None:
    tensor = random_tensor(CodecSpec("ggml.q8_0"), (300, 256))
    x = np.random.default_rng(0).standard_normal((2, 256), np.float32)
    one, many = (tensor.load(f"{WISH},threads={count}").linear(x) for count in (1, 5))
    assert one.tobytes() == many.tobytes()
    with expect_error(SquishError, code="no-chain", tensor="w"):
        tensor.load("cpu:threads=0")
