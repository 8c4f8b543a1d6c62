"""The formatter has the last word on code; a table of literals may keep a row on a line."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("squish_core", "plugins", "tests", "benchmarks", "fuzz", "examples")
SKIP = "  # fmt: skip"
COLLECTIONS = (ast.Dict, ast.List, ast.Set, ast.Tuple)


def is_table(node: ast.AST | None) -> bool:
    """A literal collection, alone, assigned, or as an argument of the call that makes a table of it."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return is_table(node.value)
    if isinstance(node, ast.Call):
        is_maker = ast.unparse(node.func).split(".")[-1] in ("dict", "frozenset", "list", "parametrize", "set", "tuple")
        return is_maker and any(map(is_table, node.args))
    return isinstance(node, COLLECTIONS)


def ends_of_tables(text: str) -> set[int]:
    """Numbers of the lines on which a table ends."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.stmt, ast.expr)))
    return {node.end_lineno or 0 for node in nodes if is_table(node)}


def test_only_tables_are_not_formatted() -> None:
    wrong = []
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        if SKIP in text:
            tables = ends_of_tables(text)
            lines = enumerate(text.splitlines(), 1)
            wrong += [f"{path}:{number}" for number, line in lines if line.endswith(SKIP) and number not in tables]
    assert not wrong
