"""Statistics: counts by magnitude equal the definition, in every dtype, and come from one pass in panels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from squish_convert import statistics
from squish_convert.statistics import COUNTED, LOWEST, Statistics, Tally
from squish_testing import CountingSource, expect_error

import squish_core as squish
from squish_core import dtypes
from squish_core.codecs.regions import PANEL_BYTES
from squish_core.errors import CodecError
from squish_core.io.source import BytesSource


def counted(*panels: np.ndarray) -> Statistics:
    tally = Tally()
    for panel in panels:
        tally.add(panel)
    return Statistics.of(tally.counts())


def defined(values: list[float]) -> dict[str, Any]:
    """The same, a value at a time, with Python's own floats."""
    finite = [value for value in values if math.isfinite(value)]
    sides: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for value in filter(None, finite):
        power = min(max(math.frexp(value)[1] - 1, LOWEST), 127)
        sides[value < 0][power] = sides[value < 0].get(power, 0) + 1
    return {
        "values": len(values),
        "zeros": values.count(0),
        "nan": sum(map(math.isnan, values)),
        "infinite": sum(map(math.isinf, values)),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "negative": sides[True],
        "positive": sides[False],
    }


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "i64", "i8", "u8", "bool"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_counts_are_those_of_the_definition(dtype: str, data: st.DataObject) -> None:
    values = data.draw(arrays(dtypes.to_numpy(dtype), array_shapes(min_side=0, max_dims=3)))
    expected = defined(values.astype(np.float64).reshape(-1).tolist())
    assert counted(values) == Statistics(**expected)


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0", "i4"])
def test_types_that_numpy_does_not_have(dtype: str) -> None:
    kind = dtypes.to_numpy(dtype)
    values = np.arange(1 << 8 * kind.itemsize).astype(f"u{kind.itemsize}").view(kind)[:256]
    with np.errstate(invalid="ignore"):
        assert counted(values) == Statistics(**defined(values.astype(np.float64).tolist()))


def test_statistics_do_not_depend_on_panels_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((9, 50), np.float32)
    values[3, 7:11] = np.nan, -np.inf, 0, -0.0
    whole = counted(values)
    monkeypatch.setattr(statistics, "_STEP", 7)
    assert counted(values[:4], values[4:4], values[4:]) == whole
    assert whole.absmax == np.nanmax(np.abs(values[np.isfinite(values)]))
    assert sum(whole.negative.values()) == np.count_nonzero(np.isfinite(values) & (values < 0))


def test_without_finite_values_there_are_no_extremes() -> None:
    summary = counted(np.array([np.nan, np.inf]))
    assert (
        summary.min,
        summary.max,
        summary.absmax,
        summary.infinite,
        summary.nan,
    ) == (None, None, None, 1, 1)
    assert counted(np.zeros(0)).to_dict()["absmax"] is None


def test_complex_numbers_are_refused() -> None:
    with expect_error(CodecError, expected="real numbers", found="complex64"):
        counted(np.zeros(3, np.complex64))


@pytest.mark.parametrize("name", ["w", "q", "none", "one"])
def test_a_tensor_is_read_once_and_in_panels(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((600, 2048)).astype(np.float32)
    box = toys.box({"w": values, "q": toys.rows(values), "none": values[:0], "one": np.array(3.0)}, {}, {})
    source = CountingSource(BytesSource(box))
    tensor = squish.open(source, registry=toys.registry())[name]
    source.log.clear()
    summary = tensor.statistics()
    lengths = [length for _, _, length in source.log]
    assert sum(lengths) == tensor.nbytes
    assert max(lengths, default=0) <= PANEL_BYTES
    expected = Statistics(**defined(tensor.numpy().astype(np.float64).reshape(-1).tolist()))
    assert [getattr(summary, name) for name in COUNTED] == [getattr(expected, name) for name in COUNTED]
    assert summary == tensor.load("numpy").statistics()


NORMAL = np.random.default_rng(1).standard_normal((300, 400)).astype(np.float32)
NORMAL[0, 0] = 1e4


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i8"])
@pytest.mark.parametrize("offset", [0, 1000])
def test_moments_and_quantiles_are_numpys(dtype: str, offset: int) -> None:
    """Panels of one tensor; a mean far from zero loses no digits of the deviation."""
    with np.errstate(invalid="ignore"):
        values = (NORMAL + offset).astype(dtypes.to_numpy(dtype))
    found = squish.open(toys.box({"w": values}), registry=toys.registry())["w"].statistics()
    exact = values.astype(np.float64)
    distance = abs(exact - exact.mean())
    assert found.mean == pytest.approx(exact.mean(), rel=1e-6)
    assert found.std == pytest.approx(exact.std(), rel=1e-6)
    assert found.rms == pytest.approx(np.sqrt(np.square(exact).mean()), rel=1e-6)
    assert found.outliers == pytest.approx((distance > 3 * exact.std()).mean(), abs=1e-6)
    quantiles = [np.quantile(exact, share) for share in found.quantiles]
    assert list(found.quantiles.values()) == pytest.approx(quantiles, rel=1e-6, abs=1e-6)
    assert found.exact


def test_moments_leave_out_values_that_are_not_finite() -> None:
    values = np.array([1, np.nan, 3, np.inf, -np.inf], np.float32)
    found = squish.open(toys.box({"w": values}), registry=toys.registry())["w"].statistics()
    assert (found.mean, found.std, found.quantiles[0.5], found.sampled, found.exact) == (2, 1, 2, 2, True)
    empty = squish.open(toys.box({"w": values[:0]}), registry=toys.registry())["w"].statistics()
    assert (empty.mean, empty.std, empty.rms, empty.outliers, empty.quantiles) == (None, None, None, None, {})


def test_quantiles_of_a_large_tensor_come_from_an_even_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_EXACT", 20_000)
    found = squish.open(toys.box({"w": NORMAL}), registry=toys.registry())["w"].statistics()
    assert not found.exact
    assert 15_000 < found.sampled <= 20_000
    assert found.quantiles[0.25] == pytest.approx(np.quantile(NORMAL, 0.25), abs=0.05)
    assert found.mean == pytest.approx(NORMAL.mean(dtype=np.float64), rel=1e-6)


def test_a_sample_covers_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_EXACT", 500)
    values = np.tile(np.arange(8, dtype=np.float32), (1000, 1))
    found = squish.open(toys.box({"w": values}), registry=toys.registry())["w"].statistics()
    assert found.quantiles[0.001] == pytest.approx(0, abs=1)
    assert found.quantiles[0.999] == pytest.approx(7, abs=1)
