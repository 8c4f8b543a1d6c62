"""Documents that commands print, compared with the schemas that `squish schema` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, wraps
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
    schema = schemas()[name]
    if error := best_match(Draft202012Validator(schema).iter_errors(document)):
        raise AssertionError(f"{name}: {error.json_path}: {error.message}")
    assert in_order(document, schema, schema.get("$defs", {})), f"{name}: the keys are in another order"


def in_order(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Return whether the objects in a value that fits a schema have their keys in its order."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        forms = [each for each in schema["anyOf"] if _fits(value, {**each, "$defs": definitions})]
        return any(in_order(value, each, definitions) for each in forms)
    if isinstance(value, list):
        return all(in_order(each, schema["items"], definitions) for each in value) if schema.get("items") else True
    if not isinstance(value, dict):
        return True
    if "properties" not in schema:
        other = schema.get("additionalProperties", {})
        return all(in_order(each, other, definitions) for each in value.values()) if other else True
    same = list(value) == list(schema["properties"])
    return same and all(in_order(each, schema["properties"][name], definitions) for name, each in value.items())


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


@wraps(_print)  # pages are made from its docstring
def checked_print(schema: str, data: Mapping[str, Any], *, line: bool = False) -> None:
    """Print a document as the command line does, if it fits its schema; test commands without one have none."""
    document = json.loads(json.dumps({"schema": schema, **to_json(data)}))
    if schema in schemas():
        check(document)
    _print(schema, data, line=line)
