"""The table of families in docs/models.md."""

from __future__ import annotations

from family_table import PAGE, page


def test_the_page_has_the_families_that_the_code_has() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/lint/family_table.py`"
