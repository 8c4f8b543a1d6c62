"""The compiled affine encoder is bit-identical to the NumPy encoder, the reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hard_values import hard_values
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import Affine
from squish_cpu import code_encoders, library
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, TensorSpec

FLOATS = ("f32", "f16", "bf16")
SCHEMES: list[dict[str, Any]] = [
    *({"offset": "none", "scale_dtype": dtype} for dtype in FLOATS),
    {"offset": "none", "signed": False, "zero": 2},
    *({"offset": "zero_point", "scale_dtype": dtype, "signed": signed} for dtype in FLOATS for signed in (True, False)),
    {"offset": "zero_point", "scale_dtype": "f16", "offset_dtype": "packed", "word": "i32"},
    {"offset": "zero_point", "offset_dtype": "f16"},
    *({"offset": "bias", "scale_dtype": dtype, "signed": signed} for dtype in FLOATS for signed in (True, False)),
    {"offset": "bias", "scale_dtype": "f16", "offset_dtype": "f32"},
    *({"offset": "bias", "scale_dtype": dtype, "word": "u32"} for dtype in FLOATS),
    {"axis": "flat", "offset": "bias", "signed": True},
]


def compare(values: np.ndarray, params: dict[str, Any], *, compiled: bool = True) -> None:
    """Each part equals the NumPy encoder's, and was encoded by the kernels."""
    encoder = squish.registry().encoder(CodecSpec("affine", params))
    assert isinstance(encoder, code_encoders.AffineEncoder)
    scheme = code_encoders.Scheme.of(params)
    expected = Affine.from_params(params).encode(values)
    assert (code_encoders.encode_compiled(scheme, values) is not None) == compiled
    encoded = encoder.from_params(params).encode(values)
    assert encoded.keys() == expected.keys()
    for role, part in expected.items():
        assert (encoded[role].dtype, encoded[role].shape) == (part.dtype, part.shape), role
        differ = np.flatnonzero(
            encoded[role].reshape(-1).view(np.uint8) != np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        )
        assert not differ.size, (role, differ[:8], params)


@pytest.mark.parametrize(("bits", "size"), [*((bits, 32) for bits in range(1, 9)), (4, 64), (7, 64), (8, 64)])
def test_parts_equal_the_numpy_encoders(bits: int, size: int, instructions: str) -> None:
    for kind, values in hard_values():
        for scheme in SCHEMES:
            params = {"bits": bits, "group_size": size, **scheme}
            try:
                Affine().params_for(TensorSpec(name="w", shape=values.shape, dtype="f32"), params)
            except CodecError:  # 1-bit codes cannot be symmetric
                continue
            edges = kind in ("zeros", "flat", "half of each row zeros")
            compare(values[:2] if edges else values[:4], params)


@pytest.mark.parametrize("size", [16, 48, 64, 256, 1024, 0])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_groups_of_every_size(size: int, bits: int, instructions: str) -> None:
    values = np.random.default_rng(size).standard_normal((5, 3072), np.float32)
    for scheme in (
        {},
        {"offset": "bias", "word": "u32", "scale_dtype": "bf16"},
        {"axis": "flat", "offset": "zero_point"},
    ):
        compare(values, {"bits": bits, "group_size": size, **scheme})
    compare(np.tile(values, 4), {"bits": bits, "group_size": size})


@pytest.mark.parametrize(("bits", "size"), [(1, 32), (2, 16), (3, 48), (4, 32), (4, 128), (5, 64), (8, 256)])
def test_search_results_equal_the_numpy_encoders(bits: int, size: int, instructions: str) -> None:
    for _, values in hard_values():
        for scheme in SCHEMES:
            params = {"bits": bits, "group_size": size, **scheme, "search": "mse"}
            try:
                compare(values[:2, :768].copy(), params)
            except CodecError:  # 1-bit codes cannot be symmetric
                assert bits == 1


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_ties_between_codes_round_like_numpy(data: st.DataObject) -> None:
    number = st.floats(-1000, 1000, width=32) | st.integers(-20, 20).map(lambda n: n / 2)
    number |= st.sampled_from([0.0, -0.0, 1e-30, -1e-40, 1e-45, 3e38])
    values = np.resize(np.array(data.draw(st.lists(number, min_size=8, max_size=40)), np.float32), (3, 64))
    values[0, 0] = data.draw(st.sampled_from([7.0, 8.0, 15.0, 127.0, 0.5]))
    scheme, search = data.draw(st.sampled_from(SCHEMES)), data.draw(st.sampled_from(["none", "mse"]))
    params = {"group_size": 32, **scheme, "search": search, "bits": data.draw(st.sampled_from([4, 8]))}
    try:
        expected = Affine.from_params(params).encode(values)
    except CodecError as refusal:  # scales out of range of their dtype
        with expect_error(CodecError, code="range", found=refusal.found):
            code_encoders.AffineEncoder().from_params(params).encode(values)
        return
    encoded = code_encoders.AffineEncoder().from_params(params).encode(values)
    assert {role: part.tobytes() for role, part in encoded.items()} == {
        role: part.tobytes() for role, part in expected.items()
    }


@pytest.mark.parametrize(
    "params",
    [
        {"group_size": 24}, {"group_size": 32, "axis": -2}, {"group_size": 32, "word": "u32", "order": "msb"},
        {"group_size": 384, "search": "mse"}, {"group_size": 32, "axis": -2, "transposed": True},
        {"group_size": 32, "offset": "zero_point", "symmetric": True},
    ],
)  # fmt: skip
def test_unsupported_schemes_fall_back_to_numpy(params: dict[str, Any]) -> None:
    compare(np.random.default_rng(0).standard_normal((96, 384), np.float32), {"bits": 4, **params}, compiled=False)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(odd: float, instructions: str) -> None:
    for place in (0, 37, 40 * 512 - 1):
        values = np.zeros((40, 512), np.float32)
        values.reshape(-1)[place] = odd
        for offset, search in product(("none", "zero_point", "bias"), ("none", "mse")):
            params = {"bits": 4, "group_size": 32, "offset": offset, "search": search}
            with expect_error(CodecError, code="range", expected="finite values", found="1 of 20480"):
                code_encoders.AffineEncoder().from_params(params).encode(values)


@pytest.mark.parametrize("search", ["none", "mse"])
def test_parts_do_not_depend_on_threads(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((129, 4096), np.float32)
    encoded = []
    for count in ("1", "5"):
        monkeypatch.setenv(library.THREADS, count)
        parts = (
            code_encoders.AffineEncoder()
            .from_params({"bits": 3, "group_size": 64, "offset": "bias", "search": search})
            .encode(values)
        )
        encoded.append({role: part.tobytes() for role, part in parts.items()})
    assert encoded[0] == encoded[1]


@pytest.mark.parametrize("name", ["int4", "int2"])
def test_squizd_uses_the_same_kernels(name: str) -> None:
    encoder: Any = squish.registry().encoder(CodecSpec(f"squizd.{name}"))
    assert isinstance(encoder.encoder, code_encoders.AffineEncoder)
    assert encoder.id == f"squizd.{name}"
    values = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    encoded, expected = (
        each.from_params({"group_size": 64}).encode(values)
        for each in (encoder, squish.registry().codec_type(f"squizd.{name}"))
    )
    assert all(encoded[role].tobytes() == expected[role].tobytes() for role in expected)
