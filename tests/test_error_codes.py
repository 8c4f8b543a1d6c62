"""docs/errors.md lists every error code of the source."""

from __future__ import annotations

import pytest
from error_codes import PAGE, page, table

from squish_core import codes


def test_the_page_is_made_from_the_source() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/error_codes.py`"


@pytest.mark.parametrize("name", [name for name in dir(codes) if name.isupper()])
def test_codes_that_are_switched_on_are_raised(name: str) -> None:
    assert getattr(codes, name) in table()
