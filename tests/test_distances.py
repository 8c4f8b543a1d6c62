"""Distances: sums over panels equal the formulas on the whole, and equal NaNs are equal."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from squish_core import distances
from squish_core.distances import Distance


def test_panels_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "_STEP", 7)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 5, 9))
    told = Distance()
    for row in range(5):
        told.add(x[row], y[row])
    nmse = np.square(x - y).sum() / np.square(x).sum()
    assert told.nmse == pytest.approx(nmse)
    assert told.snr == pytest.approx(-10 * np.log10(nmse))
    assert told.max_error == np.abs(x - y).max()
    assert told.cosine == pytest.approx(np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y))


def test_equal_nans_and_infinities_are_left_out_and_others_are_infinitely_far() -> None:
    told = Distance()
    told.add(np.array([3, nan, inf, 4]), np.array([3, nan, inf, 3]))
    assert (told.max_error, told.nmse, told.snr) == (1, 1 / 25, pytest.approx(10 * np.log10(25)))
    assert told.cosine == pytest.approx(21 / 5 / np.sqrt(18))
    told.add(np.array([5.0, 0]), np.array([nan, 0]))
    told.add(np.array([5.0]), np.array([4.0]))
    assert (told.equal, told.max_error, told.nmse, told.snr) == (False, inf, inf, -inf)
    assert np.isnan(told.cosine)


@pytest.mark.parametrize(("x", "y", "equal", "snr"), [
    ([1, nan, inf, -inf], [1, nan, inf, -inf], True, inf), ([0, 0], [0, 0], True, inf), ([], [], True, inf),
    ([0, 0], [0, 1], False, -inf), ([3, 4], [3, 3], False, 10 * np.log10(25)), ([1, 1], [1, nan], False, -inf),
    ([1e-200], [2e-200], False, -inf),
])  # fmt: skip
def test_what_is_equal_and_how_much_is_lost(x: list[float], y: list[float], equal: bool, snr: float) -> None:
    told = Distance()
    told.add(np.array(x), np.array(y))
    assert told.equal is equal
    assert told.snr == pytest.approx(snr)
