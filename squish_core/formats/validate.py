"""Structural checks shared by all formats: names, shapes, byte ranges. Python integers only, no allocation."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from squish_core.dtypes import count
from squish_core.errors import FormatError, LimitError, Problem, TruncatedError
from squish_core.limits import Limits
from squish_core.model import FileRef, Index, LazyTensors, TensorSpec

Extent = tuple[int, int, int, str]
"""(file, offset, length, name)"""
_ELEMENTS = 1 << 58
"""Slightly below the number of 16-byte elements that can be addressed."""
_DAMAGED = "The file is damaged, or the program that wrote it has a bug; fetch it or write it again."


def check_name(name: Any, limits: Limits, *, offset: int | None = None) -> str:
    """Check a tensor name: non-empty text without NUL, at most `limits.name` bytes of UTF-8.

    Parameters
    ----------
    name
        The name in the file, of any type.
    limits
        Limits to check.
    offset
        Where the name begins, in bytes, for errors.

    Returns
    -------
    str
        The name.

    Raises
    ------
    FormatError
        It is not a name; LimitError if it is too long (code `name`).

    Examples
    --------
    >>> check_name("layers.0.weight", squish.Limits())
    'layers.0.weight'
    """
    if not isinstance(name, str):
        found = type(name).__name__
        raise FormatError(
            "a tensor name is not text", offset=offset, expected="text", found=found, code="name", hint=_DAMAGED
        )
    if not name or "\0" in name:
        raise FormatError(
            "a tensor name contains NUL" if name else "a tensor name is empty",
            tensor=name or None,
            offset=offset,
            expected="text without NUL",
            found=f"NUL as character {name.index(chr(0))}" if name else "no characters",
            code="name",
            hint=_DAMAGED,
        )
    if len(name) * 4 > limits.name and len(name.encode("utf-8", "surrogatepass")) > limits.name:
        expected = f"at most {limits.name} bytes"
        found = f"{len(name.encode('utf-8', 'surrogatepass'))} bytes"
        raise LimitError(
            "a tensor name is too long", offset=offset, expected=expected, found=found, code="name", limit="name"
        )
    return name


def lookalike_names(names: Iterable[str]) -> list[Problem]:
    """Warnings for names that differ only in Unicode composition."""
    names_by_form: dict[str, str] = {}
    problems = []
    for name in names:
        if not name.isascii():
            other = names_by_form.setdefault(unicodedata.normalize("NFC", name), name)
            if other != name:
                message = f"differs from {other!a} only in Unicode composition; other programs may mix them up"
                problems.append(Problem(code="name", severity="warning", where=name, message=message))
    return problems


def check_shape(shape: Any, limits: Limits, *, tensor: str, offset: int | None = None) -> tuple[int, ...]:
    """Check a shape: a list of non-negative integers, rank at most `limits.rank`.

    Parameters
    ----------
    shape
        The shape in the file, of any type.
    limits
        Limits to check.
    tensor
        Name of the tensor, for errors.
    offset
        Where the shape begins, in bytes, for errors.

    Returns
    -------
    tuple of int
        The shape.

    Raises
    ------
    FormatError
        It is not a shape; LimitError if it has too many dimensions or elements (code `shape`).

    Examples
    --------
    >>> check_shape([4, 32], squish.Limits(), tensor="w")
    (4, 32)
    """
    place: dict[str, Any] = {"tensor": tensor, "offset": offset}
    if not isinstance(shape, (list, tuple)):
        found = type(shape).__name__
        raise FormatError(
            "the shape is not a list", expected="a list of integers", found=found, code="shape", hint=_DAMAGED, **place
        )
    for size in shape:
        if type(size) is not int or size < 0:
            expected = "an integer, 0 or more"
            raise FormatError(
                "invalid dimension", expected=expected, found=repr(size), code="shape", hint=_DAMAGED, **place
            )
    if len(shape) > limits.rank:
        expected = f"at most {limits.rank}"
        raise LimitError(
            "too many dimensions", expected=expected, found=len(shape), code="shape", limit="rank", **place
        )
    # Another axis of size 0 makes the byte count 0, but no array can have an axis this long.
    if count(tuple(size or 1 for size in shape)) >= _ELEMENTS:
        raise LimitError(
            "the shape is larger than any array",
            expected=f"fewer than {_ELEMENTS} elements",
            found=list(shape),
            code="shape",
            hint=_DAMAGED,
            **place,
        )
    return tuple(shape)


def check_extents(
    extents: Sequence[Extent], files: Sequence[FileRef], *, aliases: str = "accept"
) -> tuple[list[Problem], bool]:
    """Check that byte ranges lie inside their files and are pairwise disjoint or identical.

    Parameters
    ----------
    extents
        (number of the file, offset in bytes, length in bytes, tensor name). Empty ranges never overlap.
    files
        The files, with their sizes.
    aliases
        What to do about identical ranges: "accept", "problem" or "error". "views" accepts any overlap.

    Returns
    -------
    problems : list of Problem
        The identical ranges, with `aliases="problem"`.
    contiguous : bool
        Whether the ranges of each file leave no gap, for formats that forbid gaps.

    Raises
    ------
    TruncatedError
        A range ends past the end of its file (code `bounds`).
    FormatError
        Two ranges overlap (code `overlap`).

    Examples
    --------
    >>> check_extents([(0, 0, 8, "a"), (0, 8, 4, "b")], [FileRef("model.bin", 12)])
    ([], True)
    """
    problems: list[Problem] = []
    sizes = {file: files[file].size for file in {extent[0] for extent in extents}}
    for file, offset, length, name in extents:
        if offset + length > sizes[file] or offset < 0 or length < 0:
            raise TruncatedError(
                "the data runs past the end of the file",
                file=files[file].name,
                tensor=name,
                offset=offset,
                expected=f"{length} bytes",
                found=f"a file of {files[file].size} bytes",
                code="bounds",
                hint="The file is truncated (an interrupted download?) or damaged; fetch it again.",
            )
    ranges = sorted(extent for extent in extents if extent[2])
    tiled = True
    for before, after in zip(ranges, ranges[1:]):
        end = before[1] + before[2]
        if before[0] != after[0] or end <= after[1]:
            tiled = tiled and (before[0] != after[0] or end == after[1])
            continue
        if aliases == "views":
            tiled = False
            continue
        same = before[1:3] == after[1:3]
        if same and aliases == "accept":
            continue
        if same and aliases == "problem":
            message = f"shares the bytes at {after[1]} with {before[3]!r}"
            problems.append(Problem(code="alias", severity="warning", where=after[3], message=message))
            continue
        raise FormatError(
            f"the data {'has the same byte range as' if same else 'overlaps'} that of {before[3]!r}",
            file=files[after[0]].name,
            tensor=after[3],
            offset=after[1],
            expected=f"an offset of {end} or more",
            found=after[1],
            code="overlap",
            hint="The file is damaged or malicious; do not trust its tensors.",
        )
    return problems, tiled


def check_index(index: Index, limits: Limits, *, views: bool = False) -> None:
    """Check the Index of any plugin: number of tensors, names, shapes, sizes, bounds.

    `views`: the container declares that tensors may overlap.
    """
    aliases = "views" if views else "accept"
    if len(index.tensors) > limits.tensors:
        expected = f"at most {limits.tensors}"
        raise LimitError("too many tensors", expected=expected, found=len(index.tensors), code="count", limit="tensors")
    if isinstance(index.tensors, LazyTensors):
        check_extents(index.tensors.extents, index.files, aliases=aliases)
    else:
        extents: list[Extent] = []
        for name, spec in index.tensors.items():
            check_name(name, limits)
            check_shape(spec.shape, limits, tensor=name)
            extents += spec_extents(spec)
        check_extents(extents, index.files, aliases=aliases)
    for child in index.children.values():
        check_index(child, limits, views=views)


def spec_extents(spec: TensorSpec) -> Iterable[Extent]:
    """Byte ranges of all parts of a tensor."""
    parts = [part for encoding in spec.encodings for part in encoding.parts.values()]
    for part in (*parts, *spec.extras.values()):
        for segment in part.segments:
            yield segment.file, segment.offset, segment.length, spec.name


def single_value(feature: str, value: Any) -> Any:
    """Return the value of a feature that a tensor has only once.

    Parameters
    ----------
    feature
        Name of the feature, for errors.
    value
        A value, or a set, list or tuple of one value.

    Returns
    -------
    object
        The value.

    Raises
    ------
    FormatError
        There are several values (code `feature`).

    Examples
    --------
    >>> single_value("dtype", {"q4_k"})
    'q4_k'
    """
    if isinstance(value, (set, frozenset, list, tuple)):
        if len(value) != 1:
            raise FormatError(f"a tensor has only one {feature}", found=", ".join(sorted(value)), code="feature")
        (value,) = value
    return value
