"""Panels of 8-bit codes and of Q6_K: products equal a NumPy model of the same arithmetic, bit for bit."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from random_parts import random_tensor, same
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, SquishError, dtypes
from squish_core.tensor import Tensor

INT8, BF16, F32 = (f"cpu:activations={kind},repack=rows" for kind in ("int8", "bf16", "f32"))
AFFINE = {"bits": 8, "group_size": 32, "scale_dtype": "f16"}
CODECS = [
    CodecSpec("ggml.q8_0"), CodecSpec("ggml.q6_k"), CodecSpec("affine", AFFINE),
    CodecSpec("affine", {"bits": 8, "group_size": 64, "signed": False, "zero": 7}),
]  # fmt: skip
WITH_OFFSETS = [
    CodecSpec("affine", {**AFFINE, "group_size": 96, "offset": "bias", "offset_dtype": "bf16"}),
    CodecSpec("affine", {**AFFINE, "group_size": 64, "offset": "zero_point"}),
]


@frozen
class Matrix:
    """Centered codes, a scale and an offset per group of columns, and integer scales of sixteen columns or none."""

    codes: np.ndarray
    scale: np.ndarray
    offset: np.ndarray | None = None
    inner: np.ndarray | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> Matrix:
        """From the stored parts, independently of the backend."""
        codec = tensor.spec.encodings[0].codec
        parts = {role: part.numpy() for role, part in tensor.parts().items()}
        if codec.id == "affine":
            return _affine(codec.params, parts, tensor.shape[-1])
        rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        if codec.id == "ggml.q8_0":
            blocks = parts["data"].reshape(rows, columns // 32, 34)
            codes = blocks[..., 2:].reshape(rows, columns).view(np.int8)
            return cls(codes.astype(np.int64), blocks[..., :2].copy().view("<f2")[..., 0].astype(np.float32))
        blocks = parts["data"].reshape(rows, columns // 256, 210)
        low = blocks[..., :128].reshape(rows, -1, 2, 1, 2, 32) >> np.array([0, 4], np.uint8)[:, None, None] & 15
        high = blocks[..., 128:192].reshape(rows, -1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        codes = low.reshape(rows, -1, 2, 4, 32) | high << 4
        scale = blocks[..., 208:].copy().view("<f2")[..., 0].astype(np.float32)
        inner = blocks[..., 192:208].view(np.int8).reshape(rows, columns // 16)
        return cls(codes.reshape(rows, columns).astype(np.int64) - 32, scale, inner=inner.astype(np.float32))

    @property
    def group(self) -> int:
        """Columns of a scale."""
        return self.codes.shape[1] // self.scale.shape[1]


def _affine(params: Mapping[str, Any], parts: Mapping[str, np.ndarray], columns: int) -> Matrix:
    signed, scale = params.get("signed", "offset" not in params), parts["scale"].astype(np.float32)
    scale = scale.reshape(-1, scale.shape[-1])
    codes = parts["data"].reshape(-1, columns).view("i1" if signed else "u1").astype(np.int64)
    offset = parts["offset"].astype(np.float32) if "offset" in parts else None
    if offset is not None and params["offset"] == "zero_point":
        offset = offset * (np.float32(0) - scale)
    return Matrix(codes - params.get("zero", 0), scale, offset)


@frozen
class Arithmetic:
    """Multiplication and addition in float32, with one rounding if the instruction set has it."""

    fused: bool

    @classmethod
    def of(cls, instructions: str) -> Arithmetic:
        """That of an instruction set; the portable one is NEON on AArch64."""
        return cls(instructions != "portable" or platform.machine() in ("aarch64", "arm64"))

    def add(self, x: np.ndarray, y: np.ndarray, to: np.ndarray) -> np.ndarray:
        """x * y + to."""
        if self.fused:
            return (x.astype(np.float64) * y.astype(np.float64) + to.astype(np.float64)).astype(np.float32)
        return (x * y).astype(np.float32) + to


def int8_products(matrix: Matrix, x: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """[row of x, row of the matrix]"""
    units = x.reshape(len(x), -1, 32)
    steps = np.abs(units).max(axis=2) / np.float32(127)
    codes = np.rint(units * (1 / steps)[..., None]).astype(np.int64)
    total, sums = np.zeros((len(x), len(matrix.codes)), np.float32), 0
    per_group, run = matrix.group // 32, 32 if matrix.inner is None else 16
    for unit in range(units.shape[1]):
        if unit % per_group == 0:
            part, sums = np.zeros_like(total), np.zeros(len(x), np.float32)
        for first in range(0, 32, run):
            columns = slice(32 * unit + first, 32 * unit + first + run)
            dots = (codes[:, unit, first : first + run] @ matrix.codes[:, columns].T).astype(np.float32)
            if matrix.inner is not None:
                dots = dots * matrix.inner[:, columns.start // 16]
            part = arithmetic.add(dots, steps[:, unit, None], part)
        sums = sums + steps[:, unit] * codes[:, unit].sum(axis=1).astype(np.float32)
        if (unit + 1) % per_group == 0:
            total = arithmetic.add(part, matrix.scale[:, unit // per_group], total)
            if matrix.offset is not None:
                total = arithmetic.add(matrix.offset[:, unit // per_group], sums[:, None], total)
    return total


def float_products(matrix: Matrix, x: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """[row of x, row of the matrix]"""
    total = np.zeros((len(x), len(matrix.codes)), np.float32)
    run = 32 if matrix.inner is None else 16
    for first in range(0, x.shape[1], run):
        if first % matrix.group == 0:
            part = np.zeros_like(total)
        products = np.zeros_like(total)
        for column in range(first, first + run):
            products = arithmetic.add(matrix.codes[:, column].astype(np.float32), x[:, column, None], products)
        part = part + products if matrix.inner is None else arithmetic.add(products, matrix.inner[:, first // 16], part)
        if (first + run) % matrix.group == 0:
            total = arithmetic.add(part, matrix.scale[:, first // matrix.group], total)
    return total


def activations(columns: int) -> np.ndarray:
    """Thirteen rows, with a large and a constant group."""
    x = np.random.default_rng(0).standard_normal((13, columns), np.float32)
    x[:, :32] *= 40
    x[1, 32:64] = 3
    x[2] = np.abs(x[2])
    return x


@pytest.mark.parametrize("codec", [*CODECS, *WITH_OFFSETS], ids=str)
def test_int8_products_equal_the_model(codec: CodecSpec, instructions: str) -> None:
    tensor = random_tensor(codec, (37, 768))
    x = activations(768)
    with np.errstate(all="ignore"):
        expected = int8_products(Matrix.of(tensor), x, Arithmetic.of(instructions))
    weight = tensor.load(INT8)
    same(weight.linear(x), expected)
    same(np.concatenate([weight.linear(row[None]) for row in x]), expected)
    same(weight.dense(), tensor.load("numpy").dense())


@pytest.mark.parametrize("wish", [F32, BF16])
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_float_products_equal_the_model(codec: CodecSpec, wish: str, instructions: str) -> None:
    tensor = random_tensor(codec, (37, 768))
    x = activations(768)
    rounded = x if wish == F32 else x.astype(dtypes.to_numpy("bf16")).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = float_products(Matrix.of(tensor), rounded, Arithmetic.of(instructions))
    same(tensor.load(wish).linear(x), expected)


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("codec", [*CODECS, *WITH_OFFSETS], ids=str)
def test_the_largest_codes_and_activations_do_not_overflow(codec: CodecSpec, byte: int, instructions: str) -> None:
    tensor = with_codes(codec, byte)
    x = np.array([[1], [-1]], np.float32) * np.ones(768, np.float32)
    expected = int8_products(Matrix.of(tensor), x, Arithmetic.of(instructions))
    assert np.isfinite(expected).all()
    same(tensor.load(INT8).linear(x), expected)


def with_codes(codec: CodecSpec, byte: int) -> Tensor:
    """A tensor whose codes all have the bits of `byte`, with finite scales."""
    tensor = random_tensor(codec, (16, 768), finite=True)
    parts = {role: part.numpy().copy() for role, part in tensor.parts().items()}
    data = parts["data"].view(np.uint8)
    if codec.id == "affine":
        data[...] = byte
    else:
        blocks = data.reshape(-1, 34 if codec.id == "ggml.q8_0" else 210)
        blocks[...] = byte
        scale = blocks[:, :2] if codec.id == "ggml.q8_0" else blocks[:, 208:]
        scale[...] = np.array([1.5], "<f2").view(np.uint8)
    return memory_file(squish.registry(), {"w": (tensor.spec, codec, parts)})[0]["w"]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite_are_not_lost(codec: CodecSpec, value: float, instructions: str) -> None:
    tensor = random_tensor(codec, (16, 256))
    x = np.ones((2, 256), np.float32)
    x[1, 100] = value
    y = tensor.load(INT8).linear(x)
    assert not np.isfinite(y[1]).any()


def test_memory_is_that_of_the_codes() -> None:
    expected = {"ggml.q8_0": 48 * 512 * 34 // 32, "ggml.q6_k": 48 * 512 * 210 // 256}
    for name, nbytes in expected.items():
        tensor = random_tensor(CodecSpec(name), (40, 512))
        cost = tensor.plan(INT8).chosen.cost
        assert cost is not None
        assert cost.resident == nbytes
        arrays = tensor.load(INT8)._handle.arrays
        assert sum(array.nbytes for role, array in arrays.items() if role.startswith("repacked")) == nbytes


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_experts_may_have_incomplete_panels(codec: CodecSpec, instructions: str) -> None:
    tensor = random_tensor(codec, (3, 21, 256))
    x, ids = activations(256)[:5], np.array([2, 0, 2, 1, 1])
    with np.errstate(all="ignore"):
        every = int8_products(Matrix.of(tensor), x, Arithmetic.of(instructions)).reshape(5, 3, 21)
    same(tensor.load(INT8, op="experts").experts(x, ids), every[np.arange(5), ids])


def test_zero_points_out_of_range_are_refused() -> None:
    codec = CodecSpec("affine", {**AFFINE, "signed": False, "zero": 129})
    with pytest.raises(SquishError) as refusal:
        random_tensor(codec, (32, 64)).load(INT8)
    assert refusal.value.code == "no-chain"
