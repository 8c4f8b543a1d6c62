"""The error codes in the source, and the table and page made from them: `python tests/lint/error_codes.py`.

`errors.json` of squish_cli has the cause and the cure of each code, written by hand; where a code is raised and its
example are added from the source, and docs/errors.md is made from it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
TABLE = ROOT / "plugins/cli/src/squish_cli/tables/errors.json"
HEAD = """# Error codes

Every `SquishError` has a `code`; so have the findings of `verify` (`Problem.code`) and refusals. Switch on the code and
the class, never on the text. The command line ends each error with its code in square brackets, and `squish explain
CODE` prints its row of this table.

Causes and what to do are written in `squish_cli/tables/errors.json`; `python tests/lint/error_codes.py` adds the rest
from the source, and a test compares the two. The example is one message with this code, or says what its messages are
about.

| code | cause | what to do | for example | raised as |
|---|---|---|---|---|
"""
EXAMPLES = {
    "bits": "... stores codes of ... bits, not ...",
    "doubt": "its g_idx gives the ... groups ... to ... columns, not ... each",
    "layer": "why this layer cannot be read",
    "value": "has an illegal value",
}
"""Code -> example, where no call shows the message."""


def sources() -> Iterator[Path]:
    """Modules of the core and of all plugins."""
    yield from sorted((ROOT / "squish_core").rglob("*.py"))
    yield from sorted(path for path in ROOT.glob("plugins/*/src/**/*.py"))


def text_of(node: ast.expr | None) -> str:
    """A message with its variables as `...`; "" where it is no literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        pieces = (piece.value if isinstance(piece, ast.Constant) else "..." for piece in node.values)
        return "".join(map(str, pieces))
    return ""


def constants() -> dict[str, str]:
    """Name -> code of `ErrorCode`, from its source."""
    tree = ast.parse((ROOT / "squish_core" / "codes.py").read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ErrorCode")
    pairs = [(node.targets[0], node.value) for node in body if isinstance(node, ast.Assign)]
    return {name.id: text_of(value) for name, value in pairs if isinstance(name, ast.Name)}


CONSTANTS = constants()


def code_of(node: ast.expr | None) -> str:
    """A code that is a literal or one of `ErrorCode`; "" where it is neither."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorCode":
        return CONSTANTS[node.attr]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def distribution(path: Path) -> str:
    """The folder of the distribution that a module belongs to."""
    return "/".join(path.relative_to(ROOT).parts[: 2 if path.is_relative_to(ROOT / "plugins") else 1])


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}


class Forwarder(NamedTuple):
    """A function that passes one of its parameters on as a code: its position, name and the classes that get it."""

    position: int | None
    parameter: str
    classes: frozenset[str]

    def argument(self, call: ast.Call) -> ast.expr | None:
        """What a call passes as the code."""
        if self.position is not None and self.position < len(call.args):
            return call.args[self.position]
        return keyword_of(call, self.parameter)


def name_of(call: ast.Call) -> str:
    """Name of the function or class that is called."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """Value of a keyword of a call."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


@cache
def forwarders(folder: str) -> dict[str, Forwarder]:
    """Name of each function of a distribution that takes a code -> its parameter."""
    modules = [tree for path, tree in trees().items() if distribution(path) == folder]
    definitions = [node for tree in modules for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    functions: dict[str, Forwarder] = {}
    for _ in range(3):  # a function may call another one that takes a code
        for node in definitions:
            functions.update(forwarder(node, functions))
    return functions


def forwarder(node: ast.FunctionDef, functions: Mapping[str, Forwarder]) -> Iterator[tuple[str, Forwarder]]:
    """The function's name and its parameter for a code, if it has one."""
    arguments = [argument for argument in node.args.args if argument.arg not in ("self", "cls")]
    calls = calls_in(node)
    for each in (*arguments, *node.args.kwonlyargs):
        if each.annotation is None or "str" not in ast.unparse(each.annotation):
            continue
        direct = [name_of(call) for call in calls if is_variable(keyword_of(call, "code"), each.arg)]
        further = [(functions[name], call) for call in calls if (name := name_of(call)) in functions]
        indirect = [function for function, call in further if is_variable(function.argument(call), each.arg)]
        if direct or indirect:
            classes = {*filter(is_class, direct), *(name for other in indirect for name in other.classes)}
            position = arguments.index(each) if each in arguments else None
            yield node.name, Forwarder(position, each.arg, frozenset(classes))


@cache
def calls_in(function: ast.FunctionDef) -> list[ast.Call]:
    """The calls in a function."""
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def is_variable(node: ast.expr | None, name: str) -> bool:
    """Whether an expression is the variable of a name."""
    return isinstance(node, ast.Name) and node.id == name


def is_class(name: str) -> bool:
    return name[:1].isupper()


def codes_of(node: ast.expr | None, scope: ast.AST) -> Iterator[str]:
    """The codes that an expression may give: of a variable, what its function assigns to it."""
    if code := code_of(node):
        yield code
    elif isinstance(node, ast.IfExp):
        yield from (*codes_of(node.body, scope), *codes_of(node.orelse, scope))
    elif isinstance(node, ast.BoolOp):
        yield from (code for value in node.values for code in codes_of(value, scope))
    elif isinstance(node, ast.Name):
        for target, value in assignments(scope):
            is_itself = any(is_variable(each, node.id) for each in ast.walk(value))
            if is_variable(target, node.id) and not isinstance(value, ast.Name) and not is_itself:
                yield from codes_of(value, scope)


def literal_message(node: ast.expr | None, scope: ast.AST) -> str:
    """A message in a call."""
    return text_of(node)


def variable_message(node: ast.expr | None, scope: ast.AST) -> str:
    """The last message that a function assigns to a variable before a call."""
    if not isinstance(node, ast.Name) or not isinstance(scope, ast.FunctionDef):
        return ""
    values = [value for target, value in assignments(scope) if isinstance(target, ast.Name) and target.id == node.id]
    earlier = sorted((value for value in values if value.lineno <= node.lineno), key=lambda value: value.lineno)
    parts = [part for value in earlier for part in branches(value)]
    return next(filter(None, map(text_of, reversed(parts))), "")


def branches(node: ast.expr) -> list[ast.expr]:
    """The values of a conditional expression, and the start of a concatenation."""
    if isinstance(node, ast.IfExp):
        return [*branches(node.orelse), *branches(node.body)]
    return branches(node.left) if isinstance(node, ast.BinOp) else [node]


@cache
def assignments(scope: ast.AST) -> tuple[tuple[ast.expr, ast.expr], ...]:
    """(target, value) of each variable that a function assigns, alone, in a tuple, or as it loops over literals."""
    return tuple(_assignments(scope))


def _assignments(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(scope):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.For, ast.comprehension)):
            pairs = [(node.target, each) for each in getattr(node.iter, "elts", ())]
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(target.elts, value.elts)
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.IfExp):
                for branch in (value.body, value.orelse):
                    yield from zip(target.elts, getattr(branch, "elts", ()))
            else:
                yield target, value


