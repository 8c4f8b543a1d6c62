"""Writes our part of `plugins.toml`, and the directory that `squish plugins --available` reads.

    python tests/lint/plugin_directory.py

Plugins of others come in by pull requests, below our part; this script keeps them.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from squish_cli import tables

from squish_core.plugins import catalog

ROOT = Path(__file__).parents[2]
FILE, TABLE = ROOT / "plugins.toml", Path(tables.place("plugins"))
MARK = "# Plugins of others: add yours below, in the order of names.\n"
HEAD = """\
# The directory of plugins: what `squish plugins --available` and the documentation list. A workflow installs each of
# them and runs its tests, which are those of Squish's conformance kit.
#
# [[plugin]]
# name = "acme-format"                                distribution
# description = "ACME files"
# repository = "https://github.com/acme/acme-format"
# folder = ""                                         where its pyproject.toml is
# extra = "test"                                      what its tests need
# provides = ["format acme.foo"]                      kinds and ids
#
# Ours: `python tests/lint/plugin_directory.py` writes them.
"""
FIELDS = ("name", "description", "repository", "folder", "extra", "provides")
KINDS = {"container": "format", "family": "family"}


def ours() -> list[dict[str, Any]]:
    """The plugins of this repository, in the order of names."""
    provided: dict[str, list[str]] = {}
    for kind, entries in catalog.table().items():
        if kind != "distributions":
            for name, facts in entries.items():
                provided.setdefault(facts["dist"], []).append(f"{KINDS.get(kind, kind)} {name}")
    rows = []
    for name, facts in catalog.distributions().items():
        project = tomllib.loads((ROOT / facts["folder"] / "pyproject.toml").read_text("utf-8"))["project"]
        if "squish" in project.get("entry-points", {}):
            extra = "testing" if "testing" in project.get("optional-dependencies", {}) else ""
            row = (name, project["description"], catalog.REPOSITORY, facts["folder"], extra, provided.get(name, []))
            rows.append(dict(zip(FIELDS, row)))
    return rows


def others() -> str:
    """The part of the file that is not ours, as it stands."""
    return FILE.read_text("utf-8").partition(MARK)[2] if FILE.exists() else ""


def directory_text() -> str:
    """plugins.toml."""
    blocks = [
        "[[plugin]]\n" + "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in row.items())
        for row in ours()
    ]
    return "\n".join([HEAD, *blocks, MARK]) + others()


def table_text(text: str) -> str:
    """The same for the command line, one plugin a line."""
    rows = [json.dumps(row, ensure_ascii=False) for row in tomllib.loads(text)["plugin"]]
    return "[\n " + ",\n ".join(rows) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(directory_text(), "utf-8")
    TABLE.write_text(table_text(directory_text()), "utf-8")
