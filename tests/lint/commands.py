"""Writes what is made from the command objects and settings: `python tests/lint/commands.py`.

The table that completion, `squish explain` and the man pages read, the man pages, docs/config.md and docs/glossary.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import manual
from squish_cli import command_table, settings

import squish_core as squish

ROOT = Path(__file__).parents[2]
CLI, DOCS = ROOT / "plugins" / "cli", ROOT / "docs"


def table_text(table: command_table.Table) -> str:
    """`commands.json`, one command or kind a line."""
    return "{\n" + ",\n".join(f' "{key}": {_lines(value)}' for key, value in table.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "\n }"


def pages() -> dict[Path, str]:
    """Every file -> its text."""
    table = command_table.command_table(squish.Registry(""))
    man = {CLI / "man" / name: text for name, text in manual.pages(table).items()}
    return {
        command_table.FILE: table_text(table),
        **man,
        DOCS / "config.md": config_page(),
        DOCS / "config.schema.json": json.dumps(settings.schema(), indent=1) + "\n",
        DOCS / "glossary.md": glossary_page(),
    }


CONFIG = """# Settings

Each setting is a variable of the environment, and may be in a file of the user, which holds for the command line: the
environment wins over the file, and the file over the default. In Python, variables alone hold.

```sh
squish config
squish config set threads 4
squish config get threads
squish config unset threads
```

`squish config` lists the settings and where each value comes from, and so does `squish doctor`. The file is
`~/.config/squish/config.toml` (below `XDG_CONFIG_HOME` where that is set; on macOS below
`~/Library/Application Support`, on Windows below `%APPDATA%`), with lines such as `threads = 4`; `SQUISH_CONFIG` names
another file. No file of the current folder is read, and paths in the file are relative to it. An empty variable stands
for the default. `SQUISH_PLUGIN_FILES` runs code ([a plugin in one file](writing-a-plugin.md#a-plugin-in-one-file)), so
no file sets it. [config.schema.json](config.schema.json) is the JSON Schema of the file.

| setting | variable | type | value | default | meaning |
|---|---|---|---|---|---|
"""


def config_page() -> str:
    """docs/config.md."""
    rows = [
        (f"`{each.name}`", f"`{each.variable}`", each.type, each.expected, each.default, each.meaning)
        for each in settings.SETTINGS
    ]
    return CONFIG + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def glossary_page() -> str:
    """docs/glossary.md."""
    rows = json.loads((command_table.FILE.parent / "glossary.json").read_text("utf-8"))
    lines = [f"| {word} | {meaning} |\n" for word, meaning in rows.items()]
    return "# Glossary\n\n| word | means |\n|---|---|\n" + "".join(lines)


if __name__ == "__main__":
    for old in (CLI / "man").glob("*.1"):
        old.unlink()
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