def defaults(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """(parameter, default) of a function."""
    arguments = function.args
    names = [argument.arg for argument in arguments.args]
    yield from zip(names[len(names) - len(arguments.defaults) :], arguments.defaults)
    yield from ((a.arg, value) for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults) if value is not None)


@cache
def scopes(tree: ast.Module) -> tuple[tuple[ast.AST, ast.AST], ...]:
    """Each call and function of a module, in the order of the text, with the outermost function around it."""
    found = []
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        scope, node = waiting.pop()
        if isinstance(node, (ast.Call, ast.FunctionDef)):
            found.append((scope, node))
        if isinstance(node, ast.FunctionDef) and not isinstance(scope, ast.FunctionDef):
            scope = node
        waiting += [(scope, child) for child in reversed(list(ast.iter_child_nodes(node)))]
    return tuple(found)


def calls(message_of: Callable[[ast.expr | None, ast.AST], str]) -> Iterator[tuple[str, Collection[str], str]]:
    """(code, classes, message) of every call that names its code."""
    for tree in trees().values():
        for scope, node in scopes(tree):
            if isinstance(node, ast.Call):
                stated = node.args[0] if node.args else keyword_of(node, "message") or keyword_of(node, "why")
                classes = [name] if is_class(name := name_of(node)) else []
                message = message_of(stated, scope)
                yield from ((code, classes, message) for code in codes_of(keyword_of(node, "code"), scope))


def forwarded(message_of: Callable[[ast.expr | None, ast.AST], str]) -> Iterator[tuple[str, Collection[str], str]]:
    """(code, classes, message) of every code that reaches an error through a parameter, and of its default."""
    for path, tree in trees().items():
        functions = forwarders(distribution(path))
        for scope, node in scopes(tree):
            if isinstance(node, ast.Call) and (function := functions.get(name_of(node))):
                message = next((text for each in node.args if " " in (text := message_of(each, scope))), "")
                argument = function.argument(node)
                yield from ((code, function.classes, message) for code in codes_of(argument, scope))
            elif isinstance(node, ast.FunctionDef) and (function := functions.get(node.name)):
                values = [value for parameter, value in defaults(node) if parameter == function.parameter]
                yield from ((code, function.classes, "") for value in values for code in codes_of(value, node))


@cache
def table() -> dict[str, tuple[set[str], str]]:
    """Code -> the classes that have it, and the first message."""
    codes: dict[str, tuple[set[str], str]] = {}
    readers = (literal_message, variable_message)
    for code, classes, message in chain.from_iterable((*calls(read), *forwarded(read)) for read in readers):
        names, example = codes.setdefault(code, (set(), ""))
        names.update(classes)
        if any(map(str.isalpha, message)) and not example:
            codes[code] = names, message
    for code, message in EXAMPLES.items():
        codes[code] = codes[code][0], codes[code][1] or message
    return dict(sorted(codes.items()))


def documented() -> dict[str, dict[str, Any]]:
    """Code -> cause, cure, example and classes, as `errors.json` should have it."""
    written = json.loads(TABLE.read_text("utf-8"))
    return {
        code: {
            **{key: written.get(code, {}).get(key, "") for key in ("cause", "cure")},
            "example": example.replace("\n", " "),
            "raised": sorted(names),
        }
        for code, (names, example) in table().items()
    }


def table_text() -> str:
    """`errors.json` as it should be, one code a line."""
    rows = (f" {json.dumps(code)}: {json.dumps(row)}" for code, row in documented().items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def page() -> str:
    """The page as it should be."""
    rows = []
    for code, row in documented().items():
        raised = ", ".join(f"`{name}`" for name in row["raised"])
        cells = (f"`{code}`", *(row[key].replace("|", "\\|") for key in ("cause", "cure", "example")), raised)
        rows.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    TABLE.write_text(table_text(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
