"""Panels of sixteen rows: the same products from another layout, and only where asked for."""

from __future__ import annotations

import numpy as np
import pytest
from cases import AWQ, Case, name_of
from random_parts import random_tensor, same

from squish_core.api import CodecSpec, SquishError

INT8 = "cpu:activations=int8,repack=rows"
SHAPES = ((37, 512), (16, 2304))
CASES = [
    (codec, shape, "f32")
    for shape in SHAPES
    for codec in (
        CodecSpec("ggml.q4_0"), CodecSpec("ggml.q4_1"), CodecSpec("ggml.q4_k"),
        CodecSpec("squizd.int4", {"group_size": 64}),
        *(CodecSpec("affine", {"bits": 4, "group_size": size, "offset": offset, "scale_dtype": dtype})
          for size, offset, dtype in (
              (32, "none", "f16"), (32, "none", "bf16"), (64, "bias", "f16"), (256, "bias", "bf16"),
              (32, "zero_point", "f32"), (128, "zero_point", "f16"))),
    )
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_error_is_that_of_rounding_activations(case: Case, instructions: str) -> None:
    """As for codes in place: half a step of each activation times its weight, and the rounding of sums in float32."""
    codec, shape, dtype = case
    tensor = random_tensor(codec, shape, dtype=dtype)
    values = tensor.numpy().astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    values = values[finite]
    x = np.random.default_rng(0).standard_normal((13, shape[1]), np.float32)
    x[:, :32] *= 40
    x[1, 32:64] = 0
    steps = np.repeat(np.abs(x).reshape(13, -1, 32).max(axis=2) / 254, 32, axis=1).astype(np.float64)
    room = 1e-4 * np.abs(values).max(axis=1, initial=0) * np.abs(x).sum(axis=1, dtype=np.float64)[:, None]
    weight = tensor.load(INT8)
    error = np.abs(weight.linear(x)[:, finite] - x.astype(np.float64) @ values.T)
    assert (error <= steps @ np.abs(values).T * 1.001 + room).all()
    same(weight.dense(), tensor.load("numpy").dense())


def test_vectors_and_threads_do_not_change_bits(instructions: str) -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_1"), (1000, 256))
    x = np.random.default_rng(0).standard_normal((14, 256), np.float32)
    one, many = (tensor.load(f"{INT8},threads={count}") for count in (1, 5))
    same(one.linear(x), many.linear(x))
    same(one.linear(x), np.stack([one.linear(row) for row in x]))


def test_experts_need_not_fill_panels(instructions: str) -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_0"), (3, 21, 64))
    x, ids = np.random.default_rng(0).standard_normal((5, 64), np.float32), np.array([2, 0, 2, 1, 1])
    in_place = tensor.load("cpu:activations=int8", op="experts").experts(x, ids)
    np.testing.assert_allclose(tensor.load(INT8, op="experts").experts(x, ids), in_place, rtol=1e-4, atol=1e-3)


def test_it_is_an_option_that_says_its_memory() -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_0"), (40, 64))
    assert "16 rows" not in tensor.chain().explain()
    chosen = tensor.chain(INT8).chosen
    assert chosen.cost is not None
    assert chosen.cost.resident == 48 * 64 // 2 + 48 * 2 * 2
    assert "panels of 16 rows" in chosen.layout
    with pytest.raises(SquishError, match="no such option"):
        tensor.chain("cpu:repack=columns")


@pytest.mark.parametrize(
    "codec", [CodecSpec("ggml.q8_0"), CodecSpec("affine", {"bits": 4, "group_size": 32, **AWQ})], ids=str
)
def test_what_has_no_panels_is_refused(codec: CodecSpec) -> None:
    with pytest.raises(SquishError):
        random_tensor(codec, (64, 64)).chain(INT8)
