"""What install hints and the wheel check know of the plugins is what the plugins declare."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalog import catalog_text

import squish_core as squish
from squish_core.plugins import catalog


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "checkout", lambda: Path(__file__).parents[2])


def test_the_catalog_is_what_the_plugins_declare() -> None:
    text = catalog_text(squish.Registry(""))
    assert catalog.TABLE.read_text("utf-8") == text, "run `python tests/lint/catalog.py`"


def test_the_catalog_is_made_where_every_plugin_is_installed() -> None:
    with pytest.raises(SystemExit) as caught:
        catalog_text(squish.Registry("-squish-zstd"))
    assert caught.value.code == "not installed here: squish-zstd"
