"""Distances: sums over panels equal the formulas on the whole, equality is exact, and equal NaNs are equal."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from squish_convert.compare import metrics
from squish_convert.compare.metrics import Distance


def test_panels_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_STEP", 7)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 5, 9))
    distance = Distance()
    for row in range(5):
        distance.add(x[row], y[row])
    nmse = np.square(x - y).sum() / np.square(x).sum()
    assert distance.nmse == pytest.approx(nmse)
    assert distance.snr == pytest.approx(-10 * np.log10(nmse))
    assert distance.max_error == np.abs(x - y).max()
    assert distance.cosine == pytest.approx(np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y))


def test_equal_nans_and_infinities_are_left_out_and_others_are_infinitely_far() -> None:
    distance = Distance()
    distance.add(np.array([3, nan, inf, 4]), np.array([3, nan, inf, 3]))
    assert (distance.max_error, distance.nmse, distance.snr) == (1, 1 / 25, pytest.approx(10 * np.log10(25)))
    assert distance.cosine == pytest.approx(21 / 5 / np.sqrt(18))
    distance.add(np.array([5.0, 0]), np.array([nan, 0]))
    distance.add(np.array([5.0]), np.array([4.0]))
    assert (distance.equal, distance.max_error, distance.nmse, distance.snr) == (False, inf, inf, -inf)
    assert np.isnan(distance.cosine)


@pytest.mark.parametrize(("x", "y", "equal", "snr"), [
    ([1, nan, inf, -inf], [1, nan, inf, -inf], True, inf), ([0, 0], [0, 0], True, inf), ([], [], True, inf),
    ([0, 0], [0, 1], False, -inf), ([3, 4], [3, 3], False, 10 * np.log10(25)), ([1, 1], [1, nan], False, -inf),
    ([1e-200], [2e-200], False, -inf),
])  # fmt: skip
def test_equality_and_error_metrics(x: list[float], y: list[float], equal: bool, snr: float) -> None:
    distance = Distance()
    distance.add(np.array(x), np.array(y))
    assert distance.equal is equal
    assert distance.snr == pytest.approx(snr)


BIG = 1 << 53


@pytest.mark.parametrize(("x", "y", "max_error"), [
    (np.array([BIG + 1], "i8"), np.array([BIG], "i8"), 1),
    (np.array([-BIG - 1], "i8"), np.array([-BIG], "i8"), 1),
    (np.array([2**64 - 1], "u8"), np.array([2**64 - 3], "u8"), 2),
    (np.array([BIG + 1], "i8"), np.array([BIG], "u8"), 1),
    (np.array([-1], "i8"), np.array([2**64 - 1], "u8"), 2.0**64),
    (np.array([BIG + 1], "i8"), np.array([BIG], "f8"), 1),
    (np.array([2**64 - 1], "u8"), np.array([2.0**64], "f8"), 1),
    (np.array([BIG + 1], "i8"), np.array([BIG], "c16"), 1),
    (np.array([-(2**63)], "i8"), np.array([2**63 - 1], "i8"), 2.0**64),
    (np.array([3 + 4j], "c16"), np.array([3 + 5j], "c16"), 1),
    (np.array([3 + 4j], "c8"), np.array([0], "c8"), 5),
    (np.array([3 + 4j], "c8"), np.array([3], "f4"), 4),
    (np.array([3], "i4"), np.array([3 - 2j], "c8"), 2),
    (np.array([complex(nan, 1)]), np.array([complex(nan, 3)]), 2),
    (np.array([complex(1, nan)]), np.array([complex(1, 0)]), inf),
])  # fmt: skip
def test_different_integers_and_complex_numbers_differ(x: np.ndarray, y: np.ndarray, max_error: float) -> None:
    for values, others in ((x, y), (y, x)):
        distance = Distance()
        distance.add(values, others)
        assert not distance.equal
        assert distance.max_error == max_error


@pytest.mark.parametrize("dtypes", [("i8", "u8"), ("i8", "f8"), ("u8", "c16"), ("f8", "f4"), ("i4", "f4"), ("?", "i8")])
def test_equal_values_of_different_dtypes_are_equal(dtypes: tuple[str, str]) -> None:
    distance = Distance()
    numbers = [0, 1] if "?" in dtypes else [0, 1, BIG]
    if "i4" in dtypes:
        numbers[-1] = 1 << 24
    distance.add(*(np.array(numbers, dtype) for dtype in dtypes))
    assert distance.equal
    assert (distance.nmse, distance.cosine) == (0, 1)


@pytest.mark.parametrize("dtype", ["i8", "u8", "c16", "f4"])
def test_panels_with_equal_bits_count_as_power(dtype: str) -> None:
    distance = Distance()
    distance.add(np.array([3], dtype), np.array([3], dtype))
    distance.add(np.array([4], dtype), np.array([3], dtype))
    assert distance.nmse == pytest.approx(1 / 25)
    assert distance.cosine == pytest.approx(21 / 5 / np.sqrt(18))


def test_the_cosine_of_complex_numbers_is_that_of_their_real_and_imaginary_parts() -> None:
    distance = Distance()
    distance.add(np.array([1 + 2j, 3]), np.array([2 + 1j, -1j]))
    assert distance.cosine == pytest.approx(4 / np.sqrt(14 * 6))
    assert distance.nmse == pytest.approx(12 / 14)
    assert distance.max_error == pytest.approx(np.sqrt(10))


def test_every_bit_of_an_integer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    numbers = rng.integers(-(2**63), 2**63, 1000, "i8")
    for bit in range(64):
        others = numbers.copy()
        others[bit::64] ^= np.array(1 << bit, "u8").view("i8")
        distance = Distance()
        distance.add(numbers, others)
        assert not distance.equal
        assert distance.max_error == 2.0**bit
