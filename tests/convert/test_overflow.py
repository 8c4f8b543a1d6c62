"""No finite value becomes infinite or NaN by encoding, whichever encoder: it is refused, or clipped on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_convert.rules import expand, parse_spec

import squish_core as squish
from squish_core import api
from squish_core.codecs.base import Codec
from squish_core.errors import CodecError, MissingPluginError, SquishError
from squish_core.plugins.registry import Registry

SHAPE = 32, 256
VALUES = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
ACTIVATIONS = np.abs(VALUES).mean(axis=0)
PLACES = (0, 3), (17, 100), (31, 255)
"""In the first block, one in the middle and the last one."""
HARD = (1e6, 1e38, np.inf, -np.inf, np.nan)
PARAMETERS = {
    "awq": ("awq(affine:bits=4,scale_dtype=f16)",),
    "hqq": ("hqq:bits=4",),
    "lowrank": ("lowrank:rank=2,factor_dtype=f16(q8_0)",),
    "masked": ("masked:block_size=16,sparsity=0.25(q4_0)",),
    "palette": ("palette:bits=4", "palette:bits=4,codebook_dtype=f16"),
    "bitmask": ("bitmask", "bitmask:sparsity=0.5,dtype=i8,scale=f16", "bitmask:bits=4"),
}
"""Parameters of the codecs that have no defaults."""
INNER = api.CodecSpec("affine", {"bits": 8}), api.CodecSpec("ggml.q8_0")


@cache
def registry(compiled: bool) -> Registry:
    """Every plugin, with compiled encoders or without."""
    return Registry("" if compiled else "-squish-cpu", extra=[toys])


def specs() -> Iterator[tuple[str, bool]]:
    """Each registered encoder under each of its short names, and whether it is a compiled one."""
    for entry in registry(False).find("codec", kind="tensor"):
        info = entry.info
        names = (*PARAMETERS.get(info.id, ()), *(info.aliases or ([] if info.id in PARAMETERS else [info.id])))
        for name in names:
            if encodes(name, registry(False)):
                yield name, False
            if info.id in registry(True).encoders and encodes(name, registry(True)):
                yield name, True


def encodes(name: str, reg: Registry) -> bool:
    """Whether there is an encoder; one that refuses the matrix for another reason takes part, and fails."""
    spec = expand(parse_spec(name), "toy.box", reg)
    if spec.inner is None and reg.codec_type(spec.id).wraps:
        return any(wraps_to_encode(reg, api.CodecSpec(spec.id, inner=inner)) for inner in INNER)
    codec = reg.encoder_type(spec)
    try:
        codec.params_for(api.TensorSpec(name="w", shape=SHAPE, dtype="f32"), spec.params)
    except MissingPluginError:  # libggml's encoders need its own package
        return False
    except CodecError as error:
        return can_encode(codec) and error.code != "encode" and (error.code, spec.id) != ("dtype", "tca_tbe")
    return True


def wraps_to_encode(reg: Registry, spec: api.CodecSpec) -> bool:
    try:
        return can_encode(type(reg.codec(spec)))
    except CodecError:  # another inner codec may do
        return False


def can_encode(codec: Any) -> bool:
    return codec.encode is not Codec.encode


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Convert a matrix into a box that takes every codec; the report, and the values of the file that was written."""

    def accepts(self: Any, spec: api.TensorSpec, encoding: api.Encoding, options: api.Options) -> api.Encoding:
        parts = {role: api.Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
        return api.Encoding(codec=encoding.codec, parts=parts)

    monkeypatch.setattr(toys.Box, "accepts", accepts)

    def run(values: np.ndarray, encode: Any, compiled: bool = True) -> Any:
        """The report and the values, or the refusal and None."""
        reg = registry(compiled)
        vectors = toys.box({"w": ACTIVATIONS}) if "awq" in str(encode) else None
        with squish.open(toys.box({"w": values}), registry=reg) as file:
            try:
                report = squish.convert(file, tmp_path / "o.box", "toy.box", encode, activations=vectors, registry=reg)
            except SquishError as error:
                return error, None
        with squish.open(tmp_path / "o.box", registry=reg) as written:
            return report, written["w"].numpy(copy=True).astype(np.float64)

    return run


def with_hint(spec: str) -> str:
    """The same, values clipped."""
    outer, bracket, inner = spec.partition("(")
    return f"{outer}{',' if ':' in outer else ':'}overflow=saturate{bracket}{inner}"


def hard(value: float, index: tuple[int, int]) -> np.ndarray:
    values = VALUES.copy()
    values[index] = value
    return values


@pytest.mark.parametrize(("spec", "compiled"), list(specs()))
def test_an_encoder_keeps_finite_values_finite_or_refuses(convert: Any, spec: str, compiled: bool) -> None:
    for value in HARD:
        for index in PLACES:
            values = hard(value, index)
            outcome, decoded = convert(values, {"w": spec}, compiled)
            if decoded is None:
                assert (outcome.code, outcome.tensor) == ("range", "w")
                assert f"at index {list(index)}" in outcome.found
            else:
                np.testing.assert_array_equal(np.isfinite(decoded), np.isfinite(values))
                np.testing.assert_array_equal(decoded[~np.isfinite(values)], values[~np.isfinite(values)])


@pytest.mark.parametrize(("spec", "compiled"), list(specs()))
def test_an_encoder_that_saturates_takes_every_number(convert: Any, spec: str, compiled: bool) -> None:
    for value, index in zip((*HARD[:4], -1e38), (*PLACES, *PLACES)):
        values = hard(value, index)
        report, decoded = convert(values, {"w": with_hint(spec)}, compiled)
        kept = decoded[index] == value and not np.isfinite(value)
        assert kept or np.isfinite(decoded).all()
        _, without = convert(values, {"w": spec}, compiled)
        expected = int(without is None)  # what is refused without it
        assert report.steps[0].clipped == report.clipped == report.to_dict()["clipped"] == expected


@pytest.mark.parametrize(("spec", "compiled"), list(specs()))
def test_nan_is_never_clipped(convert: Any, spec: str, compiled: bool) -> None:
    values = hard(np.nan, PLACES[1])
    outcome, decoded = convert(values, {"w": with_hint(spec)}, compiled)
    if decoded is None:
        assert (outcome.code, outcome.tensor) == ("range", "w")
        assert f"nan at index {list(PLACES[1])}" in outcome.found
    else:
        np.testing.assert_array_equal(np.isnan(decoded), np.isnan(values))


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [("f32", 3.4028234663852886e38), ("f16", 65504), ("bf16", 3.3895313892515355e38), ("f8_e4m3", 448)],
)
def test_a_cast_clips_to_the_largest_finite_value(convert: Any, dtype: str, largest: float) -> None:
    values = VALUES.astype(np.float64)
    values[2, 5], values[31, 255], values[3, 3] = 1e300, -1e300, largest
    report, decoded = convert(values, f"{dtype}:overflow=saturate")
    assert (decoded[2, 5], decoded[31, 255], decoded[3, 3], report.clipped) == (largest, -largest, largest, 2)


