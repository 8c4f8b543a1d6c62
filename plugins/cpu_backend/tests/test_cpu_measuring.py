"""Encoder metrics: the core's sums, for every instruction set and number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from squish_cpu import library

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec, dtypes

CASES = [
    ("affine", {"bits": 4, "group_size": 32}, (5, 96)),
    ("affine", {"bits": 8, "group_size": 0, "axis": -1}, (300, 1104)),
    ("affine", {"bits": 3, "group_size": 48, "offset": "bias", "scale_dtype": "f16"}, (2, 3, 48)),
    *(
        (f"ggml.{name}", {}, (7, 2304))
        for name in ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4")
    ),
]


def measured(codec_spec: CodecSpec, values: np.ndarray, scale: float = 1) -> tuple[Any, np.ndarray]:
    """The kernels' sums, and the values decoded by the codec."""
    registry = squish.registry()
    codec, encoder = registry.codec(codec_spec), registry.encoder(codec_spec)
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    encoded = encoder.encode(values.astype(np.float32))
    parts = {role: encoded[role].reshape(shape) for role, (_, shape) in codec.parts(spec).items()}
    out = np.empty(values.shape, np.float32)
    codec.decode(parts, spec, region=tuple(slice(0, size) for size in values.shape), out=out)
    return encoder.compare(codec, values, parts, spec), out


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("codec", "params", "shape"), CASES)
def test_sums_match_the_decoded_values(codec: str, params: Any, shape: Any, dtype: str, instructions: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtypes.to_numpy(dtype))
    sums, decoded = measured(CodecSpec(codec, params), values)
    x, y = values.astype(np.float64), decoded.astype(np.float64)
    assert sums[0] == np.abs(x - y).max()
    assert sums[1:] == pytest.approx([np.square(each).sum() for each in (x - y, x, y)], rel=1e-13)


def test_sums_do_not_depend_on_threads_or_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((999, 512), np.float32)
    errors = set()
    for threads in ("1", "2", "5"):
        for instructions in library.library().instructions:
            monkeypatch.setenv(library.THREADS, threads)
            monkeypatch.setenv(library.INSTRUCTIONS, instructions)
            library.library.cache_clear()
            errors.add(measured(CodecSpec("ggml.q4_0"), values)[0])
    monkeypatch.undo()
    library.library.cache_clear()
    assert len(errors) == 1


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("codec", "params", "shape"), [*CASES, ("dense", {"dtype": "bf16"}, (5, 64))])
def test_regions_decode_like_the_codec(codec: str, params: Any, shape: Any, dtype: str, instructions: str) -> None:
    registry, codec_spec = squish.registry(), CodecSpec(codec, params)
    own, encoder = registry.codec(codec_spec), registry.encoder(codec_spec)
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    spec, parts = TensorSpec(name="w", shape=shape, dtype="f32"), encoder.encode(values)
    fill = encoder.decoder(own, parts, spec)
    assert fill is not None
    decoded = np.empty(shape, dtypes.to_numpy(own.value_dtype(spec)))
    own.decode(parts, spec, region=tuple(slice(0, size) for size in shape), out=decoded)
    region = (slice(1, 2), *(slice(0, size) for size in shape[1:]))
    out = np.empty(decoded[region].shape, dtypes.to_numpy(dtype))
    fill(region, out)
    np.testing.assert_array_equal(out, decoded[region].astype(out.dtype))


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (2, 3, 1000), (0, 4)])
@pytest.mark.parametrize("source_dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "f8_e4m3"])
def test_floats_round_like_numpy(shape: Any, source_dtype: str, dtype: str, instructions: str) -> None:
    values = np.asarray(np.random.default_rng(0).standard_normal(shape) * 100).astype(dtypes.to_numpy(source_dtype))
    encoded = squish.registry().encoder(CodecSpec("dense", {"dtype": dtype})).encode(values)["data"]
    expected = values.astype(dtypes.to_numpy(dtype))
    assert (encoded.dtype, encoded.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(encoded, expected)


def test_unsupported_codecs_are_left_to_the_core() -> None:
    registry, codec_spec = squish.registry(), CodecSpec("ggml.q8_0")
    codec, encoder = registry.codec(codec_spec), registry.encoder(codec_spec)
    spec, values = TensorSpec(name="w", shape=(1, 32), dtype="f32"), np.ones((1, 32), np.float32)
    parts = encoder.encode(values)
    assert encoder.compare(codec, values, parts, spec) is not None
    assert encoder.compare(codec, values.astype(np.float64), parts, spec) is None
    values[0, 3] = np.inf
    assert encoder.compare(codec, values, parts, spec) is None
