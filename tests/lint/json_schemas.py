"""The keys and types of each document of `--json`, as they were published (`python tests/lint/json_schemas.py`).

A shape is a schema without descriptions and references: `{"size": "integer"}`, `["string"]` for arrays, `{"*": ...}`
for objects with any keys, `{"any": [...]}` for alternatives.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squish_cli.schema import schemas

PUBLISHED = Path(__file__).with_name("schemas.json")


def shapes() -> dict[str, Any]:
    """Return the shape of each document, by the name of its schema."""
    return {schema["title"]: shape(schema, schema.get("$defs", {})) for schema in schemas().values()}


def shape(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return the shape of a schema."""
    if "$ref" in schema:
        return shape(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return {"any": [shape(each, definitions) for each in schema["anyOf"]]}
    if "const" in schema or "enum" in schema:
        return {"one of": schema.get("enum", [schema.get("const")])}
    if "properties" in schema:
        assert schema["required"] == list(schema["properties"])
        assert schema["additionalProperties"] is False
        return {name: shape(each, definitions) for name, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [shape(each, definitions) for each in schema.get("prefixItems", [schema["items"]])]
    if schema.get("type") == "object":
        return {"*": shape(schema["additionalProperties"], definitions)}
    types = schema.get("type", "anything")
    return types if isinstance(types, str) else " or ".join(types)


def published() -> dict[str, Any]:
    """Return the shapes that were published."""
    shapes_by_name: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return shapes_by_name


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the schemas that changed without a new number; the order of keys counts."""
    return [name for name in new if name in old and json.dumps(old[name]) != json.dumps(new[name])]


def main() -> int:
    """Publish new schemas; refuse to change published ones."""
    old, new = published() if PUBLISHED.exists() else {}, shapes()
    if names := changed(old, new):
        print(f"{', '.join(names)}: a published schema does not change; give it the next number", file=sys.stderr)
        return 1
    PUBLISHED.write_text(json.dumps({**old, **new}, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
