"""The tables of `docs/specifications.md` name modules and tests that exist, and have a row for each section."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "specifications.md"
DOCUMENTS = {"SQUIZD": 21, "Apple Neural Engine": 17, "zTensor": 12, "Squish Architecture": 10, "UQFF": 6}
"""Documents by the first words of their heading, with the number of their sections."""
STATES = ("done", "in part", "not yet", "nothing to implement")


class Row(NamedTuple):
    section: str
    title: str
    state: str
    modules: str
    tests: str
    missing: str


def parse(chapter: str) -> tuple[list[str], list[Row]]:
    """The sections that a chapter lists, and the rows of its table."""
    (listed,) = re.findall(r"^Sections: (.+)\.$", chapter, re.MULTILINE)
    _, _, *lines = [line for line in chapter.splitlines() if line.startswith("|")]
    return listed.split(", "), [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


CHAPTERS = {chapter.partition("\n")[0]: parse(chapter) for chapter in PAGE.read_text().split("\n## ")[1:]}
ROWS = [pytest.param(row, id=f"{name} {row.section}") for name, (_, rows) in CHAPTERS.items() for row in rows]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_module(name: str) -> bool:
    path = Path(*name.split("."))
    return any(
        (folder / path).with_suffix(".py").exists() or (folder / path / "__init__.py").exists()
        for folder in (ROOT, *ROOT.glob("plugins/*/src"))
    )


def is_test(name: str) -> bool:
    """Whether `file.py::test_function` is in exactly one folder of tests."""
    file, _, function = name.partition("::")
    paths = [*ROOT.glob(f"tests/*/{file}"), *ROOT.glob(f"plugins/*/tests/{file}")]
    if len(paths) != 1:
        return False
    nodes = ast.walk(ast.parse(paths[0].read_text()))
    return function.startswith("test_") and any(isinstance(n, ast.FunctionDef) and n.name == function for n in nodes)


def test_the_five_documents_are_there() -> None:
    assert len(CHAPTERS) == len(DOCUMENTS)
    for title, (start, sections) in zip(CHAPTERS, DOCUMENTS.items()):
        assert title.startswith(start)
        assert len(CHAPTERS[title][0]) == sections


@pytest.mark.parametrize("title", CHAPTERS)
def test_every_section_has_one_row(title: str) -> None:
    listed, rows = CHAPTERS[title]
    assert [row.section for row in rows] == listed
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("row", ROWS)
def test_modules_and_tests_exist(row: Row) -> None:
    assert row.state in STATES
    assert [name for name in names(row.modules) if not is_module(name)] == []
    assert [name for name in names(row.tests) if not is_test(name)] == []


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_the_cells_its_state_requires(row: Row) -> None:
    if row.state in ("done", "in part"):
        assert names(row.modules)
        assert names(row.tests)
    if row.state in ("in part", "not yet"):
        assert row.missing


@pytest.mark.parametrize("name", ["test_absent.py::test_it", "test_specifications.py::test_absent", "conftest.py"])
def test_a_test_that_is_absent_is_noticed(name: str) -> None:
    assert not is_test(name)
    assert not is_module("squish_core.absent")
