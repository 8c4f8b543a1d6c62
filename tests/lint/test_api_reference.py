"""docs/reference.md lists the public names as their docstrings describe them."""

from __future__ import annotations

from importlib import import_module

import pytest
from api_reference import INTERFACES, PAGE, page

import squish_core as squish

NAMES = {*squish.__all__, *(name for module in INTERFACES for name in import_module(module).__all__)} - {"__version__"}


def test_the_page_is_generated_from_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/lint/api_reference.py`"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_on_the_page(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert any(each in text for each in (f"| `{name}` |", f"### `{name}`\n", f"### `{name}("))
    assert f"| `{name}` |  |" not in text, "has no docstring"
