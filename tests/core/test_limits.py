"""Limits that a user raises without Python: the variable SQUISH_LIMITS."""

from __future__ import annotations

from pathlib import Path

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import LimitError, SquishError
from squish_core.limits import DEFAULT, Limits, default

SAMPLE = Path(__file__).parents[1] / "data" / "sample.gguf"


def test_the_variable_sets_limits_that_calls_leave_out(monkeypatch):
    assert default() is DEFAULT
    monkeypatch.setenv("SQUISH_LIMITS", "tensors=1, header=200000000")
    assert default() == Limits(tensors=1, header=200_000_000)
    with expect_error(
        LimitError, code="count", offset=24, expected="at most 1", found=2, hint="set SQUISH_LIMITS=tensors="
    ):
        squish.open(SAMPLE)
    squish.open(SAMPLE, limits=Limits()).close()


@pytest.mark.parametrize("text", ["tensors", "nonsense=1", "tensors=-1", "tensors=1e6", "ratio=" + "9" * 30])
def test_an_invalid_limit_is_refused(monkeypatch, text):
    monkeypatch.setenv("SQUISH_LIMITS", text)
    with expect_error(SquishError, code="usage"):
        squish.open(SAMPLE)
