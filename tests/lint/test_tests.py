"""Rules for tests: they compare the fields of errors, and name variables by what they are.

Only `test_the_message_...`, `test_the_reason_...` and `test_the_text_...` compare the text of errors, so that it can be
reworded in few places. Exceptions of Python and warnings have no fields, so their text may be compared anywhere, and
that a text lacks something (a secret, a control character) may be stated anywhere.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "convert", "cli", "lint")
FILES = sorted(
    [
        *(path for folder in FOLDERS for path in ROOT.glob(f"tests/{folder}/test_*.py")),
        *ROOT.glob("plugins/*/tests/test_*.py"),
        *ROOT.glob("examples/**/test_*.py"),
    ]
)
TREES = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
ABOUT_TEXT = re.compile(r"_(messages?|reasons?|texts?|printed|words)(_|$)")
ERRORS = {"caught", "error", "exc", "info", "refusal", "raised"}


def is_builtin(node: ast.expr) -> bool:
    """Whether an exception class is one of Python's."""
    return isinstance(node, ast.Name) and hasattr(builtins, node.id)


def compared_texts(function: ast.FunctionDef) -> Iterator[int]:
    """Lines that compare the text of an error."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises" and node.args:
            has_fields = not is_builtin(node.args[0]) and "Peer" not in ast.unparse(node.args[0])
            if has_fields and any(keyword.arg == "match" for keyword in node.keywords):
                yield node.lineno
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.Eq)):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            names = "|".join(ERRORS)
            if any(re.match(rf"(str\(({names})(\.value)?\)|({names})(\.value)?\.message\b)", side) for side in sides):
                yield node.lineno


def test_only_tests_that_say_so_compare_the_text_of_errors() -> None:
    violations = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, tree in TREES.items()
        for test in ast.walk(tree)
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_") and not ABOUT_TEXT.search(test.name)
        for line in compared_texts(test)
    ]
    assert not violations, "compare code, tensor and offset (`expect_error`)"


REFUSED = {"wanted", "made", "plain", "told", "held", "given", "asked", "known", "flavour", "said", "says", "got"}


def variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each variable and parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_variables_are_named_by_what_they_are() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in TREES.items()
        for line, name in variables(tree)
        if name in REFUSED
    ]
