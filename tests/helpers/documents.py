"""Documents that commands print, compared with the schemas that `squish schema` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from squish_cli import output

from squish_core.display import to_json

_print = output.print_document


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of the installed commands, by the documents' `schema`."""
    from squish_cli.schema import schemas

    return {schema["title"]: schema for schema in schemas().values()}


def check(document: Mapping[str, Any]) -> None:
    """Fail unless a document begins with the name of a schema, and fits it."""
    first, name = next(iter(document.items()))
    assert first == "schema"
    if error := best_match(Draft202012Validator(schemas()[name]).iter_errors(document)):
        raise AssertionError(f"{name}: {error.json_path}: {error.message}")


def checked_print(schema: str, data: Mapping[str, Any], *, line: bool = False) -> None:
    """Print a document as the command line does, if it fits its schema; test commands without one have none."""
    document = json.loads(json.dumps({"schema": schema, **to_json(data)}))
    if schema in schemas():
        check(document)
    _print(schema, data, line=line)
