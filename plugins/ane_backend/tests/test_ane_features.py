"""Queries without a file: an operation and its features have the answer of a package's tensor with these features."""

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import SquishError

AFFINE, BLOCKS = "constexpr_affine_dequantize", "constexpr_blockwise_shift_scale"
LUT, SPARSE = "constexpr_lut_to_dense", "constexpr_sparse_to_dense"
SPARSE_LUT, SPARSE_BLOCKS = "constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale"


def resolve(operation, device, **features):
    backend = f"ane:device={device}"
    return squish.registry().resolve(container="mlpackage", backend=backend, compression=operation, **features)


@pytest.mark.parametrize(
    ("operation", "features", "modes"),
    [
        (AFFINE, {}, "fold stream stream"),
        (AFFINE, {"granularity": "per_tensor"}, "fold stream stream"),
        (AFFINE, {"zero_points": True}, "illegal stream stream"),
        (AFFINE, {"zero_points": "false", "bits": 8}, "fold stream stream"),
        (BLOCKS, {}, "fold fold stream"),
        (BLOCKS, {"bits": 8, "granularity": "per_block"}, "fold fold stream"),
        (BLOCKS, {"granularity": "per_channel"}, "fold stream stream"),
        (BLOCKS, {"granularity": "per_channel", "zero_points": True}, "illegal stream stream"),
        (BLOCKS, {"bits": 4}, "fold fold fold"),
        (LUT, {}, "stream stream stream"),
        (LUT, {"bits": "8"}, "stream stream stream"),
        (LUT, {"bits": 6}, "illegal stream stream"),
        (LUT, {"bits": 2}, "illegal illegal illegal"),
        (LUT, {"codebooks": 16}, "illegal stream stream"),
        (LUT, {"granularity": "per_grouped_channel"}, "illegal stream stream"),
        *((LUT, {"vector": vector}, "stream stream stream") for vector in (1, 2, 4, 5)),
        (SPARSE, {}, "stream stream stream"),
        (SPARSE_LUT, {}, "illegal fold stream"),
        (SPARSE_LUT, {"codebooks": 4, "bits": 6}, "illegal fold stream"),
        (SPARSE_BLOCKS, {}, "fold fold fold"),
        (SPARSE_BLOCKS, {"granularity": "per_block", "bits": 4, "zero_points": True}, "fold fold fold"),
    ],
)
def test_features_decide_the_mode_or_the_reason_on_m1_m2_and_m3(operation, features, modes):
    for device, mode in zip(("M1", "M2", "M3"), modes.split()):
        if mode != "illegal":
            assert resolve(operation, device, **features).chosen.mode == mode, device
            continue
        with expect_error(SquishError, code="no-chain") as caught:
            resolve(operation, device, **features)
        assert "cannot be compiled for" in caught.value.message


@pytest.mark.parametrize(
    ("operation", "features", "why"),
    [
        (AFFINE, {"bits": 4}, "it does not store 4-bit codes (expected 8)"),
        (AFFINE, {"granularity": "per_block"}, "granularity per_block (expected per_channel, per_tensor)"),
        (BLOCKS, {"vector": 2}, "vectors of 2 (expected vector=1)"),
        (BLOCKS, {"codebooks": 4}, "codebooks (expected no codebooks)"),
        (LUT, {"zero_points": True}, "zero points (expected zero_points=false)"),
        (LUT, {"codebooks": 1, "granularity": "per_grouped_channel"}, "1 codebooks per_grouped_channel"),
        (LUT, {"codebooks": 4, "granularity": "per_tensor"}, "4 codebooks per_tensor"),
        (SPARSE, {"bits": 8}, "8-bit codes (expected none)"),
        (SPARSE_LUT, {"vector": 2}, "vectors of 2"),
    ],
)
def test_what_an_operation_does_not_store_is_refused_with_the_reason(operation, features, why):
    with expect_error(SquishError, code="no-chain") as caught:
        resolve(operation, "M5", **features)
    assert why in caught.value.message


@pytest.mark.parametrize("feature", ["bits=5", "vector=3", "granularity=row"])
def test_values_that_no_operation_has_are_refused_with_those_that_exist(feature):
    name, _, value = feature.partition("=")
    with expect_error(squish.UsageError, code="feature", found=repr(value)):
        resolve(LUT, "M1", **{name: value})
