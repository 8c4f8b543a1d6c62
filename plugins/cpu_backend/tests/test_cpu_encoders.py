"""Compiled block encoders are bit-identical to libggml and the NumPy encoders, also through `convert`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hard_values import activations, hard_values
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_cpu import ENCODED, library
from squish_cpu.encoders import BY_ROW, WITH_ACTIVATIONS
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, TensorSpec

LEAST_ERRORS = {
    "q4_0": 0.09, "q4_1": 0.08, "q5_0": 0.045, "q5_1": 0.04, "iq4_nl": 0.09, "iq4_xs": 0.09,
    "q2_k": 0.32, "q3_k": 0.16, "q4_k": 0.08, "q5_k": 0.04, "q6_k": 0.02,
}  # fmt: skip
GOLDEN = json.loads((Path(__file__).parent / "data" / "encodings.json").read_text())


def encode(name: str, values: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """Encode blocks with the registry's encoder, with activations `seen` as error weights."""
    encoder = squish.registry().encoder(CodecSpec(f"ggml.{name}"))
    assert type(encoder).__name__ == "GgmlEncoder"
    if seen is None:
        return encoder.from_params({}).encode(values)["data"]
    return encoder.from_params({"search": "activations"}).encode(values, activations=seen)["data"]


@pytest.mark.parametrize("name", ENCODED)
def test_blocks_equal_libggmls(name: str, instructions: str) -> None:
    for kind, values in hard_values():
        assert hashlib.sha256(encode(name, values).tobytes()).hexdigest() == GOLDEN[name][kind], kind


@pytest.mark.parametrize("name", WITH_ACTIVATIONS)
def test_weighted_blocks_equal_libggmls_with_an_importance_matrix(name: str, instructions: str) -> None:
    for kind, values in hard_values():
        blocks = encode(name, values, activations())
        assert hashlib.sha256(blocks.tobytes()).hexdigest() == GOLDEN[f"{name} activations"][kind], kind


@pytest.mark.parametrize("name", WITH_ACTIVATIONS)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_importance_is_per_column_for_any_panel(name: str, data: st.DataObject) -> None:
    chance = np.random.default_rng(data.draw(st.integers(0, 9)))
    rows, blocks = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 5))
    values, seen = chance.standard_normal((rows, 256 * blocks), np.float32), chance.random(256 * blocks, np.float32)
    whole = encode(name, values, seen).reshape(rows, blocks, -1)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, blocks - 1))
    if name in BY_ROW:
        np.testing.assert_array_equal(encode(name, values[row][None], seen)[0], whole[row].reshape(-1))
        return
    piece = slice(256 * column, 256 * column + 256)
    np.testing.assert_array_equal(encode(name, values[row, piece][None], seen[piece])[0], whole[row, column])


@pytest.mark.parametrize("name", WITH_ACTIVATIONS)
def test_weighting_reduces_the_weighted_error(name: str) -> None:
    values, seen = np.random.default_rng(1).standard_normal((64, 1024), np.float32), activations()
    codec, spec = squish.registry().codec_type(f"ggml.{name}"), TensorSpec(name="w", shape=values.shape, dtype="f32")

    def error(blocks: np.ndarray) -> float:
        out = np.empty_like(values)
        codec.from_params({}).decode({"data": blocks}, spec, region=(slice(0, 64), slice(0, 1024)), out=out)
        return float(np.linalg.norm((out - values) * seen))

    assert error(encode(name, values, seen)) < 0.95 * error(encode(name, values))


def test_missing_activations_are_reported() -> None:
    encoder = squish.registry().encoder(CodecSpec("ggml.q4_k"))
    spec = TensorSpec(name="w", shape=(2, 256), dtype="f32")
    assert encoder.params_for(spec, {"search": "none"}) == {}
    assert (
        squish.registry().codec_type("ggml.q4_k").needs_activations(encoder.params_for(spec, {"search": "activations"}))
    )
    with expect_error(CodecError, code="params", expected="search=none or search=activations", found="search=mse"):
        encoder.params_for(spec, {"search": "mse"})
    with expect_error(CodecError, code="params", expected="none", found="search=activations"):
        squish.registry().encoder(CodecSpec("ggml.q8_0")).params_for(spec, {"search": "activations"})
    for vector in (None, np.ones(255, np.float32), np.full(256, 1e30, np.float32)):
        with expect_error(CodecError, code="encode"):
            encoder.from_params({"search": "activations"}).encode(np.ones((2, 256), np.float32), activations=vector)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0", "mxfp4", "nvfp4"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_blocks_equal_the_numpy_encoders(name: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(1, 64), (3, 192), (2, 3, 64)]))
    number = st.floats(-1000, 1000, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, -8.0])
    values = np.array(data.draw(st.lists(number, min_size=8, max_size=40)), np.float32)
    values = np.resize(values, shape) + np.float32(
        0
    )  # gguf-py and libggml disagree on the scale's sign for a block of -0
    np.testing.assert_array_equal(
        encode(name, values), squish.registry().codec_type(f"ggml.{name}").from_params({}).encode(values)["data"]
    )


