"""`check-model` against Transformers, mlx-lm and mistral.rs: a part of the changes of `check_folders`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import check_folders
from .check_matrix import LOADS, REFUSED, UNKNOWN, matrix

SAMPLES = {"transformers": ("qwen2", "phi3"), "mlx": ("llama-yarn", "gemma3_text"), "mistralrs": ("mistral",)}
"""Engine -> families."""
SAMPLE = 24


@pytest.mark.oracle
@pytest.mark.parametrize("engine", SAMPLES)
def test_check_model_promises_nothing_that_the_engine_refuses(engine: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for wanted in SAMPLES[engine]:
        for family, base in check_folders.bases(tmp_path, wanted):
            if family == wanted:
                results += check_folders.cases(engine, family, base, sample=SAMPLE)
    promised = [case for case in results if case.engine == REFUSED and case.check == LOADS]
    assert not promised, f"{matrix(results)}\n{promised}"
    unchanged = [case for case in results if case.change == "unchanged"]
    assert [case.check for case in unchanged] == [case.engine for case in unchanged]
    assert sum(case.check == UNKNOWN for case in results) <= max(2, len(results) // 10)
