"""`squish schema`: JSON Schema (2020-12) of what `--json` prints, from the classes that describe the documents."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import import_module
from inspect import cleandoc
from json import dumps
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.text import did_you_mean

from .options import App
from .output import ERROR, PIECE, PROGRESS, TASK, Answer

DIALECT = "https://json-schema.org/draft/2020-12/schema"
EVENTS = {
    "error": (ERROR, "Error"),
    "progress": (PROGRESS, "Progress"),
    "task": (TASK, "Task"),
    "text": (PIECE, "Text"),
}
"""Documents that are not results of commands: name -> schema, and class in `documents.py`."""
DOCUMENTS = "squish_cli.documents"
SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    float: {"type": ["number", "null"]},  # NaN and infinities are null
    Any: {},
}
_FIELD = re.compile(r"^(\w[\w, ]*)\n((?:    .*\n?)+)", re.MULTILINE)


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command, such as `cache list`; or error, progress, task, text."),
    ] = None,
) -> Answer:
    """Print the JSON Schema of what a command prints with --json.

    Without COMMAND, prints an object with all schemas by name. A schema never changes: another shape has another
    number.
    """
    if not command:
        table = schemas()
        return Answer({"schemas": table}, dumps(table, indent=1).split("\n"), verbatim=True)
    documents, name = _documents(command), "-".join(command)
    if name not in documents:
        raise UsageError(
            "no such schema",
            found=repr(name),
            code=ErrorCode.USAGE,
            hint=did_you_mean(name, documents) or "`squish schema` prints all of them.",
        )
    found = document_schema(*documents[name])
    return Answer({"schemas": {name: found}}, dumps(found, indent=1).split("\n"), verbatim=True)


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each document, by the name in the middle of its `schema`.

    Returns
    -------
    dict
        JSON Schema of the commands that are installed, in alphabetical order, then of errors and progress.

    Examples
    --------
    >>> schemas()["ls"]["properties"]["schema"]
    {'const': 'squish/ls/1'}
    """
    return {name: document_schema(*entry) for name, entry in _documents(()).items()}


def _documents(command: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return schema and class of each document, at least of those of a command; raises if that is not installed."""
    from . import cache, config
    from .app import build

    table = dict[str, tuple[str, str]]()
    apps = [build(command)]
    apps += [group.typer_instance for group in apps[0].registered_groups if isinstance(group.typer_instance, App)]
    for app in apps:
        for name, (number, document) in app.schemas.items():
            if document:
                table[name] = f"squish/{name}/{number}", document
    table["cache"] = cache.SCHEMA, f"{DOCUMENTS}:CacheList"
    table["config"] = config.SCHEMA, f"{DOCUMENTS}:ConfigList"
    events = {name: (schema, f"{DOCUMENTS}:{kind}") for name, (schema, kind) in EVENTS.items()}
    return {**dict(sorted(table.items())), **events}


def document_schema(schema: str, document: str) -> dict[str, Any]:
    """Return the schema of a document, whose first key names it.

    Parameters
    ----------
    schema
        The value of that key, such as "squish/ls/1".
    document
        "module:Class"; a union of classes if the document has several forms.
    """
    module, _, name = document.partition(":")
    kind = getattr(import_module(module), name)
    kinds = get_args(kind) or (kind,)
    builder = _Builder()
    forms = [builder.described(each) for each in kinds]
    for form in forms:
        form["properties"] = {"schema": {"const": schema}, **form["properties"]}
        form["required"].insert(0, "schema")
    body = forms[0] if len(forms) == 1 else {"anyOf": forms}
    definitions = {"$defs": dict(sorted(builder.definitions.items()))} if builder.definitions else {}
    return {"$schema": DIALECT, "title": schema, **body, **definitions}


class _Builder:
    """Builds schemas of types; classes other than a document's own are `definitions`."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}

    def described(self, kind: type) -> dict[str, Any]:
        """An object with all fields of an attrs class, or of a named tuple; nothing else is allowed."""
        hints, texts = get_type_hints(kind), _field_texts(kind)
        names = [each.name for each in attrs.fields(kind)] if attrs.has(kind) else list(kind._fields)  # type: ignore[attr-defined]
        properties = {}
        for name in names:
            text = {"description": texts[name]} if name in texts else {}
            properties[name] = {**self.of(hints[name]), **text}
        summary = cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        return {
            "description": summary,
            "type": "object",
            "properties": properties,
            "required": names,
            "additionalProperties": False,
        }

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        if kind in SIMPLE:
            return dict(SIMPLE[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return self._any(arguments)
        if origin is tuple and arguments[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.of(each) for each in arguments], "items": False}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [each.value for each in kind]}
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}  # a class may contain itself
            self.definitions[kind.__name__] = self.described(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _any(self, kinds: Sequence[Any]) -> dict[str, Any]:
        """One of several types; of simple ones, a list of their names."""
        options = [self.of(each) for each in kinds]
        if all(option.keys() == {"type"} for option in options):
            listed = [each for option in options for each in _as_list(option["type"])]
            return {"type": list(dict.fromkeys(listed))}
        return {"anyOf": options}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _field_texts(kind: type) -> dict[str, str]:
    """Return the descriptions of fields in a docstring's section "Attributes"."""
    section = cleandoc(kind.__doc__ or "").partition("Attributes\n----------\n")[2]
    return {
        name: " ".join(match[2].split())
        for match in _FIELD.finditer(section)
        for name in match[1].replace(" ", "").split(",")
    }
