"""The content digest of v2: what a model is, whatever its offsets, alignment, encoding and shards (wires 6.7)."""

from __future__ import annotations

from typing import Any

from squish_core.api import Digest, FormatError, Limits, Source

from ..v1.manifest import read_manifest
from ..wire import locate
from . import deterministic


def content_digest(source: Source, limits: Limits | None = None, *, algorithm: str = "sha256") -> str:
    """`<algorithm>:<hex>` of the parts' digests, shapes, layouts and attributes of a v2 file.

    Two files have the same one only if they say the same with digests of the same kinds. Reads the manifest only.
    Raises FormatError for another wire and where a part has no digest.
    """
    limits = limits or Limits()
    location = locate(source, limits)
    if location.wire != "2":
        raise FormatError(
            "only zTensor v2 has a content digest", file=source.name, code="version",
            hint="Convert it: `squish convert OLD NEW --to ztensor:wire=2`.",
        )  # fmt: skip
    read_manifest(source, limits)  # rejects a damaged file
    root = (
        deterministic.decode(source.read(location.offset, location.length), location.offset, limits)
        if location.length
        else {}
    )
    objects = {name: _object(name, record, source) for name, record in root.get("objects", {}).items()}
    digest = Digest(algorithm)
    digest.update(deterministic.encode(["zt.content/1", objects]))
    return str(digest)


def _object(name: str, record: dict[str, Any], source: Source) -> dict[str, Any]:
    parts = {}
    for role, part in record["parts"].items():
        if "digest" not in part:
            raise FormatError(
                "has no digest, so the file has no content digest", file=source.name, tensor=name, part=role
            )
        parts[role] = {key: part[key] for key in ("dtype", "type", "digest") if key in part}
    kept: dict[str, Any] = {key: record[key] for key in ("shape", "layout", "attributes") if key in record}
    return {**kept, "parts": parts}
