"""The block codecs through the core's interface: all shapes, and errors for unsupported operations."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from squish_ggml.blocks import BLOCKS
from squish_ggml.codec import COMPILED
from squish_ggml.endian import PAIRS, BigEndian
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import BLOCK_TYPES, Codec, CodecError, CodecSpec, TensorSpec, full, install_command

pytestmark = pytest.mark.alone

ENCODED = [name for name in BLOCK_TYPES if name in BLOCKS and BLOCKS[name].encode]


def codec_of(name: str) -> Codec:
    return squish.registry().codec(CodecSpec(f"ggml.{name}"))


def decoded(codec: Codec, stored: np.ndarray, spec: TensorSpec) -> np.ndarray:
    out = np.full(spec.shape, 12345, np.float32)
    codec.decode({"data": stored}, spec, region=full(spec.shape), out=out)
    return out


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 256), (0, 0), (2, 0, 256), (2, 256, 0)])
def test_an_empty_tensor_round_trips(name: str, shape: tuple[int, ...]) -> None:
    codec, spec = codec_of(name), TensorSpec(name="w", shape=shape, dtype="f32")
    encoded = codec.encode(np.zeros(shape, np.float32))
    assert {"data": ("u8", encoded["data"].shape)} == codec.parts(spec)
    assert decoded(codec, encoded["data"], spec).shape == shape
    codes = codec.codes(encoded, spec, full(shape))
    if codes is not None:
        back = codec.from_codes(codes, spec)
        assert back is not None
        assert back[0]["data"].shape == encoded["data"].shape


@pytest.mark.parametrize("name", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_codes_with_nested_scales_are_exactly_the_values(name: str) -> None:
    codec, spec = codec_of(name), TensorSpec(name="w", shape=(3, 512), dtype="f32")
    blocks = np.random.default_rng(7).integers(0, 256, (3, 2, BLOCKS[name].nbytes), dtype=np.uint8)
    for place in PAIRS[name]:
        blocks[..., place : place + 2] = np.frombuffer(np.float16(0.0123).tobytes(), np.uint8)
    stored = blocks.reshape(3, -1)
    codes = codec.codes({"data": stored}, spec, full(spec.shape))
    assert codes is not None
    width = codes.group[1]
    values = codes.values.astype(np.float32) * np.repeat(codes.scale, width, axis=1)
    if codes.offset is not None:
        values += np.repeat(codes.offset, width, axis=1)
    assert np.array_equal(values, decoded(codec, stored, spec))


# The structs of ggml-common.h: H is a half or a u16, s bytes.
STRUCTS = {
    "q4_0": "H16s", "q4_1": "HH16s", "q5_0": "H4s16s", "q5_1": "HH4s16s", "q8_0": "H32s", "q8_1": "HH32s",
    "q2_k": "16s64sHH", "q3_k": "32s64s12sH", "q4_k": "HH12s128s", "q5_k": "HH12s32s128s", "q6_k": "128s64s16sH",
    "q1_0": "H16s", "q2_0": "H16s", "tq1_0": "48s4sH", "tq2_0": "64sH", "mxfp4": "s16s", "nvfp4": "4s32s",
    "iq4_nl": "H16s", "iq4_xs": "HH4s128s",
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("shape", [(3, 512), (0, 256), (2, 0)])
def test_big_endian_blocks_decode_to_the_same_values(name: str, shape: tuple[int, ...]) -> None:
    codec, spec = codec_of(name), TensorSpec(name="w", shape=shape, dtype="f32")
    ((_, stored_shape),) = codec.parts(spec).values()
    stored = np.random.default_rng(0).integers(0, 256, stored_shape, np.uint8)
    turned = b"".join(
        struct.pack(f">{STRUCTS[name]}", *block) for block in struct.iter_unpack(f"<{STRUCTS[name]}", stored)
    )
    big = np.frombuffer(turned, np.uint8).reshape(stored_shape)
    values = decoded(BigEndian.from_params({}, codec), big, spec)
    np.testing.assert_array_equal(values, decoded(codec, stored, spec))


def test_a_missing_encoder_error_lists_the_encoders() -> None:
    with expect_error(CodecError, code="encode", hint="q8_0"):
        codec_of("q8_1").encode(np.zeros((1, 256), np.float32))


@pytest.mark.parametrize("name", COMPILED)
def test_types_that_only_squish_cpu_encodes_name_it(name: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec_of(name).params_for(TensorSpec(name="w", shape=(4, 256), dtype="f32"), {})
    assert (caught.value.code, caught.value.hint) == ("encode", f"Run `{install_command('squish-cpu')}`.")
