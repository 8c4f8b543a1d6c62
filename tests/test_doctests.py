"""The examples in docstrings of the core run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

CORE = Path(__file__).parents[1] / "squish_core"
MODULES = [
    ".".join(("squish_core", *path.relative_to(CORE).with_suffix("").parts))
    for path in sorted(CORE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str, request: pytest.FixtureRequest) -> None:
    names = {"getfixture": request.getfixturevalue}
    results = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert results.attempted
    assert not results.failed
