"""Decoded values equal those mistral.rs computes with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import squish_core as squish

DATA = Path(__file__).with_name("data")
SETS = sorted(json.loads((DATA / "expected.json").read_text()))


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()


@pytest.mark.parametrize("name", SETS)
def test_every_layer_has_the_values_of_the_reference(name: str, expected: Any) -> None:
    with squish.open(DATA / name) as file:
        for stored, (layer, shape, expected_values) in expected[name].items():
            tensor = file[stored if stored in file else layer]
            assert tensor.shape == tuple(shape)
            assert digest(tensor.numpy().astype(np.float32)) == expected_values, tensor


@pytest.mark.parametrize("name", SETS)
def test_encodings_have_the_layers_parameters(name: str) -> None:
    kinds = {"q": "ggml.", "hqq": "hqq", "afq": "affine", "fp8": "float8", "f8q8": "uqff.f8q8", "mxfp4": "mx"}
    quant = name.split("-")[2 if "-moe-" in name else 1]
    with squish.open(DATA / name) as file:
        codecs = {file[key].codec for key in file if key.endswith("_proj.weight") or key[0].isdigit()}
    codec_id = (
        "ggml." if quant == "topo" else next(kinds[kind] for kind in sorted(kinds)[::-1] if quant.startswith(kind))
    )
    assert any(codec.startswith(codec_id) for codec in codecs), codecs


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_hqq_of_every_width_matches_the_specification(bits: int, axis: int, uqff: SimpleNamespace) -> None:
    rng = np.random.default_rng(bits)
    group, groups = 40, 16
    rows, columns = (group, groups) if axis == 0 else (groups, group)
    codes = rng.integers(0, 1 << bits, (rows, columns))
    grid = (1, groups) if axis == 0 else (groups, 1)
    scale, zero = (rng.standard_normal(grid).astype(np.float32) for _ in range(2))
    count = 10 if bits == 3 else 8 // bits
    stored = -(-rows // count)
    packed = np.zeros((stored, columns), np.int64)
    for row in range(rows):
        first = 27 if bits == 3 else 8 - bits
        packed[row % stored] |= codes[row] << (first - bits * (row // stored))
    words = packed.astype("<i4" if bits == 3 else "u1")
    blob = uqff.head(2) + b"\0" + uqff.tensor(2 if bits == 3 else 0, list(words.shape), words.tobytes())
    blob += b"".join(uqff.tensor(6, list(grid), part.tobytes()) for part in (scale, zero))
    blob += np.array([2, 8, 80], "<u4").tobytes() + bytes([bits]) + np.array([group], "<u4").tobytes() + bytes([axis])
    blob += bytes(4) + b"\1\0"
    with squish.open(uqff.legacy(blob)) as file:
        np.testing.assert_array_equal(
            file["0.weight"].numpy(), ((codes.astype(np.float32) - zero) * scale).reshape(8, 80)
        )
        np.testing.assert_array_equal(file["0.weight"][3, 5:70], file["0.weight"].numpy()[3, 5:70])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_afq_of_every_width_group_and_scale_decodes(bits: int, group: int, dtype: str, uqff: SimpleNamespace) -> None:
    rng = np.random.default_rng(bits)
    kind = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype(ml_dtypes.bfloat16)}[dtype]
    codes = rng.integers(0, 1 << bits, (4, 256))
    scale, offset = (rng.standard_normal((4, 256 // group)).astype(kind) for _ in range(2))
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(4, -1)
    words = np.packbits(stream, axis=-1, bitorder="little").view("<u4")
    code = {"f32": 6, "f16": 4, "bf16": 5}[dtype]
    blob = uqff.head(4) + b"\0" + uqff.tensor(1, list(words.shape), words.tobytes())
    blob += b"".join(uqff.tensor(code, list(scale.shape), part.tobytes()) for part in (scale, offset))
    with squish.open(uqff.legacy(blob + bytes([bits, group]))) as file:
        wide = (np.repeat(part.astype(np.float32), group, axis=1) for part in (scale, offset))
        first, second = wide
        np.testing.assert_array_equal(file["0.weight"].numpy(), codes.astype(np.float32) * first + second)


@pytest.mark.parametrize(("code", "nbytes"), [(9, 36), (15, 292)])
def test_q8_1_and_q8_k_blocks_have_ggmls_sizes(code: int, nbytes: int, uqff: SimpleNamespace) -> None:
    elements = 32 if code == 9 else 256
    blob = (
        uqff.head(0) + np.array([nbytes], "<u4").tobytes() + b"\0" + np.array([code, 2, 1, elements], "<u4").tobytes()
    )
    codes = np.arange(elements) % 100
    scale = np.array([0.5], "<f2" if code == 9 else "<f4").tobytes() + (b"\0\0" if code == 9 else b"")
    block = (scale + codes.astype(np.int8).tobytes()).ljust(nbytes, b"\0")
    with squish.open(uqff.legacy(blob + block)) as file:
        np.testing.assert_array_equal(file["0.weight"].numpy()[0], codes * np.float32(0.5))


def test_an_unquantized_layer_keeps_its_dtype_and_bias(uqff: SimpleNamespace) -> None:
    values = np.arange(6, dtype="<f2").reshape(2, 3)
    blob = uqff.head(1) + b"\1" + uqff.tensor(4, [2, 3], values.tobytes()) + uqff.tensor(9, [2], b"\x38\x40")
    with squish.open(uqff.legacy(blob)) as file:
        np.testing.assert_array_equal(file["0.weight"].numpy(), values)
        assert (file["0.weight"].dtype, file["0.bias"].dtype) == ("f16", "f8_e4m3")
        np.testing.assert_array_equal(file["0.bias"].numpy().astype(np.float32), [1, 2])


def test_a_float8_value_is_its_code_times_one_scale(uqff: SimpleNamespace) -> None:
    scales = np.array([0.25, 9, 9], "<f4").tobytes()
    blob = uqff.head(3) + b"\0" + uqff.tensor(9, [256], bytes(range(256))) + scales + np.array([9], "<u4").tobytes()
    with squish.open(uqff.legacy(blob)) as file:
        values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        np.testing.assert_array_equal(file["0.weight"].numpy(), values * np.float32(0.25))
        assert set(file["0.weight"].spec.extras) == {"dequant_x_scale", "quant_scale"}


@pytest.mark.parametrize(("number", "exists"), [(9, True), (5, True), (6, True), (0, True), (14, False), (255, False)])
@pytest.mark.parametrize("version", [0x000100, 0x000103, 0x000200, None])
def test_a_float8_layer_keeps_the_number_of_its_layer_dtype(
    uqff: SimpleNamespace, tmp_path: Path, number: int, exists: bool, version: int | None
) -> None:
    codes, dtype = bytes(range(64)), np.array(number, "<u4").tobytes()
    if version is None:
        scale = ("F32", [], np.array(0.25, "<f4").tobytes())
        raw = uqff.named(
            weight=("F8_E4M3", [2, 32], codes),
            weight__format=("U8", [], b"\3"),
            weight__dtype=("U32", [], dtype),
            weight__dequant_w_scale=scale,
            weight__dequant_x_scale=scale,
            weight__quant_scale=scale,
        )
    else:
        scales = np.array([0.25, 0.25, 4], "<f4").tobytes()
        raw = uqff.legacy(uqff.head(3, version=version) + b"\0" + uqff.tensor(9, [2, 32], codes) + scales + dtype)
    (tmp_path / "m.uqff").write_bytes(raw)
    expected = np.frombuffer(codes, ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(2, 32) * np.float32(0.25)
    name = "a.weight" if version is None else "0.weight"
    for to in (None, "uqff", "uqff:version=0.1.3", "uqff:version=0.1.0"):
        if to is not None and version is None and to != "uqff":
            continue  # without a config, names cannot become numbers
        source = tmp_path / "m.uqff"
        if to is not None:
            squish.convert(source, tmp_path / to.replace(":", "_"), to)
            source = tmp_path / to.replace(":", "_")
        with squish.open(source) as file:
            assert file[name].spec.attrs["uqff.dtype"] == number
            np.testing.assert_array_equal(file[name].numpy(), expected)
            messages = [problem.message for problem in file.problems if problem.code == "dtype"]
            assert len(messages) == (not exists)
            assert all(f"layer dtype {number} does not exist" in message for message in messages)


def test_f8q8_blocks_run_across_rows_and_the_last_one_is_padded(uqff: SimpleNamespace) -> None:
    codes = np.arange(64, dtype=np.int8)
    blocks = b"\x38" + codes[:32].tobytes() + b"\x40" + codes[32:].tobytes()
    blob = uqff.head(5) + b"\0" + np.array([2, 2, 3, 15], "<u4").tobytes() + blocks
    with squish.open(uqff.legacy(blob)) as file:
        scale = np.repeat(np.array([1, 2], np.float32) / np.float32(416), 32)
        expected = (codes * scale)[:45].reshape(3, 15)
        np.testing.assert_array_equal(file["0.weight"].numpy(), expected)
        np.testing.assert_array_equal(file["0.weight"][1:], expected[1:])


def test_mxfp4_has_the_low_nibble_first_and_power_of_two_scales(uqff: SimpleNamespace) -> None:
    blob = uqff.head(6) + b"\0" + uqff.tensor(0, [1, 16], bytes([0x21, 0xF8] * 8)) + uqff.tensor(0, [1, 1], b"\x80")
    with squish.open(uqff.legacy(blob)) as file:
        np.testing.assert_array_equal(file["0.weight"].numpy()[0], np.tile(np.float32([1, 2, -0.0, -12]), 8))
