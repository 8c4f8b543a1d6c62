"""Panels of 16 rows: equal codes and values to rows, and the conformance kit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from squish_codecs.api import Affine
from squish_codecs.panels import Panels
from squish_testing import CodecSuite, expect_error

from squish_core.api import CodecError, TensorSpec, dtypes, full

FORMS: dict[str, dict[str, Any]] = {
    "middle": {"group_size": 32, "zero": 8, "scale_dtype": "f16"},
    "signed": {"group_size": 64, "signed": True},
    "bias": {"group_size": 32, "offset": "bias"},
    "signed bias": {"group_size": 96, "signed": True, "offset": "bias", "scale_dtype": "bf16", "offset_dtype": "f32"},
}
SHAPES = ((37, 192), (16, 192), (3, 7, 192), (2, 32, 192), (192,), (0, 192))


def in_rows(params: dict[str, Any]) -> dict[str, Any]:
    """The same codes in `affine`."""
    return {"bits": 4, "signed": False, **params}


def random_rows(spec: TensorSpec, params: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        role: rng.integers(0, 256, shape).astype(np.uint8)
        if role == "data"
        else rng.standard_normal(shape, np.float32).astype(dtypes.to_numpy(dtype))
        for role, (dtype, shape) in Affine.from_params(params).parts(spec).items()
    }


def in_panels(spec: TensorSpec, params: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random codes in rows, and repacked in panels."""
    rows, affine = in_rows(params), Affine()
    stored = random_rows(spec, rows)
    codes = affine.from_params(rows).codes(stored, spec, full(spec.shape))
    assert codes is not None
    panel_parts = Panels.from_params(params).from_codes(codes, spec)
    assert panel_parts is not None
    return stored, panel_parts[0]


class TestPanels(CodecSuite):
    codec = "panels"

    def cases(self) -> dict[str, Any]:
        cases = {}
        for name, params in FORMS.items():
            for shape in SHAPES:
                spec = TensorSpec(name="w", shape=shape, dtype="f32")
                cases[f"{name}{shape}"] = spec, params, in_panels(spec, params)[1]
        return cases


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("params", FORMS.values(), ids=FORMS)
def test_panels_have_the_codes_and_values_of_rows(params: dict[str, Any], shape: tuple[int, ...]) -> None:
    spec, codec = TensorSpec(name="w", shape=shape, dtype="f32"), Panels()
    rows, parts = in_panels(spec, params)
    one, other = np.empty(shape, np.float32), np.empty(shape, np.float32)
    Affine.from_params(in_rows(params)).decode(rows, spec, region=full(shape), out=one)
    codec.from_params(params).decode(parts, spec, region=full(shape), out=other)
    assert one.tobytes() == other.tobytes()
    codes = codec.from_params(params).codes(parts, spec, full(shape))
    assert codes is not None
    row_parts = Affine.from_params(in_rows(params)).from_codes(codes, spec)
    assert row_parts is not None
    assert {role: part.tobytes() for role, part in row_parts[0].items()} == {
        role: part.tobytes() for role, part in rows.items()
    }
    assert codec.from_params(params).code_layout(spec) == Affine.from_params(in_rows(params)).code_layout(spec)


def test_the_layout_matches_the_specification() -> None:
    """A hand-built panel: code (r + c) % 16 at row r and column c, by docs/codecs/panels.md."""
    spec, params = TensorSpec(name="w", shape=(16, 32), dtype="f32"), {"group_size": 32}
    _, parts = in_panels(spec, params)
    data = np.zeros((1, 256), np.uint8)
    for row in range(16):
        for column in range(32):
            place = column // 8 * 64 + 4 * row + column % 4
            data[0, place] |= (row + column) % 16 << (4 if column % 8 > 3 else 0)
    scale = np.arange(16, dtype=np.float32).reshape(1, 1, 16)
    values = np.empty((16, 32), np.float32)
    Panels.from_params(params).decode({"data": data, "scale": scale}, spec, region=full(spec.shape), out=values)
    row, column = np.indices((16, 32))
    np.testing.assert_array_equal(values, (row + column) % 16 * row)
    assert {role: part.shape for role, part in parts.items()} == {"data": (1, 256), "scale": (1, 1, 16)}


def test_an_incomplete_panel_is_zero_padded() -> None:
    spec = TensorSpec(name="w", shape=(17, 64), dtype="f32")
    _, parts = in_panels(spec, FORMS["signed"])
    assert not parts["data"].reshape(2, 8, 16, 4)[1, :, 1:].any()
    assert not parts["scale"][1, :, 1:].any()


class Seen:
    """A part that records its reads."""

    def __init__(self, part: np.ndarray) -> None:
        self.part, self.dtype, self.shape, self.keys = part, part.dtype, part.shape, list[Any]()

    def __getitem__(self, key: Any) -> np.ndarray:
        self.keys.append(key)
        return np.asarray(self.part[key])


def test_a_region_reads_only_its_panels_and_groups() -> None:
    spec, params = TensorSpec(name="w", shape=(160, 192), dtype="f32"), FORMS["bias"]
    codec, region = Panels(), (slice(32, 64), slice(64, 96))
    assert codec.from_params(params).grain(spec) == (16, 32)
    parts = {role: Seen(part) for role, part in in_panels(spec, params)[1].items()}
    codec.from_params(params).decode(parts, spec, region=region, out=np.empty((32, 32), np.float32))
    assert parts["data"].keys == [(slice(2, 4), slice(512, 768))]
    assert parts["scale"].keys == parts["offset"].keys == [(slice(2, 4), slice(2, 3))]


@pytest.mark.parametrize(
    ("params", "code", "found"),
    [
        ({}, "params", "0"), ({"group_size": 48}, "params", "48"), ({"group_size": 32, "zero": 129}, "params", "129"),
        ({"group_size": 32, "offset": "zero_point"}, "params", "'zero_point'"),
        ({"group_size": 32, "bits": 8}, "params", "bits"),
        ({"group_size": 32, "scale_dtype": "f8_e4m3"}, "params", "'f8_e4m3'"),
        ({"group_size": 32, "offset": "bias", "offset_dtype": "f8_e5m2"}, "params", "'f8_e5m2'"),
        ({"group_size": 32, "offset": "bias", "zero": 1}, "params", "1"),
        ({"group_size": 128}, "group_size", 64),
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused(params: dict[str, Any], code: str, found: object) -> None:
    with expect_error(CodecError, code=code, found=found):
        Panels.from_params(params).parts(TensorSpec(name="w", shape=(16, 64), dtype="f32"))


def test_a_scalar_has_no_panels() -> None:
    with pytest.raises(CodecError):
        Panels.from_params({"group_size": 32}).parts(TensorSpec(name="w", shape=(), dtype="f32"))
