"""The files that docs/adding.md names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding.md"


def paths(text: str) -> Iterator[str]:
    """The paths in code on a page, alone or in commands, except for those with NAME in them."""
    for code in re.findall(r"`([^`\n]+)`", text):
        yield from (word for word in code.split() if "/" in word and "NAME" not in word)


def test_every_path_exists() -> None:
    named = list(paths(PAGE.read_text(encoding="utf-8")))
    assert len(named) > 50
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_link_leads_to_a_page() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
