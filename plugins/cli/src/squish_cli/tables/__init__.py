"""Tables that are made from the sources: commands and ids, codes of errors, the glossary, the directory of plugins."""

from __future__ import annotations

import os

# Completion imports this module for every Tab, so it imports little.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def place(name: str) -> str:
    """Return the path of a table."""
    return os.path.join(os.path.dirname(__file__), f"{name}.json")


def read(name: str) -> Any:
    """Return a table: "commands", "errors", "glossary" or "plugins"."""
    import json

    with open(place(name), encoding="utf-8") as file:
        return json.load(file)
