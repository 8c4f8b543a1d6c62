"""Exact repacking between affine schemes: equal integers and values, or None."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import Affine
from squish_testing.codecs import read_region

from squish_core.api import Exactness, TensorSpec
from squish_core.codecs.regions import full

CODEC = Affine
SHAPE = (16, 128)
SAME = Exactness("values", "f32")


def spec_of(shape=SHAPE):
    return TensorSpec(name="w", shape=tuple(shape), dtype="f32")


def parts_of_scheme(params, shape=SHAPE, seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return CODEC.from_params(CODEC.params_for(spec_of(shape), params)).encode(values)


def repacked(parts, source, target, shape=SHAPE, region=None):
    region = region or full(tuple(shape))
    codes = CODEC.from_params(source).codes(parts, spec_of(shape), region)
    return CODEC.from_params(target).from_codes(codes, spec_of(codes.values.shape))


def values_of(parts, params, shape=SHAPE):
    return read_region(CODEC.from_params(params), parts, spec_of(shape), full(tuple(shape)))


SYMMETRIC = {"bits": 4, "group_size": 32, "scale_dtype": "f16"}
TARGETS = {
    "excess 8, as zTensor's implied zero": {"bits": 4, "group_size": 32, "signed": False, "zero": 8},
    "zero points": {"bits": 4, "group_size": 32, "offset": "zero_point", "signed": False},
    "packed zero points": {"bits": 4, "group_size": 32, "offset": "zero_point", "offset_dtype": "packed"},
    "GPTQ, first version": {
        "bits": 4, "group_size": 32, "axis": -2, "transposed": True, "word": "i32", "offset": "zero_point",
        "offset_dtype": "packed", "zero": 1, "scale_dtype": "f16",
    },
    "AWQ": {
        "bits": 4, "group_size": 32, "axis": -2, "pack_axis": -1, "transposed": True, "word": "i32",
        "order": (0, 2, 4, 6, 1, 3, 5, 7), "offset": "zero_point", "offset_dtype": "packed", "scale_dtype": "f16",
    },
    "SQUIZD": {"bits": 4, "group_size": 32, "axis": "flat", "offset": "bias", "signed": True},
    "MLX": {"bits": 4, "group_size": 32, "word": "u32", "offset": "bias", "scale_dtype": "f16"},
    "high nibble first": {"bits": 4, "group_size": 32, "order": "msb"},
    "half the group": {"bits": 4, "group_size": 16},
    "8 bits": {"bits": 8, "group_size": 32, "word": "i8"},
    "8 bits unsigned": {"bits": 8, "group_size": 32, "signed": False, "offset": "zero_point"},
    "6 bits in a stream": {"bits": 6, "group_size": 32, "word": "u32"},
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_symmetric_codes_round_trip_through_every_layout(name):
    parts = parts_of_scheme(SYMMETRIC)
    there, exactness = repacked(parts, SYMMETRIC, TARGETS[name])
    assert exactness == SAME
    np.testing.assert_array_equal(values_of(there, TARGETS[name]), values_of(parts, SYMMETRIC))
    if name != "half the group":
        declared = CODEC.from_params(TARGETS[name]).parts(spec_of())
        assert {role: part.shape for role, part in there.items()} == {r: size for r, (_, size) in declared.items()}
    back, _ = repacked(there, TARGETS[name], SYMMETRIC)
    assert {role: part.tobytes() for role, part in back.items()} == {r: part.tobytes() for r, part in parts.items()}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(TARGETS)), st.sampled_from(sorted(TARGETS)), st.integers(0, 1000))
def test_repacked_codes_have_equal_values(one, other, seed):
    source, target = TARGETS[one], TARGETS[other]
    parts = parts_of_scheme({**source, "zero": 0 if source.get("offset") else source.get("zero", 0)}, seed=seed)
    repacked_parts = repacked(parts, source, target)
    if repacked_parts is not None:
        assert repacked_parts[1] == SAME
        np.testing.assert_array_equal(values_of(repacked_parts[0], target), values_of(parts, source))


def test_groups_with_equal_scales_merge():
    parts = parts_of_scheme(SYMMETRIC)
    halves = {**SYMMETRIC, "group_size": 16}
    there, _ = repacked(parts, SYMMETRIC, halves)
    back, _ = repacked(there, halves, SYMMETRIC)
    assert back["scale"].tobytes() == parts["scale"].tobytes()
    assert repacked(parts_of_scheme(halves), halves, SYMMETRIC) is None


def test_flat_groups_across_rows_split_and_merge_again():
    shape, flat = (6, 12), {"bits": 4, "group_size": 8, "axis": "flat"}
    parts = parts_of_scheme(flat, shape)
    codes = CODEC.from_params(flat).codes(parts, spec_of(shape), full(shape))
    assert codes.group == (1, 4)
    rows = {"bits": 4, "group_size": 4}
    there, _ = CODEC.from_params(rows).from_codes(codes, spec_of(shape))
    np.testing.assert_array_equal(values_of(there, rows, shape), values_of(parts, flat, shape))
    back, _ = repacked(there, rows, flat, shape)
    assert back["scale"].tobytes() == parts["scale"].tobytes()
    assert back["data"].tobytes() == parts["data"].tobytes()


@pytest.mark.parametrize("axis", [-1, "flat"])
def test_a_scale_per_row_or_tensor_round_trips(axis):
    whole, grouped = {"bits": 8, "word": "i8", "axis": axis}, {"bits": 8, "word": "i8", "group_size": 32}
    parts = parts_of_scheme(whole)
    there, _ = repacked(parts, whole, grouped)
    back, _ = repacked(there, grouped, whole)
    assert {role: part.tobytes() for role, part in back.items()} == {r: part.tobytes() for r, part in parts.items()}


def test_the_codes_of_a_region_equal_a_slice_of_the_codes():
    parts = parts_of_scheme(SYMMETRIC)
    region = (slice(3, 9), slice(32, 96))
    some, whole = (CODEC.from_params(SYMMETRIC).codes(parts, spec_of(), place) for place in (region, full(SHAPE)))
    np.testing.assert_array_equal(some.values, whole.values[region])
    np.testing.assert_array_equal(some.scale, whole.scale[3:9, 1:3])


def test_codes_are_narrowed_only_if_they_fit():
    wide, narrow = {"bits": 8, "group_size": 32, "word": "i8"}, {"bits": 4, "group_size": 32}
    parts = parts_of_scheme(wide)
    assert repacked(parts, wide, narrow) is None
    parts["data"] = np.clip(parts["data"], -8, 7)
    repacked_parts, _ = repacked(parts, wide, narrow)
    np.testing.assert_array_equal(values_of(repacked_parts, narrow), values_of(parts, wide))


def test_inexact_scales_are_refused():
    exact = {"bits": 4, "group_size": 32}
    assert repacked(parts_of_scheme(exact), exact, SYMMETRIC) is None


def test_a_bias_that_is_not_a_multiple_of_the_scale_has_no_zero_point():
    biased = {"bits": 4, "group_size": 32, "offset": "bias", "scale_dtype": "f16"}
    assert repacked(parts_of_scheme(biased), biased, TARGETS["zero points"]) is None


def test_an_inexact_shifted_bias_is_refused():
    source = {"bits": 4, "group_size": 4, "offset": "bias", "scale_dtype": "f16"}
    target = {**source, "signed": True}
    parts = parts_of_scheme(source, (1, 4))
    parts["scale"][:], parts["offset"][:] = 1, 0.0625
    assert repacked(parts, source, target, (1, 4)) is not None
    parts["offset"][:] = 2.0**-20
    assert repacked(parts, source, target, (1, 4)) is None


def test_a_shift_that_would_change_the_last_bit_of_a_value_is_refused():
    source = {"bits": 4, "group_size": 2, "offset": "bias"}
    scale = np.array([[1 / 3]], np.float32)
    parts = {"data": np.array([[0xF3]], np.uint8), "scale": scale, "offset": -8 * scale}
    moved = {"data": parts["data"] ^ 0x88, "scale": scale, "offset": np.zeros((1, 1), np.float32)}
    target = {**source, "signed": True}
    assert (values_of(parts, source, (1, 2)) != values_of(moved, target, (1, 2))).any()
    assert repacked(parts, source, target, (1, 2)) is None


def test_signed_zero_points_wider_than_the_codes_are_kept():
    source = {"bits": 4, "group_size": 32, "signed": False, "zero": 200}
    parts = {"data": np.full((2, 32), 0x9F, np.uint8), "scale": np.ones((2, 2), np.float32)}
    target = {"bits": 4, "group_size": 32, "offset": "zero_point", "signed": False, "offset_dtype": "u8"}
    repacked_parts, _ = repacked(parts, source, target, (2, 64))
    assert set(repacked_parts["offset"].reshape(-1).tolist()) == {200}
    assert values_of(repacked_parts, target, (2, 64))[0, :2].tolist() == [15 - 200, 9 - 200]


def test_nan_scales_are_kept():
    parts = parts_of_scheme(SYMMETRIC)
    parts["scale"][0, 0] = np.nan
    repacked_parts, _ = repacked(parts, SYMMETRIC, TARGETS["MLX"])
    assert np.isnan(repacked_parts["scale"][0, 0])
    assert np.isnan(repacked_parts["offset"][0, 0])


def test_nan_zero_points_are_not_packed():
    source = {"bits": 4, "group_size": 64, "offset": "zero_point", "offset_dtype": "f16"}
    parts = {**parts_of_scheme({**source, "offset_dtype": "u8"}), "offset": np.full((16, 2), np.nan, np.float16)}
    assert repacked(parts, source, {**source, "offset_dtype": "packed"}) is None
