"""Microscaling encoders follow the OCP specification, and NVFP4 its packages."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from squish_codecs.api import Mx
from squish_testing import expect_error

from squish_core.api import CodecError, TensorSpec

MXFP8 = {"element": "f8_e4m3"}
E5M2 = {"element": "f8_e5m2"}
TYPES = {"f4_e2m1": ml_dtypes.float4_e2m1fn, "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}


def nvfp4(factor: str) -> dict[str, object]:
    return {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": factor}


def hard_values() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    normal = random.standard_normal((8, 256), np.float32)
    holes = normal.copy()
    holes[3], holes[:, :32], holes[4] = 0, 0, holes[4] * np.float32(1e-7)
    return {
        "normal": normal,
        "ties": (random.integers(-24, 25, (8, 256)) / 4).astype(np.float32),
        "holes": holes,
        "zeros": np.zeros((2, 64), np.float32),
        "tiny": normal * np.float32(1e-30),
        "huge": normal * np.float32(1e30),
        "wide": (normal * np.exp(6 * random.standard_normal((8, 256)))).astype(np.float32),
    }


VALUES = hard_values()


def codes_of(parts: dict[str, np.ndarray], element: str) -> np.ndarray:
    """One code per byte."""
    data = parts["data"].view(np.uint8)
    if element != "f4_e2m1":
        return data
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("element", TYPES)
def test_codes_follow_the_specification(kind: str, element: str) -> None:
    """Section 6.3: the largest power of two up to the maximum over the element type's; then round to nearest."""
    values, largest = VALUES[kind], float(ml_dtypes.finfo(TYPES[element]).max)
    parts = Mx.from_params({"element": element}).encode(values.copy())
    scale = parts["scale"].astype(np.float32)
    for block, step, codes in zip(
        values.reshape(-1, 32), scale.reshape(-1), codes_of(parts, element).reshape(-1, 32), strict=True
    ):
        peak = float(np.abs(block).max())
        exponent = math.floor(math.log2(peak)) - math.floor(math.log2(largest)) if peak else -127
        assert step == 2.0 ** max(exponent, -127)
        nearest = np.clip(block / step, -largest, largest).astype(TYPES[element])
        np.testing.assert_array_equal(codes, nearest.view(np.uint8))


@pytest.mark.parametrize("factor", ["none", "multiply", "divide"])
def test_the_nvfp4_error_is_bounded(factor: str) -> None:
    values, params = VALUES["normal"], nvfp4(factor)
    spec, out = TensorSpec(name="w", shape=values.shape, dtype="f32"), np.empty_like(values)
    parts = Mx.from_params(params).encode(values.copy())
    Mx.from_params(params).decode(parts, spec, region=tuple(slice(0, size) for size in values.shape), out=out)
    assert np.mean((out - values) ** 2) < 0.1**2
    assert set(parts) == set(Mx.from_params(params).parts(spec))
    whole = Mx.from_params(params).encode_grain(spec)
    assert whole == ((1, 16) if factor == "none" else (None, None))


def test_saturating_scaling_matches_mistral_rs() -> None:
    block = np.zeros((1, 32), np.float32)
    block[0, :4] = 5, 6, 11, 0.25
    ours, theirs = (Mx.from_params(params).encode(block.copy()) for params in ({}, {"scaling": "saturating"}))
    assert (ours["scale"][0, 0], theirs["scale"][0, 0]) == (2, 1)
    assert codes_of(theirs, "f4_e2m1")[0, :4].tolist() == [7, 7, 7, 1]  # half away from zero, 11 as 6


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"global_scale": "divide"}, "divide"),
        ({"element": "f8_e4m3", "scaling": "saturating"}, "f8_e4m3, f8_e8m0"),
        ({"block_size": 8}, "8"),
        ({"nonsense": 1}, "1"),
    ],
)
def test_unsupported_parameters_are_refused_before_encoding(params: dict[str, object], found: str) -> None:
    with expect_error(CodecError, code="params", found=found):
        Mx().params_for(TensorSpec(name="w", shape=(2, 64), dtype="f32"), params)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(odd: float) -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 5] = odd
    with expect_error(CodecError, code="range"):
        Mx.from_params({}).encode(values)


def by_torchao(values: np.ndarray, element: str) -> list[np.ndarray]:
    """Return scales and data; runs in the peer."""
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    names = {"f4_e2m1": "float4_e2m1fn_x2", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}
    theirs = to_mx(torch.from_numpy(values.copy()), getattr(torch, names[element]), 32, ScaleCalculationMode.FLOOR)
    return [part.view(torch.uint8).numpy() for part in theirs]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("element", TYPES)
def test_bytes_match_torchao(kind: str, element: str) -> None:
    import oracles

    parts = Mx.from_params({"element": element}).encode(VALUES[kind].copy())
    theirs = oracles.peer("torchao").run(by_torchao, values=VALUES[kind], element=element)
    for role, expected in zip(("scale", "data"), theirs, strict=True):
        np.testing.assert_array_equal(parts[role].view(np.uint8).ravel(), expected.ravel())


def by_compressed_tensors(values: np.ndarray) -> list[np.ndarray]:
    """Return global scale, scales and code values; runs in the peer."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn
    )
    tensor = torch.from_numpy(values.copy())
    whole = generate_gparam(tensor.min().reshape(1), tensor.max().reshape(1))
    blocks = tensor.reshape(len(tensor), -1, 16)
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale=whole)
    codes = quantize(tensor, scale, zero, args, global_scale=whole)
    return [whole.numpy(), scale.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), codes.float().numpy()]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "zeros"])
def test_nvfp4_matches_compressed_tensors(kind: str) -> None:
    import oracles

    parts = Mx.from_params(nvfp4("divide")).encode(VALUES[kind].copy())
    whole, scale, values = oracles.peer("torchao").run(by_compressed_tensors, values=VALUES[kind])
    assert parts["global_scale"] == whole
    np.testing.assert_array_equal(parts["scale"].view(np.uint8).ravel(), scale.ravel())
    ours = codes_of(parts, "f4_e2m1").view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(ours, values)


def by_mlx(values: np.ndarray) -> list[np.ndarray]:
    """Return scales and values of MLX's NVFP4; runs in the peer."""
    import mlx.core as mx

    words, scales = mx.quantize(mx.array(values), mode="nvfp4")[:2]
    back = mx.dequantize(words, scales, mode="nvfp4", dtype=mx.float32)
    return [np.array(scales), np.array(back)]


@pytest.mark.peers
@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["normal", "zeros", "ties"])
def test_nvfp4_without_a_global_scale_has_the_scales_of_mlx(kind: str) -> None:
    """MLX rounds half toward zero, the others to even."""
    import oracles

    values, params = VALUES[kind], nvfp4("none")
    parts, out = Mx.from_params(params).encode(values.copy()), np.empty_like(VALUES[kind])
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    Mx.from_params(params).decode(parts, spec, region=tuple(slice(0, size) for size in values.shape), out=out)
    scale, theirs = oracles.peer("mlx").run(by_mlx, values=values)
    np.testing.assert_array_equal(parts["scale"].view(np.uint8).ravel(), scale.ravel())
    np.testing.assert_array_equal(np.abs(out - values), np.abs(theirs - values))
