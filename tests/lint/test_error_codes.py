"""docs/errors.md lists every error code of the source, and codes that are switched on are constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from error_codes import (
    CONSTANTS,
    EXAMPLES,
    PAGE,
    ROOT,
    TABLE,
    calls,
    codes_of,
    documented,
    forwarded,
    keyword_of,
    literal_message,
    name_of,
    page,
    scopes,
    table,
    table_text,
    trees,
)

from squish_core import api, codes, errors
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError

LITERALS = {code: name for name, code in CONSTANTS.items()}
GROUPS = ("BUGS", "CANNOT_RUN", "USAGE_CODES")


def test_the_page_is_generated_from_the_source() -> None:
    assert TABLE.read_text(encoding="utf-8") == table_text(), "run `python tests/lint/error_codes.py`"
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/lint/error_codes.py`"


def test_every_code_has_a_cause_and_a_cure() -> None:
    rows = documented()
    assert not [code for code, row in rows.items() if not row["cause"].endswith(".") or not row["cure"].endswith(".")]


def test_every_error_has_a_code() -> None:
    """The command line ends each error with it."""
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, SquishError)}
    coded = {"UsageError": "squish_core/errors.py"}  # copies the fields of another error
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node) in classes and keyword_of(node, "code") is None
        if not any(keyword.arg is None for keyword in node.keywords)
        if coded.get(name_of(node)) != path.relative_to(ROOT).as_posix()
    ]
    assert not without


def test_every_code_has_an_example() -> None:
    assert not [code for code, (_, example) in table().items() if not example]


def test_examples_are_listed_only_where_no_call_shows_one() -> None:
    stated = {code for code, _, message in (*calls(literal_message), *forwarded(literal_message)) if message}
    assert not stated & EXAMPLES.keys()


PASSED_ON = {
    "squish_core/backends/resolve.py": "the code of a backend's refusal",
    "plugins/models/src/squish_models/engines/check.py": "the code of an error that the inventory lists",
    "plugins/remote/src/squish_remote/hub.py": "constants in a table of exceptions",
}
"""Modules with a code that no literal shows, and where it comes from."""


def test_no_code_escapes_the_table() -> None:
    hidden = []
    for path, tree in trees().items():
        for scope, node in scopes(tree):
            code = keyword_of(node, "code") if isinstance(node, ast.Call) else None
            if code is None or path.relative_to(ROOT).as_posix() in PASSED_ON or any(codes_of(code, scope)):
                continue
            names = {argument.arg for argument in ast.walk(scope) if isinstance(argument, ast.arg)}
            from_caller = isinstance(code, ast.Name) and code.id in names  # its callers are in the table
            if not from_caller and not is_code(code):
                hidden.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(code)}")
    assert not hidden


@pytest.mark.parametrize("code", ["files", "stats", "P3", "windows", "canary"])
def test_codes_that_reach_an_error_through_a_parameter_are_listed(code: str) -> None:
    assert code in table()


@pytest.mark.parametrize("name", CONSTANTS)
def test_codes_that_are_switched_on_are_raised(name: str) -> None:
    assert getattr(ErrorCode, name) in table()


def test_constants_are_distinct_and_exported() -> None:
    assert len(LITERALS) == len(CONSTANTS)
    assert api.ErrorCode is ErrorCode
    for name in GROUPS:
        assert getattr(api, name) is getattr(codes, name)
        assert set(getattr(codes, name)) <= set(LITERALS)


def is_code(node: ast.expr) -> bool:
    """Whether an expression is the code of an error, refusal or finding."""
    return getattr(node, "attr" if isinstance(node, ast.Attribute) else "id", "") == "code"


def parameters_named_code(modules: dict[Path, ast.Module]) -> dict[str, set[int]]:
    """Function or method -> positions, `self` aside, of its parameter `code`."""
    positions: dict[str, set[int]] = {}
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                if "code" in names:
                    positions.setdefault(node.name, set()).add(names.index("code"))
    return positions


def assigned_codes(target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """What an assignment gives to a variable `code`."""
    if isinstance(value, ast.IfExp):
        yield from (*assigned_codes(target, value.body), *assigned_codes(target, value.orelse))
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from (code for pair in zip(target.elts, value.elts) for code in assigned_codes(*pair))
    elif isinstance(target, ast.Name) and target.id.strip("_").lower() == "code":
        yield value


def code_expressions(tree: ast.Module, positions: dict[str, set[int]]) -> Iterator[ast.expr]:
    """Expressions that are given as a code or compared with one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            yield from (argument for index, argument in enumerate(node.args) if index in positions.get(name, ()))
        elif isinstance(node, ast.Compare) and any(map(is_code, (node.left, *node.comparators))):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Assign):
            yield from (value for target in node.targets for value in assigned_codes(target, node.value))
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args[len(node.args.args) - len(node.args.defaults) :], *node.args.kwonlyargs]
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            yield from (default for argument, default in zip(arguments, defaults) if argument.arg == "code" and default)


def test_no_module_writes_or_compares_the_text_of_a_constant() -> None:
    positions = parameters_named_code(trees())
    texts = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value!r} is ErrorCode.{LITERALS[node.value]}"
        for path, tree in trees().items()
        if path != Path(codes.__file__)
        for expression in code_expressions(tree, positions)
        if not isinstance(expression, ast.Call)
        for node in ast.walk(expression)
        if isinstance(node, ast.Constant) and node.value in LITERALS
    ]
    assert not texts


def test_whatever_is_compared_with_a_code_is_a_constant() -> None:
    """A code that is switched on belongs in `ErrorCode`."""
    texts = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(map(is_code, (node.left, *node.comparators))):
                operands = [n for side in (node.left, *node.comparators) for n in ast.walk(side)]
                texts += [
                    f"{path.relative_to(ROOT)}:{n.lineno} {n.value!r}"
                    for n in operands
                    if isinstance(n, ast.Constant) and isinstance(n.value, str)
                ]
    assert not texts
