"""The directory of plugins is complete, and names what exists."""

from __future__ import annotations

import re
import tomllib

from plugin_directory import FIELDS, FILE, TABLE, directory_text, ours, table_text

from squish_core.plugins import catalog


def test_our_part_is_what_the_packages_declare() -> None:
    assert FILE.read_text("utf-8") == directory_text(), "run `python tests/lint/plugin_directory.py`"
    assert TABLE.read_text("utf-8") == table_text(directory_text()), "run `python tests/lint/plugin_directory.py`"
    assert {"squish-gguf", "squish-cpu", "squish-remote", "squish-models"} <= {row["name"] for row in ours()}


def test_every_plugin_is_described_in_the_same_way() -> None:
    rows = tomllib.loads(FILE.read_text("utf-8"))["plugin"]
    assert all(tuple(row) == FIELDS for row in rows)
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", row["name"]) for row in rows)
    assert all(row["repository"].startswith("https://") for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)
    listed = [row["name"] for row in rows if row["name"] not in catalog.distributions()]
    assert sorted(listed) == listed
