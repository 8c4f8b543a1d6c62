"""What reading any wire's manifest gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from squish_core.api import DenseFields, ErrorCode, FileRef, FormatError, Problem, TensorSpec, check_digest

from .v1 import cbor

METADATA = "__metadata__"
Extent = tuple[int, int, int, str]
Record = dict[str, Any]


def same(record: Record) -> Record:
    """A record of 1.1 is the record."""
    return record


@frozen(kw_only=True)
class Manifest:
    """A checked manifest; `offset` is where it starts, `records` (object maps, or `DenseFields`) are in the order of
    their data in the file.

    `build` turns an object map into a tensor, `as_first` gives a record as 1.1 writes it; `files` are the file itself
    and the shards that its parts refer to.
    """

    offset: int
    version: str
    attributes: dict[str, Any]
    records: Mapping[str, Any]
    extents: list[Extent]
    files: tuple[FileRef, ...]
    build: Callable[[str, Any], DenseFields | TensorSpec] | None = None
    as_first: Callable[[Any], Record] = same
    problems: list[Problem] = field(factory=list)


def attributes_of(owner: Record, name: str | None, offset: int) -> dict[str, Any]:
    """The `attributes` of the root or an object; FormatError when they are not a map with text keys."""
    attributes = owner.get("attributes")
    if attributes is None:
        return {}
    if type(attributes) is not dict or not all(type(key) is str for key in attributes):
        raise FormatError(
            "the attributes are not a map with text keys", tensor=name, offset=offset,
            found=type(attributes).__name__, code="schema",
        )  # fmt: skip
    return {key: cbor.plain(value) for key, value in attributes.items()}


def name_problem(name: str) -> Problem | None:
    """The finding for a name that is read, since dropping a tensor is worse, but never written."""
    if not name:
        return warning("name", "", "a tensor has an empty name")
    if name == METADATA:
        return warning("name", name, f"a tensor is called {METADATA!r}, which other formats take for their metadata")
    return None


def warning(code: str, where: str, message: str) -> Problem:
    """A finding that does not stop reading."""
    return Problem(code=code, severity="warning", where=where, message=message)


def digest_problems(digest: str, chunks: Iterable[Any], where: str) -> Iterator[Problem]:
    """A finding if the bytes do not match their digest, or if the digest cannot be checked."""
    verdict = check_digest(digest, chunks)
    if verdict.state == "wrong":
        numbers = f"expected {verdict.expected}, found {verdict.found}"
        yield Problem(
            code=ErrorCode.DIGEST, severity="error", where=where, message=f"the digest does not match ({numbers})"
        )
    elif verdict.state == "unverified":
        message = f"the digest {digest[:40]!r} is of an unknown kind"
        yield Problem(code="unverified", severity="note", where=where, message=message)
