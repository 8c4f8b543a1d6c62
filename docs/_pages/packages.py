"""The distributions of this repository, from their pyproject files: what each is for, its extras and commands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from squish_cli import tables
from squish_cli.command_table import OWN

from squish_core.plugins import catalog

from . import codes, table

ROOT = Path(__file__).parents[2]
HEAD = """# Packages

Every format, codec and backend is a package. [Install](../start/install.md) says how to install them from a clone, by
their folders; `squish needs FILE` lists those that a file takes.

"""


DIRECTORY = """# Plugins

The directory of plugins: those of Squish, and those of others that came in by a pull request. `squish plugins
--available WORD` searches it, and `squish install PACKAGE` installs one.

To add yours: a row at the end of [plugins.toml](FILE), whose head describes the fields. A workflow installs each plugin
and runs its tests. Being listed is not a review of the code.

""".replace("FILE", f"{catalog.REPOSITORY}/blob/main/plugins.toml")


def directory() -> Iterator[tuple[str, ...]]:
    """Yield the rows of plugins.toml."""
    for row in tables.read("plugins"):
        place = f"{row['repository']}/tree/main/{row['folder']}" if row["folder"] else row["repository"]
        yield f"[`{row['name']}`]({place})", row["description"], codes(row["provides"])


def pages() -> Iterator[tuple[str, str]]:
    """The page."""
    rows = []
    for file in (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        name, folder = project["name"], file.parent.relative_to(ROOT).as_posix()
        extras = [extra for extra in project.get("optional-dependencies", {}) if extra != "testing"]
        commands = [
            command for command, facts in tables.read("commands")["commands"].items() if facts["package"] == name != OWN
        ]
        description = project["description"].rstrip(".")
        rows.append(
            (f"`{name}`", description, f"`{folder}`", codes(extras), codes([f"squish {each}" for each in commands]))
        )
    yield "plugins.md", DIRECTORY + table(("plugin", "for", "provides"), list(directory()))
    yield "packages.md", HEAD + table(("package", "for", "folder", "extras", "commands"), rows)
