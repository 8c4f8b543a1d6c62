"""What install hints and the wheel check know of the plugins is what the plugins declare."""

from __future__ import annotations

from pathlib import Path

import pytest

import squish_core as squish
from squish_core.plugins import catalog


def test_the_catalog_is_what_the_plugins_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m squish_core.plugins.catalog --write` writes it."""
    monkeypatch.setattr(catalog, "checkout", lambda: Path(__file__).parents[2])
    assert catalog.TABLE.read_text("utf-8") == catalog.catalog_text(squish.Registry(""))
