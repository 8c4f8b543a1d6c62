"""JSON Schemas of what commands print with `--json`, once `squish schema` exists."""

from __future__ import annotations

from collections.abc import Iterator

HEAD = """# JSON

Every command prints one JSON document with `--json`, errors included.
"""


def pages() -> Iterator[tuple[str, str]]:
    """The page."""
    yield "schemas.md", HEAD
