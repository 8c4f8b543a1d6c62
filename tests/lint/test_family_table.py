"""The table of families in docs/models.md, and its examples of declarations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from family_table import PAGE, page, results
from squish_models.declarations import read_family
from squish_models.overview import RUNS


def test_the_page_has_the_families_that_the_code_has() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/lint/family_table.py`"


def test_the_command_lists_the_runs_of_the_page() -> None:
    assert RUNS.read_text(encoding="utf-8") == results(), "run `python tests/lint/family_table.py`"


@pytest.mark.parametrize(
    "example", re.findall(r"```toml\n(base = .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
def test_an_example_of_the_page_is_a_declaration(example: str, tmp_path: Path) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(example)
    family = read_family(path).family()
    assert family.model_type.startswith("acme")
    assert family.tensors
