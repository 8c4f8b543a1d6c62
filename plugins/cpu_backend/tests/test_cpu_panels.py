"""Panels of 16 rows: equal products from another layout; a repack is opt-in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import AWQ, PANELS, Case, name_of
from random_parts import random_tensor, same
from squish_testing import expect_error
from squish_testing.sources import memory_file

from squish_core.api import CodecSpec, SquishError, TensorSpec, dtypes, full
from squish_core.tensor import Tensor

INT8, BF16, F32 = (f"cpu:activations={kind},repack=rows" for kind in ("int8", "bf16", "f32"))
SHAPES = ((37, 512), (16, 2304))
CASES = [
    (codec, shape, "f32")
    for shape in SHAPES
    for codec in (
        CodecSpec("ggml.q4_0"),
        CodecSpec("ggml.q4_1"),
        CodecSpec("ggml.q4_k"),
        CodecSpec("squizd.int4", {"group_size": 64}),
        *(
            CodecSpec("affine", {"bits": 4, "group_size": size, "offset": offset, "scale_dtype": dtype})
            for size, offset, dtype in (
                (32, "none", "f16"),
                (32, "none", "bf16"),
                (64, "bias", "f16"),
                (256, "bias", "bf16"),
                (32, "zero_point", "f32"),
                (128, "zero_point", "f16"),
            )
        ),
    )
]
STORED = [
    *((CodecSpec("affine", {"bits": 4, "signed": False, **params}), params) for params in PANELS),
    (CodecSpec("ggml.q4_0"), {"group_size": 32, "zero": 8, "scale_dtype": "f16"}),
    (CodecSpec("ggml.q4_1"), {"group_size": 32, "offset": "bias", "scale_dtype": "f16"}),
]


def steps_of(wish: str, x: np.ndarray) -> np.ndarray:
    """Error bound per activation: half an int8 step, half a bf16 ulp, or zero."""
    if wish == F32:
        return np.zeros(x.shape)
    if wish == BF16:
        return np.abs(x).astype(np.float64) / 256
    return np.repeat(np.abs(x).reshape(len(x), -1, 32).max(axis=2) / 254, 32, axis=1).astype(np.float64)


@pytest.mark.parametrize("wish", [INT8, BF16, F32])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_error_is_bounded_by_activation_rounding(case: Case, wish: str, instructions: str) -> None:
    """The error of each activation times its weight, plus float32 summation."""
    codec, shape, dtype = case
    tensor = random_tensor(codec, shape, dtype=dtype)
    values = tensor.numpy().astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    values = values[finite]
    x = np.random.default_rng(0).standard_normal((13, shape[1]), np.float32)
    x[:, :32] *= 40
    x[1, 32:64] = 0
    room = 1e-4 * np.abs(values).max(axis=1, initial=0) * np.abs(x).sum(axis=1, dtype=np.float64)[:, None]
    weight = tensor.load(wish)
    error = np.abs(weight.linear(x)[:, finite] - x.astype(np.float64) @ values.T)
    assert (error <= steps_of(wish, x) @ np.abs(values).T * 1.001 + room).all()
    same(weight.dense(), tensor.load("numpy").dense())


@pytest.mark.parametrize("wish", [INT8, BF16, F32])
def test_results_do_not_depend_on_threads_or_batch_size(wish: str, instructions: str) -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_1"), (1000, 256))
    x = np.random.default_rng(0).standard_normal((14, 256), np.float32)
    one, many = (tensor.load(f"{wish},threads={count}") for count in (1, 5))
    same(one.linear(x), many.linear(x))
    if wish == INT8:
        same(one.linear(x), np.stack([one.linear(row) for row in x]))


def test_bf16_is_rounded_to_nearest_and_multiplied_exactly(instructions: str) -> None:
    """A single activation gives the exact product of a code, a rounded activation and a scale."""
    tensor = random_tensor(CodecSpec("affine", {"bits": 4, "group_size": 32}), (16, 64))
    parts = {role: part.numpy() for role, part in tensor.parts().items()}
    assert np.isfinite(parts["scale"]).all()
    numbers = np.random.default_rng(1).standard_normal(64, np.float32)
    rounded = numbers.astype(dtypes.to_numpy("bf16")).astype(np.float32)
    codes = tensor.numpy() / np.repeat(parts["scale"], 32, axis=1)
    expected = np.rint(codes).T * rounded[:, None] * np.repeat(parts["scale"], 32, axis=1).T
    np.testing.assert_array_equal(tensor.load(BF16).linear(np.diag(numbers)), expected)


def test_experts_may_have_incomplete_panels(instructions: str) -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_0"), (3, 21, 64))
    x, ids = np.random.default_rng(0).standard_normal((5, 64), np.float32), np.array([2, 0, 2, 1, 1])
    in_place = tensor.load("cpu:activations=int8", op="experts").experts(x, ids)
    np.testing.assert_allclose(tensor.load(INT8, op="experts").experts(x, ids), in_place, rtol=1e-4, atol=1e-3)
    exact = tensor.load("cpu", op="experts").experts(x, ids)
    np.testing.assert_allclose(tensor.load(F32, op="experts").experts(x, ids), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(37, 384), (3, 21, 192)], ids=str)
@pytest.mark.parametrize(("codec", "params"), STORED, ids=str)
def test_stored_panels_equal_a_repack(
    codec: CodecSpec, params: dict[str, Any], shape: tuple[int, ...], instructions: str
) -> None:
    """Equal bytes and products to a repack; read in place with any `repack` option."""
    in_rows = random_tensor(codec, shape)
    stored = saved(in_rows, params)
    x, op = np.random.default_rng(0).standard_normal((13, shape[-1]), np.float32), "linear"
    operands: tuple[np.ndarray, ...] = (x,)
    if len(shape) == 3:
        op, operands = "experts", (x, np.arange(13) % 3)
    for wish in (INT8, BF16, F32):
        row_weight, kept = in_rows.load(wish, op=op), stored.load(wish, op=op)
        for role, part in kept._handle.arrays.items():
            same(part, row_weight._handle.arrays[f"repacked {role}"])
        same(getattr(kept, op)(*operands), getattr(row_weight, op)(*operands))
        same(kept.dense(), row_weight.dense())
    same(getattr(stored.load("cpu", op=op), op)(*operands), getattr(row_weight, op)(*operands))


def test_stored_panels_are_read_in_place() -> None:
    tensor = saved(
        random_tensor(CodecSpec("affine", {"bits": 4, "group_size": 32}), (48, 64)), {"group_size": 32, "signed": True}
    )
    for wish in ("cpu", F32, BF16, INT8):
        chosen = tensor.plan(wish).chosen
        assert chosen.cost is not None
        assert (chosen.cost.resident, chosen.cost.moved) == (0, chosen.cost.stored)
        assert chosen.storage.startswith("the stored panels of 16 rows in place")
    weight = tensor.load("cpu")
    for role, part in tensor.parts().items():
        assert np.shares_memory(weight._handle.arrays[role], part.numpy())


@pytest.mark.parametrize(
    ("codec", "wish", "reason"),
    [
        (
            CodecSpec("masked", {"block_size": 8}, inner=CodecSpec("panels", {"group_size": 32})),
            "cpu",
            "a mask over codes not packed along rows",
        ),
        (CodecSpec("ggml.q8_0"), "cpu:activations=bf16", "bf16 activations need panels (repack=rows)"),
        (CodecSpec("ggml.q8_0"), "cpu:threads=0", "threads is not a number of threads (expected 1..1024, found 0)"),
    ],
)
def test_the_message_gives_the_reason_of_a_refusal(codec, wish, reason):
    with expect_error(SquishError, code="no-chain", tensor="w") as caught:
        random_tensor(codec, (32, 64)).load(wish)
    assert caught.value.message == f"nothing installed can run it (cpu: {reason})"


def saved(tensor: Tensor, params: dict[str, Any]) -> Tensor:
    """The same codes in stored panels."""
    (encoding,), codec = tensor.spec.encodings, CodecSpec("panels", params)
    registry = tensor.file.registry
    whole = full(tensor.shape)
    codes = tensor.file.bind(tensor.spec, encoding).codes(whole)
    assert codes is not None
    parts_of_codes = registry.codec(codec).from_codes(codes, tensor.spec)
    assert parts_of_codes is not None
    spec = TensorSpec(name="w", shape=tensor.shape, dtype="f32")
    return memory_file(registry, {"w": (spec, codec, parts_of_codes[0])})[0]["w"]


def test_a_repack_is_opt_in_and_reports_its_memory() -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_0"), (40, 64))
    assert "16 rows" not in tensor.plan().explain()
    chosen = tensor.plan(INT8).chosen
    assert chosen.cost is not None
    assert chosen.cost.resident == 48 * 64 // 2 + 48 * 2 * 2
    nested = random_tensor(CodecSpec("ggml.q4_k"), (40, 512)).plan(INT8).chosen.cost
    assert nested is not None
    assert nested.resident == 48 * 512 // 32 * 18.5
    assert "panels of 16 rows" in chosen.storage
    exact = {wish: tensor.plan(wish).chosen.exact for wish in (INT8, BF16, F32)}
    assert exact == {INT8: False, BF16: False, F32: True}
    with expect_error(SquishError, code="no-chain", tensor="w"):
        tensor.plan("cpu:activations=bf16")
    with expect_error(SquishError, code="backend", found="repack=columns"):
        tensor.plan("cpu:repack=columns")


@pytest.mark.parametrize(
    "codec",
    [
        CodecSpec("ggml.q5_0"),
        CodecSpec("affine", {"bits": 4, "group_size": 32, **AWQ}),
        CodecSpec("affine", {"bits": 4, "group_size": 32, "signed": False, "zero": 129}),
    ],
    ids=str,
)
def test_codecs_without_panels_are_refused(codec: CodecSpec) -> None:
    with pytest.raises(SquishError):
        random_tensor(codec, (64, 64)).plan(INT8)
