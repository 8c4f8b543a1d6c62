"""Writes what is made from the command objects and settings: `python tests/lint/commands.py`.

The table that completion, `squish explain` and the man pages read, the man pages, docs/config.md and docs/glossary.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from squish_cli import command_table

import squish_core as squish

ROOT = Path(__file__).parents[2]
CLI = ROOT / "plugins" / "cli"


def table_text() -> str:
    """`commands.json`, one command or kind a line."""
    table = command_table.command_table(squish.Registry(""))
    return "{\n" + ",\n".join(f' "{key}": {_lines(value)}' for key, value in table.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "\n }"


def pages() -> dict[Path, str]:
    """Every file -> its text."""
    return {command_table.FILE: table_text()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
