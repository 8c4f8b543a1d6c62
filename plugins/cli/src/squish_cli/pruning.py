"""The parts of the example plugin that one kind of plugin needs: declarations, tests and imports without the others.

Apart from `scaffold`, because it knows Python's syntax and nothing of names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

Lines = tuple[int, int]
"""First and last line of a piece of source, counted from 1."""


def pruned(files: Mapping[str, str], modules: Sequence[str]) -> dict[str, str]:
    """Path -> text of the files that a plugin with these modules has.

    Parameters
    ----------
    files
        The example: a module of declarations, modules with implementations, and a module of tests.
    modules
        Names of the modules with implementations that are kept.
    """
    declared = next(path for path in files if path.endswith("__init__.py"))
    others = without_declarations(files[declared], modules)
    removed = identifiers(files[declared]) - identifiers(others)
    kept = {}
    for path, text in files.items():
        folder, _, name = path.rpartition("/")
        is_module = path.endswith(".py") and folder == declared.rpartition("/")[0] and path != declared
        if not is_module or name.removesuffix(".py") in modules:
            kept[path] = without_tests(text, removed) if path.startswith("tests/") else text
    return {**kept, declared: others}


def identifiers(text: str) -> set[str]:
    """The ids that a module declares."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {
        str(word.value.value)
        for call in calls
        for word in call.keywords
        if word.arg == "id" and isinstance(word.value, ast.Constant)
    }


def without_declarations(text: str, modules: Collection[str]) -> str:
    """A module of hooks that declares only what is in these modules."""
    removed: list[Lines] = []
    for hook in ast.parse(text).body:
        if not isinstance(hook, ast.FunctionDef):
            continue
        returned = hook.body[-1]
        assert isinstance(returned, ast.Return)
        assert isinstance(returned.value, ast.List)
        others = [each for each in returned.value.elts if _module(each) not in modules]
        if len(others) == len(returned.value.elts):
            removed.append(_place(hook))
        else:
            removed += map(_place, others)
    return without_unused(without(text, removed))


def without_tests(text: str, removed: Set[str]) -> str:
    """A module of tests without the classes that name one of these ids."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return without_unused(without(text, [_place(each) for each in classes if removed & _texts(each)]))


def without_unused(text: str) -> str:
    """A module without the functions, constants and imports that nothing in it uses any more."""
    while True:
        body = ast.parse(text).body
        used = [{*_names(node)} for node in body]
        unused = list[tuple[Lines, str]]()
        for number, node in enumerate(body):
            elsewhere = set[str]().union(*used[:number], *used[number + 1 :])
            if isinstance(node, ast.Import | ast.ImportFrom):
                unused += _unused_imports(node, elsewhere)
            elif _is_private(node) and elsewhere.isdisjoint(_defined(node)):
                unused.append((_place(node), ""))
        if not unused:
            return text
        for (first, last), line in reversed(unused):
            text = without(text, [(first, last)], line)


def without(text: str, places: Sequence[Lines], instead: str = "") -> str:
    """A text without some of its lines, with a line in the place of the first, and at most two empty ones together."""
    lines = text.splitlines()
    for first, last in sorted(places, reverse=True):
        lines[first - 1 : last] = [instead] if instead else []
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).rstrip()) + "\n"
    return re.sub(r"\n{3,}(?=from |import )", "\n\n", text)


def _unused_imports(node: ast.Import | ast.ImportFrom, used: Collection[str]) -> Iterator[tuple[Lines, str]]:
    """The place of an import that is not needed, or only in part, and what takes its place."""
    names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return
    if len(names) < len(node.names):
        node.names = names
        yield _place(node), ast.unparse(node) if names else ""


def _is_private(node: ast.stmt) -> bool:
    """Whether a definition is there for the others: pytest and pluggy use tests and hooks."""
    return isinstance(node, ast.Assign) or (isinstance(node, ast.FunctionDef) and not node.decorator_list)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    assert isinstance(node, ast.Assign)
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))


def _texts(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _module(declaration: ast.expr) -> str:
    """The module of the factory "package.module:Class" of a declaration."""
    assert isinstance(declaration, ast.Call)
    factory = next(word.value for word in declaration.keywords if word.arg == "factory")
    assert isinstance(factory, ast.Constant)
    return str(factory.value).partition(":")[0].rpartition(".")[2]


def _place(node: ast.stmt | ast.expr) -> Lines:
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(each.lineno for each in decorators)]), node.end_lineno or node.lineno