def test_values_beyond_f32_are_refused_before_they_are_quantized(convert: Any) -> None:
    values = VALUES.astype(np.float64)
    values[9, 9] = 1e300
    error, _ = convert(values, "q8_0")
    assert (error.code, error.tensor) == ("range", "w")
    assert "at index [9, 9]" in error.found


def test_blocks_without_overflow_keep_their_bytes(convert: Any) -> None:
    values = np.tile(VALUES, (80, 2))
    values[2001, 77] = 1e6
    _, decoded = convert(values, "q4_0:overflow=saturate")
    _, before = convert(np.tile(VALUES, (80, 2)), "q4_0")
    different = np.argwhere(decoded != before)
    assert {(int(row), int(column) // 32) for row, column in different} == {(2001, 2)}


def test_an_overflow_in_a_later_panel_is_located_in_the_tensor(convert: Any) -> None:
    values = np.tile(VALUES, (200, 1))
    values[6100, 77] = 1e6
    for spec in ("f16", "q4_0", "affine:bits=4,group_size=32,scale_dtype=f16,word=u8"):
        error, _ = convert(values, {"w": spec})
        assert (error.code, error.found) == ("range", "1000000.0 at index [6100, 77]")


def test_a_failed_conversion_leaves_the_old_file(convert: Any, tmp_path: Path) -> None:
    convert(VALUES, "q4_0")
    before = (tmp_path / "o.box").read_bytes()
    assert convert(hard(1e6, PLACES[2]), "q4_0")[1] is None
    assert (tmp_path / "o.box").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["o.box"]


@pytest.mark.parametrize("spec", ["q4_0:overflow=clip", "q4_0:overflow=1", "keep:overflow=saturate"])
def test_an_unknown_overflow_is_refused(convert: Any, spec: str) -> None:
    error, _ = convert(VALUES, {"w": spec})
    assert error.code == "params"


def test_the_hint_may_stand_in_the_brackets_and_beside_a_policy(convert: Any) -> None:
    values = hard(1e6, PLACES[1])
    for spec in ("masked:block_size=16,sparsity=0.25(q4_0:overflow=saturate)", "mixed:outliers=0,overflow=saturate"):
        report, decoded = convert(values, {"w": spec})
        assert np.isfinite(decoded).all(), spec
        assert report.steps[0].action == "encode"
