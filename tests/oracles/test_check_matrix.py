"""A sample of the matrix: `check-model` says of no changed model what llama.cpp does not do, and seldom nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.check_matrix import LOADS, REFUSED, UNKNOWN, bases, cases

pytestmark = pytest.mark.oracle
SAMPLE = 40
"""One of this many changes of each family."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


def test_check_model_equals_llama_cpp(folder: Path) -> None:
    results = [case for family, base in bases(folder) for case in cases(family, base, sample=SAMPLE)]
    wrong = [case for case in results if case.engine != case.check and case.check != UNKNOWN]
    assert wrong == []
    assert {case.engine for case in results} == {LOADS, REFUSED}
    assert sum(case.check == UNKNOWN for case in results) <= len(results) * 0.05
    assert [case.check for case in results if case.change == "unchanged"] == [LOADS] * len(list(bases(folder)))
