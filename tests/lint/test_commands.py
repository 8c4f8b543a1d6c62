"""The table of commands, the man pages and the pages made with them are up to date."""

from __future__ import annotations

import json

import commands
import pytest

PAGES = commands.pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_is_made_from_the_commands_is_up_to_date(path: commands.Path) -> None:
    assert path.read_text("utf-8") == PAGES[path], "run `python tests/lint/commands.py`"


def test_no_man_page_is_left_of_a_command_that_is_gone() -> None:
    assert set((commands.CLI / "man").iterdir()) == {path for path in PAGES if path.suffix == ".1"}


def test_every_value_of_an_option_has_a_kind_or_is_free_text() -> None:
    """A new metavar of files, ids or tensors belongs in the table of kinds."""
    free = {
        "N",
        "SIZE",
        "BITS",
        "TEXT",
        "KEY",
        "KEY=TEXT",
        "NAME",
        "NAME=VALUE",
        "VALUE",
        "HOST",
        "TIER",
        "bpw=N|size=N",
        "KEY=FILE",
        "KEY=NEW",
        "LAYERS",
        "KEY[:TYPE]=TEXT",
        "PATTERN=NAME",
        "COMMAND",
    }
    table = json.loads(PAGES[commands.command_table.FILE])
    parameters = [each for facts in table["commands"].values() for each in (*facts["arguments"], *facts["options"])]
    metavars = {each["metavar"] for each in parameters if not each.get("kind", "-")}
    assert metavars - free <= {"TEXT[:kl=0.05|top1=0.97]"}