@pytest.mark.parametrize(
    "codec",
    [
        CodecSpec("ggml.mxfp4"), CodecSpec("ggml.nvfp4"), CodecSpec("ggml.scaled_nvfp4"),
        *(CodecSpec("mx", params) for params in ({}, {"scaling": "saturating"}, {"element": "f8_e4m3"})),
        *(
            CodecSpec("mx", {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": scale})
            for scale in ("none", "multiply", "divide")
        ),
    ],
    ids=str,
)  # fmt: skip
def test_4_bit_floats_equal_the_numpy_encoders(codec: CodecSpec, instructions: str) -> None:
    chance = np.random.default_rng(3)
    below = np.exp2(chance.integers(-126, 127, (16, 32))) * (1 - chance.integers(0, 80, (16, 32)) * 2.0**-24)
    extremes = {
        "wild": chance.standard_normal((16, 1024)) * np.exp2(chance.integers(-140, 120, (16, 1024))),
        "just below powers of two": below.repeat(32, axis=1),
        "middles": chance.integers(-24, 25, (16, 1024)) / 4 * np.exp2(chance.integers(-5, 5, (16, 1))),
        "negative zeros": np.where(chance.random((16, 1024)) < 0.5, -0.0, chance.standard_normal((16, 1024))),
        "subnormal": chance.standard_normal((16, 1024)) * 1e-41,
        "huge": chance.random((16, 1024)) * 3.4e38,
    }
    compiled, reference = squish.registry().encoder(codec), squish.registry().codec(codec)
    assert type(compiled) is not type(reference)
    for kind, values in (*hard_values(), *extremes.items()):
        values = values.astype(np.float32)
        with np.errstate(over="ignore"):
            expected = reference.encode(values)
        for role, part in compiled.encode(values).items():
            assert (part.dtype, part.shape) == (expected[role].dtype, expected[role].shape)
            assert part.tobytes() == expected[role].tobytes(), (kind, role)


def test_a_stack_has_a_global_scale_for_each_matrix() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 4, 128), np.float32)
    registry, codec = squish.registry(), CodecSpec("ggml.scaled_nvfp4")
    expected = registry.codec(codec).encode(values)
    for role, part in registry.encoder(codec).encode(values).items():
        np.testing.assert_array_equal(part, expected[role])


@pytest.mark.parametrize("name", ENCODED)
def test_blocks_do_not_depend_on_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((33, 1024), np.float32)
    encoded = []
    for count in ("1", "5"):
        monkeypatch.setenv(library.THREADS, count)
        encoded.append(encode(name, values).tobytes())
    assert encoded[0] == encoded[1]


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(name: str, odd: float) -> None:
    values = np.zeros((40, 512), np.float32)
    values[-1, -1] = odd
    with expect_error(CodecError, code="range", expected="finite values", found="1 of 20480"):
        encode(name, values)


def test_rows_that_blocks_do_not_divide_are_refused() -> None:
    with expect_error(
        CodecError, code="shape", expected="a last dimension that is a multiple of 256", found="shape [2, 128]"
    ):
        encode("q4_k", np.zeros((2, 128), np.float32))


@pytest.mark.parametrize("name", WITH_ACTIVATIONS)
def test_the_encoding_error_is_usual_for_the_width(name: str) -> None:
    """The error is usual for the width, relative to the standard deviation."""
    values = np.random.default_rng(1).standard_normal((64, 1024), np.float32)
    codec = squish.registry().codec_type(f"ggml.{name}")
    out = np.empty_like(values)
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    codec.from_params({}).decode({"data": encode(name, values)}, spec, region=(slice(0, 64), slice(0, 1024)), out=out)
    error = float(np.sqrt(np.mean((out - values) ** 2)))
    assert error < LEAST_ERRORS[name]


@pytest.mark.oracle
@pytest.mark.parametrize("name", ENCODED)
def test_blocks_equal_the_installed_libggmls(name: str) -> None:
    import oracles

    for kind, values in hard_values():
        values = np.ascontiguousarray(values, np.float32)
        for seen in (None, activations()) if name in WITH_ACTIVATIONS else (None,):
            importance = None if seen is None else np.square(seen)
            theirs = oracles.peer("ggml").run(quantize, values=values, kind=name, importance=importance)
            np.testing.assert_array_equal(encode(name, values, seen).reshape(-1), theirs, err_msg=kind)


def quantize(values: np.ndarray, kind: str, importance: np.ndarray | None) -> np.ndarray:
    """Quantize with libggml; runs in the peer."""
    import ctypes
    import os

    import ggml
    import numpy as np

    number, elements, nbytes = {
        "q4_0": (2, 32, 18),
        "q4_1": (3, 32, 20),
        "q5_0": (6, 32, 22),
        "q5_1": (7, 32, 24),
        "q8_0": (8, 32, 34),
        "q2_k": (10, 256, 84),
        "q3_k": (11, 256, 110),
        "q4_k": (12, 256, 144),
        "q5_k": (13, 256, 176),
        "q6_k": (14, 256, 210),
        "iq4_nl": (20, 32, 18),
        "iq4_xs": (23, 256, 136),
        "mxfp4": (39, 32, 17),
        "nvfp4": (40, 64, 36),
    }[kind]
    base = ctypes.CDLL(os.path.join(os.path.dirname(ggml.__file__), "lib", "libggml-base.so"))
    call = base.ggml_quantize_chunk
    call.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    out = np.zeros(values.size // elements * nbytes, np.uint8)
    weights = None if importance is None else importance.ctypes.data
    call(number, values.ctypes.data, out.ctypes.data, 0, *values.shape, weights)
    return out
