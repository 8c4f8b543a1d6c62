"""docs/reference.md, made from the docstrings: `python tests/lint/api_reference.py` writes the page."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import squish_core as squish

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
HEAD = """# Reference

What a program calls, and below it what a plugin imports. The page is made from the docstrings by
`python tests/lint/api_reference.py`, and a test compares the two; `help(squish.open)` adds examples.

```python
import squish_core as squish
```
"""
INTERFACES = {
    "squish_core.api": "The plugin interface. `docs/writing-a-plugin.md` explains how these work together.",
    "squish_convert.api": "For families, jobs and servers of converted files; in squish-convert.",
    "squish_cli.api": "For commands of plugins; in squish-core-cli.",
}
"""Module that plugins import -> what it is for."""


def sections(value: Any) -> dict[str, str]:
    """Title -> text of each section of a docstring; the summary is under ""."""
    pieces = re.split(r"^([A-Z]\w+)\n-{3,}\n", inspect.cleandoc(value.__doc__ or ""), flags=re.MULTILINE)
    return {"": pieces[0].strip(), **dict(zip(pieces[1::2], map(str.strip, pieces[2::2])))}


def first_line(value: Any) -> str:
    """The first paragraph of a docstring in one line, for a cell of a table."""
    return " ".join(sections(value)[""].partition("\n\n")[0].split()).replace("|", "\\|")


def items(text: str) -> Iterator[tuple[str, str]]:
    """(name, explanation) of a section of parameters, results or errors."""
    for name, explanation in re.findall(r"^(\S.*)\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE):
        yield name, " ".join(explanation.split()).replace("|", "\\|")


def call(name: str, function: Any) -> str:
    """A call as it is written, with the default of each argument."""
    names, is_keyword_only = [], False
    for argument in inspect.signature(function).parameters.values():
        if argument.name in ("self", "cls"):
            continue
        if argument.kind is argument.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(each.startswith("*") for each in names):
                names.append("*")
        stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
        is_keyword_only = is_keyword_only or stars == "*"
        default = "" if argument.default is argument.empty else f"={_shown(argument.default)}"
        names.append(f"{stars}{argument.name}{default}")
    return f"{name}({', '.join(names)})"


def _shown(default: Any) -> str:
    return repr(default) if isinstance(default, (str, int, float, tuple, type(None))) else "..."


def function_text(name: str) -> str:
    """The entry of a function."""
    function = getattr(squish, name)
    parts = sections(function)
    lines = [f"\n### `{call(name, function)}`\n\n{parts['']}\n"]
    if rows := list(items(parts.get("Parameters", ""))):
        lines.append("\n| argument | |\n|---|---|\n" + "".join(f"| `{arg}` | {text} |\n" for arg, text in rows))
    for title in ("Returns", "Yields", "Raises"):
        lines += [f"\n{title}: `{kind}`: {text}\n" for kind, text in items(parts.get(title, ""))]
    return "".join(lines)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, the class's own first."""
    seen = set()
    for base in owner.__mro__:
        if not base.__module__.startswith(("squish_core", "squish_convert", "squish_cli")):
            continue
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            is_member = inspect.isfunction(function) or isinstance(value, (property, cached_property))
            if name.startswith("_") or name in seen or not is_member or not function.__doc__:
                continue
            seen.add(name)
            yield name, function


def class_text(name: str) -> str:
    """The entry of a class."""
    owner = getattr(squish, name)
    parts = sections(owner)
    fields = [*items(parts.get("Attributes", "")), *items(parts.get("Parameters", ""))]
    rows = [(f"`{field}`", text) for field, text in fields]
    rows += [
        (f"`{call(member, value) if inspect.isfunction(value) else member}`", first_line(value))
        for member, value in members(owner)
    ]
    table = "".join(f"| {member} | {text} |\n" for member, text in rows)
    return f"\n### `{name}`\n\n{parts['']}\n" + (f"\n| member | |\n|---|---|\n{table}" if rows else "")


def error_rows() -> Iterator[str]:
    """One row for each exception."""
    for name in squish.__all__:
        value = getattr(squish, name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
            yield f"| `{name}` | {bases} | {first_line(value)} |\n"


def _what(api: Any, name: str) -> str:
    """One line on a name of an interface: its docstring, or the text below a constant or an alias."""
    value = inspect.unwrap(getattr(api, name))
    home = next(module for module, names in api._NAMES.items() if name in names)
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
        return first_line(value)
    body = ast.parse(inspect.getsource(importlib.import_module(home))).body
    for node, text in itertools.pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {each.id for target in targets for each in ast.walk(target or node) if isinstance(each, ast.Name)}
        if name in names and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            return " ".join(str(text.value.value).split()).replace("|", "\\|")
    return ""


def interface_text(module: str) -> str:
    """The names of an interface that are not public ones, too."""
    api = importlib.import_module(module)
    names = sorted(set(api.__all__) - set(squish.__all__))
    rows = "".join(f"| `{name}` | {_what(api, name)} |\n" for name in names)
    return f"\n## `{module}`\n\n{INTERFACES[module]}\n\n| name | what it is |\n|---|---|\n{rows}"


def page() -> str:
    """The page as it should be."""
    values = {name: getattr(squish, name) for name in squish.__all__ if name != "__version__"}
    functions = [name for name, value in values.items() if inspect.isfunction(value)]
    classes = [name for name, value in values.items() if inspect.isclass(value)]
    classes = [name for name in classes if not issubclass(values[name], BaseException)]
    return "".join(
        [
            HEAD,
            "\n## Functions\n",
            *map(function_text, functions),
            "\n## Classes\n",
            *map(class_text, classes),
            "\n## Errors\n\nTheir codes: `docs/errors.md`.\n\n| class | is also | raised when |\n|---|---|---|\n",
            *error_rows(),
            *map(interface_text, INTERFACES),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
