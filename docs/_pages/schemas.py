"""JSON Schemas of what commands print with `--json`, from the classes of the documents (`squish schema`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import table

RULES = Path(__file__).parents[1] / "json.md"
HEAD = """# JSON Schemas

Every command prints one JSON document with `--json`, errors included. `squish schema COMMAND` prints its schema.
"""
STABLE = """[What is stable](../json.md) has the rules that they follow.

```{toctree}
:hidden:

../json
```
"""


def type_text(schema: Mapping[str, Any]) -> str:
    """A type in words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(map(type_text, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kinds = schema.get("type", "anything")
    if kinds == "array" and schema.get("items"):
        return f"list of {type_text(schema['items'])}"
    if kinds == "object" and schema.get("additionalProperties"):
        return f"object of {type_text(schema['additionalProperties'])}"
    return " or ".join(kinds) if isinstance(kinds, list) else kinds


def keys(schema: Mapping[str, Any]) -> str:
    """The keys of an object as a table; without a column of descriptions where it would be empty."""
    rows = [(f"`{key}`", type_text(each), each.get("description", "")) for key, each in schema["properties"].items()]
    columns = 3 if any(text for *_, text in rows) else 2
    return table(("key", "type", "")[:columns], [row[:columns] for row in rows])


def section(name: str, schema: Mapping[str, Any]) -> str:
    """The keys of a document as a table, and its schema, folded."""
    parts = [f"\n## {name}\n"]
    parts += [f"\n{form.get('description', '')}\n\n{keys(form)}" for form in schema.get("anyOf", [schema])]
    for title, form in schema.get("$defs", {}).items():
        parts.append(f"\n`{title}`: {form.get('description', '')}\n\n{keys(form)}")
    parts.append(f"\n````{{dropdown}} {schema['title']}\n```json\n{json.dumps(schema, indent=1)}\n```\n````\n")
    return "".join(parts)


def pages() -> Iterator[tuple[str, str]]:
    """The page; without sections where this squish-core-cli has no `squish schema`."""
    found = import_module("squish_cli.schema").schemas() if find_spec("squish_cli.schema") else {}
    head = HEAD + (f"\n{STABLE}" if RULES.exists() else "")
    yield "schemas.md", head + "".join(section(name, schema) for name, schema in found.items())
