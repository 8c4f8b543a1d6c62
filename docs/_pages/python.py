"""The Python interface, with types and examples, from the docstrings that also make docs/reference.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import api_reference

import squish_core as squish

from . import table

HEAD = """# Python

What a program calls, from the docstrings; every example is run as a test. [The short form](../reference.md) is one
table for each name, and lists what plugins import, too.

```python
import squish_core as squish
```
"""


def cells(rows: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    """(name, text) as cells; the section's text already escapes `|`."""
    return [(f"`{name}`", text.replace("\\|", "|")) for name, text in rows]


def entry(name: str, value: Any, level: str, called: bool) -> str:
    """Heading, text, tables and examples of a function, class or method."""
    parts = api_reference.sections(value)
    text = [f"\n{level} {name}\n"]
    if called:
        text.append(f"\n```python\n{api_reference.call(name, value)}\n```\n")
    text.append(f"\n{parts['']}\n")
    for title in ("Parameters", "Attributes", "Returns", "Yields", "Raises"):
        if rows := list(api_reference.items(parts.get(title, ""))):
            text.append(f"\n{title}:\n\n" + table(("", ""), cells(rows)))
    if examples := parts.get("Examples"):
        text.append(f"\n```pycon\n{examples}\n```\n")
    return "".join(text)


def class_entry(name: str, owner: type) -> str:
    """The entry of a class, with a table of its members and the examples of each."""
    members = list(api_reference.members(owner))
    rows = [
        (api_reference.call(member, value) if inspect.isfunction(value) else member, api_reference.first_line(value))
        for member, value in members
    ]
    parts = api_reference.sections(owner)
    parts.pop("Examples", None)
    listing = f"\n{table(('member', ''), cells(rows))}" if rows else ""
    return entry(name, owner, "###", called=False) + listing


def pages() -> Iterator[tuple[str, str]]:
    """The page."""
    face: Any = squish  # whose stub has no list of the names
    values = {name: getattr(face, name) for name in face.__all__ if name != "__version__"}
    functions = {name: value for name, value in values.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in values.items() if inspect.isclass(value)}
    errors = {name: value for name, value in classes.items() if issubclass(value, BaseException)}
    rows = [(name, api_reference.first_line(value)) for name, value in errors.items()]
    yield (
        "python.md",
        HEAD
        + "\n## Functions\n"
        + "".join(entry(name, value, "###", called=True) for name, value in functions.items())
        + "\n## Classes\n"
        + "".join(class_entry(name, value) for name, value in classes.items() if name not in errors)
        + "\n## Errors\n\n[Error codes](../errors.md) has their codes.\n\n"
        + table(("class", "raised when"), cells(rows)),
    )
