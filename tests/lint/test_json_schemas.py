"""The documents of `--json` do not change without a new number of their schema, and follow the rules of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from json_schemas import changed, published, shapes
from jsonschema import Draft202012Validator
from squish_cli.schema import schemas

OTHER_NAMES = {
    "nbytes",
    "bytes",
    "size_bytes",
    "num_bytes",
    "bits_per_weight",
    "bpw",
    "path",
    "filename",
    "model",
    "output",
    "dist",
    "distribution",
    "container",
    "installed",
}
"""Names of what `size`, `bits`, `file`, `target`, `package`, `format` and the names of lists already stand for."""


def test_a_schema_changes_only_with_a_new_number() -> None:
    assert changed(published(), shapes()) == []
    assert set(shapes()) - set(published()) == set(), "run `python tests/lint/json_schemas.py`"


@pytest.mark.parametrize(
    "change",
    [
        lambda shape: shape.pop("file"),
        lambda shape: shape.update(more="string"),
        lambda shape: shape.update(file="integer"),
        lambda shape: shape.update(format=shape.pop("format")),
    ],
)
def test_a_change_is_noticed(change: Any) -> None:
    new = shapes()
    change(new["squish/ls/1"])
    assert changed(published(), new) == ["squish/ls/1"]


def names_in(shape: Any) -> Iterator[str]:
    if isinstance(shape, list):
        for each in shape:
            yield from names_in(each)
    if isinstance(shape, dict) and "one of" not in shape:
        for name, each in shape.items():
            yield name
            yield from names_in(each)


@pytest.mark.parametrize("name", sorted(schemas()))
def test_a_schema_is_valid_and_has_one_name_for_each_thing(name: str) -> None:
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["title"].startswith(f"squish/{name}/")
    assert OTHER_NAMES.isdisjoint(names_in(shapes()[schema["title"]]))
    for form in schema.get("anyOf", [schema]):
        assert next(iter(form["properties"])) == "schema"
