"""MXFP4 and NVFP4 blocks share codes and scales with the microscaled tensors of other formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from squish_codecs.api import Mx
from squish_ggml.codec import GgmlBlocks
from squish_ggml.float4 import FORMS

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec

SPEC = TensorSpec(name="w", shape=(3, 128), dtype="f32")
REGION = (slice(0, 3), slice(0, 128))
LAST = {"ggml.mxfp4": 0xFE, "ggml.nvfp4": 0x7E}


def blocks_of(name: str) -> GgmlBlocks:
    codec = squish.registry().codec(CodecSpec(name))
    assert isinstance(codec, GgmlBlocks)
    return codec


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_blocks_round_trip_through_mx(name: str, data: st.DataObject) -> None:
    codec, params = blocks_of(name), FORMS[name]
    shape = codec.parts(SPEC)["data"][1]
    stored = data.draw(arrays.arrays(np.uint8, shape))
    blocks = stored.reshape(3, -1, codec.block.nbytes)
    blocks[..., : codec.block.nbytes - codec.block.elements // 2] %= LAST[name] + 1
    codes = codec.codes({"data": stored}, SPEC, REGION)
    assert codes is not None
    mx_parts = Mx.from_params(params).from_codes(codes, SPEC)
    assert mx_parts is not None
    parts = mx_parts[0]
    ours, theirs = (np.empty(SPEC.shape, np.float32) for _ in range(2))
    codec.decode({"data": stored}, SPEC, region=REGION, out=ours)
    Mx.from_params(params).decode(parts, SPEC, region=REGION, out=theirs)
    np.testing.assert_array_equal(ours, theirs)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            table[codes.values] * np.repeat(codes.scale.astype(np.float32), codes.group[1], axis=1), ours
        )
    region = (slice(1, 3), slice(64, 128))
    part = Mx.from_params(params).codes(parts, SPEC, region)
    assert part is not None
    np.testing.assert_array_equal(part.values, codes.values[region])
    back = Mx.from_params(params).codes(parts, SPEC, REGION)
    assert back is not None
    again = codec.from_codes(back, SPEC)
    assert again is not None
    np.testing.assert_array_equal(again[0]["data"], stored)


@pytest.mark.parametrize("name", FORMS)
def test_a_scale_with_another_meaning_is_not_repacked(name: str) -> None:
    """ggml has no NaN: 255 is a power of two, 127 is zero, and other signs are ignored."""
    codec = blocks_of(name)
    parts = {"data": np.zeros(codec.parts(SPEC)["data"][1], np.uint8)}
    legal = codec.codes(parts, SPEC, REGION)
    assert legal is not None
    mx_parts = Mx.from_params(FORMS[name]).from_codes(legal, SPEC)
    assert mx_parts is not None
    scale = mx_parts[0]["scale"].view(np.uint8).copy()
    for code in range(LAST[name] + 1, 256):
        parts["data"][1, 0] = scale[1, 0] = code
        assert codec.codes(parts, SPEC, REGION) is None
        strange = {**mx_parts[0], "scale": scale.view(mx_parts[0]["scale"].dtype)}
        codes = Mx.from_params(FORMS[name]).codes(strange, SPEC, REGION)
        assert codes is not None
        assert codec.holds(codes, SPEC) is None
        assert codec.from_codes(codes, SPEC) is None


def test_mxfp4_and_nvfp4_do_not_repack_into_each_other() -> None:
    one, other = (blocks_of(name) for name in FORMS)
    parts = {"data": np.zeros(one.from_params({}).parts(SPEC)["data"][1], np.uint8)}
    codes = one.from_params({}).codes(parts, SPEC, REGION)
    assert codes is not None
    assert other.from_params({}).from_codes(codes, SPEC) is None
