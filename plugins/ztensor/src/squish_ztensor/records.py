"""A checked manifest of any version, and findings about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from squish_core.api import DenseFields, ErrorCode, FileRef, FormatError, Problem, TensorSpec, check_digest

from .v1 import cbor

METADATA = "__metadata__"
Extent = tuple[int, int, int, str]
Record = dict[str, Any]


def unchanged(record: Record) -> Record:
    """Return a record of 1.1 unchanged."""
    return record


@frozen(kw_only=True)
class Manifest:
    """A checked manifest.

    `offset`: its start. `records`: object maps or `DenseFields`, in the order of their data. `build` converts an object
    map to a tensor, `as_v1` a record to its form in 1.1. `files`: the file and the shards that its parts refer to.
    """

    offset: int
    version: str
    attributes: dict[str, Any]
    records: Mapping[str, Any]
    extents: list[Extent]
    files: tuple[FileRef, ...]
    build: Callable[[str, Any], DenseFields | TensorSpec] | None = None
    as_v1: Callable[[Any], Record] = unchanged
    problems: list[Problem] = field(factory=list)


def attributes_of(owner: Record, name: str | None, offset: int) -> dict[str, Any]:
    """Return the `attributes` of the root or an object; FormatError unless they are a map with text keys."""
    attributes = owner.get("attributes")
    if attributes is None:
        return {}
    if type(attributes) is not dict or not all(type(key) is str for key in attributes):
        raise FormatError(
            "attributes must be a map with text keys",
            tensor=name,
            offset=offset,
            found="another key" if type(attributes) is dict else type(attributes).__name__,
            code="schema",
        )
    return {key: cbor.native(value) for key, value in attributes.items()}


def name_problem(name: str) -> Problem | None:
    """Return the finding for a name that is read but never written."""
    if not name:
        return warning("name", "", "empty tensor name")
    if name == METADATA:
        return warning("name", name, f"the tensor name {METADATA!r} is reserved for metadata in other formats")
    return None


def warning(code: str, where: str, message: str) -> Problem:
    """Return a finding that does not prevent reading."""
    return Problem(code=code, severity="warning", where=where, message=message)


def digest_problems(digest: str, chunks: Iterable[Any], where: str) -> Iterator[Problem]:
    """Yield a finding if the bytes do not match their digest, or if it cannot be checked."""
    verdict = check_digest(digest, chunks)
    if verdict.state == "wrong":
        numbers = f"expected {verdict.expected}, found {verdict.found}"
        yield Problem(code=ErrorCode.DIGEST, severity="error", where=where, message=f"digest mismatch ({numbers})")
    elif verdict.state == "unverified":
        message = f"not checked: unknown kind of digest {digest[:40]!r}"
        yield Problem(code="unverified", severity="note", where=where, message=message)
