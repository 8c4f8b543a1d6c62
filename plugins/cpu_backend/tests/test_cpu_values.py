"""Decoded values and products compared with the NumPy codecs, for every layout and instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case, every, name_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parts import random_tensor, same
from squish_cpu.layouts import layout_of
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import BLOCK_TYPES, BoundEncoding, CodecSpec, SquishError, TensorSpec, dtypes
from squish_core.tensor import Tensor

CASES = list(every())


def check_values(tensor: Tensor) -> None:
    """Compare all values, in every dtype."""
    weight, expected = tensor.load("cpu", op="dense"), tensor.numpy()
    same(weight.dense(), expected)
    for other in ("f32", "f16", "bf16"):
        with np.errstate(all="ignore"):
            same(weight.dense(dtype=other), expected.astype(dtypes.to_numpy(other)))


def check_products(tensor: Tensor) -> None:
    """|error| <= 1e-6 * sum |x| |w|: each sum is rounded a few dozen times in float32.

    Offsets are summed separately; random offsets cancel few weights, so the bound still holds."""
    weight = tensor.load("cpu")
    with np.errstate(invalid="ignore"):  # signaling NaNs
        values = tensor.numpy().astype(np.float64)
    finite = (np.abs(values) < 1e30).all(axis=1)
    values = values[finite]
    for count in (1, 3, 8, 13):
        x = np.random.default_rng(count).standard_normal((count, values.shape[1]), np.float32)
        error = np.abs(weight.linear(x)[:, finite] - x.astype(np.float64) @ values.T)
        assert (error <= 1e-6 * (np.abs(x).astype(np.float64) @ np.abs(values).T)).all()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_decoded_values_equal_the_codecs(case: Case, instructions: str) -> None:
    codec, shape, dtype = case
    check_values(random_tensor(codec, shape, dtype=dtype))


@pytest.mark.parametrize("case", [case for case in CASES if len(case[1]) == 2], ids=name_of)
def test_products_are_within_rounding(case: Case, instructions: str) -> None:
    codec, shape, dtype = case
    check_products(random_tensor(codec, shape, dtype=dtype))


@pytest.mark.parametrize(("name", "scales"), [("mxfp4", 1), ("nvfp4", 4)])
def test_every_scale_of_4_bit_floats_decodes(name: str, scales: int, instructions: str) -> None:
    """A row for each byte, those of subnormal numbers and NaN included, with all codes."""
    registry, block = squish.registry(), BLOCK_TYPES[name]
    data = np.empty((256, block.nbytes), np.uint8)
    data[:, :scales] = np.arange(256)[:, None]
    data[:, scales:] = np.resize(240 - 15 * np.arange(16), block.nbytes - scales)
    spec = TensorSpec(name="w", shape=(256, block.elements), dtype="f32")
    file, _ = memory_file(registry, {"w": (spec, CodecSpec(f"ggml.{name}"), {"data": data})})
    check_values(file["w"])
    check_products(file["w"])


REGIONS = (
    CodecSpec("ggml.q4_k"), CodecSpec("ggml.q8_0"), CodecSpec("affine", {"bits": 3, "group_size": 8}),
    CodecSpec("affine", {"bits": 4, "group_size": 32, "offset": "bias"}),
    CodecSpec("hqq", {"bits": 4, "group_size": 64, "axis": 0}),
    CodecSpec("tca_tbe", {"base_exponent": 120}), CodecSpec("bitmask", {"dtype": "bf16", "kept": "run"}),
    CodecSpec("mx"), CodecSpec("masked", {"block_size": 7}, inner=CodecSpec("ggml.q4_0")),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_regions_equal_slices(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(4, 512), (3, 2, 512), (1, 1280), (512,), (7, 256)]), "shape")
    tensor = random_tensor(data.draw(st.sampled_from(REGIONS), "codec"), shape)
    ends = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    region = tuple(slice(*pair) for pair in ends)
    dtype = data.draw(st.sampled_from(["f32", "f16", "bf16"]), "dtype")
    weight = tensor.load("cpu", op="dense")
    with np.errstate(all="ignore"):
        expected = tensor[region].astype(dtypes.to_numpy(dtype))
    same(weight.dense(region=region, dtype=dtype), expected)
    # Into memory of any alignment, surrounded by other data.
    before = data.draw(st.integers(0, 17), "before")
    room = np.full(before + expected.nbytes + 9, 0xA5, np.uint8)
    out = room[before : before + expected.nbytes].view(expected.dtype).reshape(expected.shape)
    same(weight.dense(region=region, dtype=dtype, out=out), expected)
    assert (room[:before] == 0xA5).all()
    assert (room[before + expected.nbytes :] == 0xA5).all()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_regions_decode_in_every_layout(case: Case) -> None:
    """Regions end inside words, groups, blocks and registers; `load` requires the kernels."""
    codec, shape, dtype = case
    tensor = random_tensor(codec, shape, dtype=dtype)
    weight, expected = tensor.load("cpu", op="dense"), tensor.numpy()
    chance = np.random.default_rng(len(name_of(case)))
    for other in ("f32", "f16", "bf16"):
        for _ in range(4):
            ends = [sorted(chance.choice(size + 1, 2, replace=False)) for size in shape]
            region = tuple(slice(int(start), int(stop)) for start, stop in ends)
            with np.errstate(all="ignore"):
                same(weight.dense(region=region, dtype=other), expected[region].astype(dtypes.to_numpy(other)))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_outputs_larger_than_the_caches_decode(dtype: str, instructions: str) -> None:
    tensor = random_tensor(CodecSpec("ggml.q4_0"), (16400, 1024))
    weight = tensor.load("cpu", op="dense")
    with np.errstate(all="ignore"):
        same(weight.dense(dtype=dtype)[::97], tensor.numpy()[::97].astype(dtypes.to_numpy(dtype)))


def test_experts_and_rows_match_dense_products(instructions: str) -> None:
    tensor = random_tensor(CodecSpec("affine", {"bits": 4, "group_size": 32}), (3, 24, 64), seed=3)
    values = np.nan_to_num(tensor.numpy(), posinf=0, neginf=0)
    finite = np.isfinite(tensor.numpy()).all(axis=(0, 2))
    x, ids = np.random.default_rng(0).standard_normal((5, 64), np.float32), np.array([2, 0, 2, 1, 1])
    result = tensor.load("cpu", op="experts").experts(x, ids)
    expected = np.einsum("ni,noi->no", x, values[ids])
    np.testing.assert_allclose(result[:, finite], expected[:, finite], rtol=1e-4, atol=1e-4)
    matrix = random_tensor(CodecSpec("ggml.q6_k"), (9, 512))
    rows = np.array([[8, 0], [3, 3]])
    same(matrix.load("cpu").embed(rows), matrix.numpy()[rows])


@pytest.mark.parametrize("codec", [CodecSpec("dense"), CodecSpec("tca_tbe", {"base_exponent": 250})], ids=str)
def test_bf16_round_trips_bit_for_bit(codec: CodecSpec, instructions: str) -> None:
    tensor = random_tensor(codec, (37, 333), dtype="bf16")
    assert tensor.load("cpu", op="dense").dense().tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("codec", [codec for codec, *_ in CASES if codec.id in ("tca_tbe", "bitmask")][:6], ids=str)
def test_an_inconsistent_bitmap_is_refused(codec: CodecSpec) -> None:
    tensor = random_tensor(codec, (9, 64), dtype="bf16")
    parts = {role: part.numpy().copy() for role, part in tensor.parts().items()}
    for role in parts.keys() & {"mask", "plane0", "plane1", "plane2"}:
        parts[role].reshape(-1)[0] ^= parts[role].dtype.type(1)
        for name in parts.keys() & {"plane1", "plane2"}:
            parts[name].reshape(-1)[0] &= parts[name].dtype.type(254)
    bound = BoundEncoding(tensor.bound.codec, tensor.spec, tensor.bound.encoding, parts)
    with expect_error(SquishError, code="mask"):
        squish.registry().backend("cpu").load(tensor.plan("cpu", op="dense"), bound)


def test_npydir_int3_has_the_kernel_of_its_affine_form() -> None:
    spec = TensorSpec(name="w", shape=(16, 128), dtype="f32")
    own = layout_of(CodecSpec("npydir.int3", {"group_size": 32}), spec)
    affine = layout_of(CodecSpec("affine", {"bits": 8, "group_size": 32, "offset": "bias"}), spec)
    assert (own.fields, own.pointers.keys()) == (affine.fields, affine.pointers.keys())
