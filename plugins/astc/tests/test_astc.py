"""ASTC: the conformance kit, every footprint, an independent decoder, invalid blocks."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from squish_astc.codec import FOOTPRINTS
from squish_testing import CodecSuite, expect_error
from squish_testing.codecs import read_region

from squish_core.api import CodecError, TensorSpec
from squish_core.codecs.regions import full
from squish_core.plugins.registry import registry

pytestmark = pytest.mark.alone

# A void-extent block (Khronos Data Format Specification, "Void-Extent Blocks") has one color: 0xFFFF is 1.0,
# any other value v is v / 65536.
VOID = bytes.fromhex("fcfdffffffffffff")


def smooth(*shape: int) -> np.ndarray:
    """Smooth values, which a texture stores accurately."""
    places = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return (np.sin(places / 7) * 3 + np.cos(places / 31)).astype(np.float32)


def fitted(shape: tuple[int, ...], footprint: str, values: np.ndarray, **more: Any) -> tuple[TensorSpec, Any]:
    codec, spec = registry().codec_type("astc"), TensorSpec(name="w", shape=shape, dtype="f32")
    params = codec.params_for(spec, {"footprint": footprint, **more})
    return spec, codec.from_params(params).fit_params(lambda: iter([values]), spec)


class TestAstc(CodecSuite):
    codec = "astc"
    tolerance = 0.2

    def cases(self) -> dict[str, Any]:
        cases: dict[str, Any] = {}
        for shape, footprint in (((24, 30), "6x6"), ((7, 9), "5x4"), ((4, 6, 16), "8x8"), ((3, 4, 12), "4x4")):
            values = smooth(*shape)
            cases[f"{shape} {footprint}"] = (*fitted(shape, footprint, values), values)
        spec = TensorSpec(name="w", shape=(20,), dtype="f32")
        stored = {"blocks": np.frombuffer((VOID + bytes(8)) * 5, np.uint8).reshape(1, 5, 16)}
        cases["a vector"] = (spec, {"footprint": "4x4", "scale": 2.0, "zero": -1.0}, stored)
        return cases


@pytest.mark.parametrize("footprint", FOOTPRINTS)
def test_every_footprint_round_trips_closely_in_16_byte_blocks(footprint: str) -> None:
    x, y = FOOTPRINTS[footprint]
    codec, values = registry().codec_type("astc"), smooth(3 * y + 1, 2 * x + 1)
    spec, params = fitted(values.shape, footprint, values, quality="medium")
    stored = codec.from_params(params).encode(values)
    assert stored["blocks"].shape == (4, 3, 16)
    decoded = read_region(codec.from_params(params), stored, spec, full(values.shape))
    assert np.square(decoded - values).sum() < 0.05 * np.square(values).sum()


def test_texels_match_the_specification() -> None:
    codec, spec = registry().codec_type("astc"), TensorSpec(name="w", shape=(4, 12), dtype="f32")
    colours = [0xFFFF, 0x8000, 0x0123]
    blocks = b"".join(VOID + value.to_bytes(2, "little") + bytes(4) + b"\xff\xff" for value in colours)
    stored = {"blocks": np.frombuffer(blocks, np.uint8).reshape(1, 3, 16)}
    decoded = read_region(
        codec.from_params({"footprint": "4x4", "scale": 4.0, "zero": 0.5}), stored, spec, full(spec.shape)
    )
    assert decoded[:, ::4].tolist() == [[4.5, 2.5, 0.5 + 4 * 0x0123 / 65536]] * 4


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30])
def test_a_constant_tensor_is_exact(value: float) -> None:
    codec, values = registry().codec_type("astc"), np.full((5, 9), value, np.float32)
    spec, params = fitted((5, 9), "5x5", values)
    assert (
        read_region(codec.from_params(params), codec.from_params(params).encode(values), spec, full((5, 9))) == values
    ).all()


def test_bf16_values_encode() -> None:
    values = np.array([[1.5, -2], [0.25, 3]], ml_dtypes.bfloat16)
    assert fitted((2, 2), "4x4", values)[1] == {"footprint": "4x4", "quality": "fast", "scale": 5.0, "zero": -2.0}


@pytest.mark.parametrize("values", [[[np.nan, 1]], [[np.inf, 1]], [[3e38, -3e38]]])
def test_unencodable_values_are_refused(values: Any) -> None:
    with expect_error(CodecError, code="range"):
        fitted((1, 2), "4x4", np.array(values, np.float32))


@pytest.mark.parametrize(("shape", "params"), [
    ((4, 4), {"footprint": "7x7"}), ((4, 4), {"footprint": 6}), ((4, 4), {"quality": "best"}),
    ((4, 4), {"group_size": 4}), ((0, 4), {}),
])  # fmt: skip
def test_invalid_parameters_are_refused(shape: tuple[int, ...], params: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        registry().codec_type("astc").params_for(TensorSpec(name="w", shape=shape, dtype="f32"), params)


def test_an_error_color_only_fails_regions_with_its_block() -> None:
    codec, values = registry().codec_type("astc"), smooth(8, 8)
    spec, params = fitted((8, 8), "4x4", values)
    stored = {"blocks": codec.from_params(params).encode(values)["blocks"].copy()}
    stored["blocks"][1, 1] = 0xFF
    assert read_region(codec.from_params(params), stored, spec, (slice(0, 4), slice(0, 8))).shape == (4, 8)
    assert read_region(codec.from_params(params), stored, spec, (slice(0, 8), slice(0, 4))).shape == (8, 4)
    with expect_error(CodecError, code="P5", part="blocks", found="in rows 0 to 8, columns 0 to 8"):
        read_region(codec.from_params(params), stored, spec, full((8, 8)))


def test_random_blocks_decode_or_fail_with_a_typed_error() -> None:
    rng, codec = np.random.default_rng(0), registry().codec_type("astc")
    outcomes = set()
    for footprint, (x, y) in FOOTPRINTS.items():
        spec = TensorSpec(name="w", shape=(y, x), dtype="f32")
        bound = codec.from_params({"footprint": footprint, "scale": 1.0, "zero": 0.0})
        for _ in range(100):
            stored = {"blocks": rng.integers(0, 256, (1, 1, 16), np.uint8)}
            try:
                decoded = read_region(bound, stored, spec, full(spec.shape))
            except CodecError:
                outcomes.add("refused")
            else:
                outcomes.add("decoded")
                assert decoded.min() >= 0
                assert decoded.max() <= 1
    assert outcomes == {"refused", "decoded"}


def test_a_wide_row_decodes_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, values = registry().codec_type("astc"), smooth(13, 100)
    spec, params = fitted(values.shape, "5x5", values)
    stored = codec.from_params(params).encode(values)
    whole = read_region(codec.from_params(params), stored, spec, full(values.shape))
    monkeypatch.setattr("squish_astc.codec._SLAB", 80)
    assert (read_region(codec.from_params(params), stored, spec, full(values.shape)) == whole).all()
    assert (
        read_region(codec.from_params(params), stored, spec, (slice(3, 12), slice(7, 61))) == whole[3:12, 7:61]
    ).all()


def test_threads_decode_concurrently() -> None:
    codec, values = registry().codec_type("astc"), smooth(64, 64)
    spec, params = fitted(values.shape, "8x8", values)
    stored = codec.from_params(params).encode(values)
    whole = read_region(codec.from_params(params), stored, spec, full(values.shape))
    results: list[bool] = []

    def decode() -> None:
        for _ in range(20):
            results.append(
                bool((read_region(codec.from_params(params), stored, spec, full(values.shape)) == whole).all())
            )

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


@pytest.mark.peers
@pytest.mark.oracle
@pytest.mark.parametrize("footprint", FOOTPRINTS)
def test_texels_match_an_independent_decoder(footprint: str) -> None:
    """texture2ddecoder rounds to 8 bits; ours are truncated to the 11 bits of float16."""
    import oracles

    def texels(blocks: bytes, width: int, height: int, x: int, y: int) -> Any:
        import texture2ddecoder

        return np.frombuffer(texture2ddecoder.decode_astc(blocks, width, height, x, y), "u1")[2::4].copy()

    x, y = FOOTPRINTS[footprint]
    codec, values = registry().codec_type("astc"), np.random.default_rng(x * y).standard_normal((97, 131), np.float32)
    spec, params = fitted(values.shape, footprint, values)
    stored = codec.from_params(params).encode(values)
    ours = read_region(
        codec.from_params({**params, "scale": 1.0, "zero": 0.0}), stored, spec, full(values.shape)
    ).reshape(-1)
    theirs = oracles.peer("texture2ddecoder").run(
        texels, blocks=stored["blocks"].tobytes(), width=131, height=97, x=x, y=y
    )
    assert np.abs(ours * 255 - theirs).max() <= 0.5 + 255 * 2**-11 + 1e-4
