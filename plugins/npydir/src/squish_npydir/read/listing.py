"""The list of a directory's files, with sizes and first bytes, so that it opens by URL in few requests.

It is a file of its own, because Squish takes every entry of the manifest for a tensor. Directories on disk are read
without it; `verify` compares it with the files.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from squish_core.api import FormatError, Source, SquishError, check_file_name

from ..features import LISTING

if TYPE_CHECKING:
    from squish_core.api import Statement

_WHAT = f"the start of the file in {LISTING}"


@frozen
class Listed:
    """A file in the list: its size, and its first bytes if opening needs them."""

    size: int
    head: bytes = b""


def dump(files: Mapping[str, Listed]) -> bytes:
    """Return the content of the list: heads, which files share, and for each file its size and its head's number."""
    heads = {head: number for number, head in enumerate(dict.fromkeys(file.head for file in files.values()))}
    places = {path: [file.size, heads[file.head]] for path, file in files.items()}
    return json.dumps({"heads": [b64encode(head).decode() for head in heads], "files": places}).encode()


def parse(root: Mapping[str, Any]) -> dict[str, Listed]:
    """Return path -> file; FormatError if the list is invalid."""
    heads, files = root.get("heads"), root.get("files")
    if not isinstance(heads, list) or not isinstance(files, dict):
        raise _invalid("heads and files", ", ".join(root))
    try:
        decoded = [b64decode(head, validate=True) for head in heads]
    except (ValueError, TypeError):
        raise _invalid("heads in base64", "other text") from None
    listed = {}
    for path, item in files.items():
        if path.count("/") > 1:
            raise _invalid("files in the folder or in its folders", repr(path))
        for piece in path.split("/"):
            check_file_name(piece, LISTING)
        if not (
            isinstance(item, list)
            and len(item) == 2
            and all(type(number) is int and number >= 0 for number in item)
            and item[1] < len(decoded)
        ):
            raise _invalid("[size, number of its head] for each file", repr(item))
        listed[path] = Listed(item[0], decoded[item[1]])
    return listed


def statements(files: Mapping[str, Listed]) -> Iterator[Statement]:
    """Return the statements that a remote source compares before it reads a file."""
    from squish_core.api import Statement

    for path, file in files.items():
        if file.head:
            content = ((0, file.head),)
            yield Statement(start=0, stop=max(file.size, 1), content=content, what=_WHAT, code="files", path=path)


def contradictions(files: Mapping[str, Listed], source: Source, present: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield how the list differs from the folder: (path, fault). `present`: the arrays in the folder."""
    for path, file in files.items():
        try:
            size, head = source.first(path, len(file.head))
        except SquishError as error:
            yield path, f"is in {LISTING}, but cannot be read: {error.message}"
            continue
        if size != file.size:
            yield path, f"has {size} bytes, but {file.size} in {LISTING}"
        elif head != file.head:
            yield path, f"does not begin as {LISTING} states"
    for path in sorted(present - files.keys()):
        yield path, f"is not in {LISTING}, so readers of a URL do not see it"


def _invalid(expected: str, found: str) -> FormatError:
    return FormatError(
        "invalid list of files",
        file=LISTING,
        expected=expected,
        found=found[:80],
        code="files",
        hint="Remove it, or convert the directory again.",
    )
