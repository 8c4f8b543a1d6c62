"""What `squish fit` says that llama-server takes is what llama.cpp logs as it loads a GGUF of the same sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.memory import logged_sizes
from served_models import MODELS, served_header, write_served
from squish_models.api import fit

pytestmark = pytest.mark.oracle
BOUND = 0.05
SHORT = (("SmolLM2-360M", 300), ("gemma-3-1b", 300), ("gemma-3-1b", 4096), ("Qwen3.5-4B", 300))
"""Contexts with fewer tokens than a batch, or hardly more than a window."""
ROUNDING = 2**20 / 100
"""llama.cpp logs hundredths of MiB."""


@pytest.mark.parametrize(("name", "context"), [*((name, 20000) for name in MODELS), *SHORT])
def test_each_size_is_what_llama_cpp_logs(name: str, context: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_served(path, *served_header(name, tmp_path / "made"))
    row = next(row for row in fit(path, memory="1TB", context=context).rows if row.preset == "as it is")
    expected = logged_sizes(path, context)
    for kind, size in expected.items():
        assert getattr(row, kind) == pytest.approx(size, rel=BOUND, abs=ROUNDING), kind
    assert row.total == pytest.approx(sum(expected.values()), rel=BOUND)
