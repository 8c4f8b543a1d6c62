"""Maps over the tensors of files that worker processes open by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, TypeVar

from attrs import frozen

from squish_core import opening
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, UsageError
from squish_core.file import File
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry
from squish_core.plugins.schedulers import scheduler_named
from squish_core.text import counted

Result = TypeVar("Result")

SPAN_BYTES = 256 << 20
"""Approximate bytes of tensors per task."""
MEMORY = 512 << 20
"""Approximate maximum memory of a worker, in bytes."""


@frozen(kw_only=True)
class Address:
    """How another process opens a file, and its expected size and number of tensors. `run` is unique, so that no worker
    reuses a file from an earlier run."""

    path: str
    format: str
    size: int
    tensors: int
    limits: Limits
    run: str


@frozen(kw_only=True)
class Span:
    """Tensors `start` to `stop` of files, in the order of the map; `options` are those of the function."""

    files: tuple[Address, ...]
    start: int
    stop: int
    options: tuple[tuple[str, Any], ...] = ()


def path_of(file: File) -> str:
    """Return the path or URL by which another process opens a file; UsageError if there is none."""
    if file.path is not None:
        return str(file.path.absolute())
    if "://" in file.name:
        return file.name
    raise UsageError(
        "a scheduler needs a file that other processes can open",
        found=file.name,
        expected="a path or a URL",
        code=ErrorCode.USAGE,
        hint="Save the arrays to a file first, or leave out {option:scheduler}.",
    )


def address_of(file: File) -> Address:
    """Return the address by which another process opens the same file.

    Parameters
    ----------
    file
        A file on disk.

    Returns
    -------
    Address
        Plain data: the path, the format, the size in bytes, the number of tensors and the limits.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     address_of(file).tensors
    3
    """
    return Address(
        path=path_of(file),
        format=file.format_spec,
        size=file.source.size,
        tensors=len(file),
        limits=file.limits,
        run=os.urandom(8).hex(),
    )


@lru_cache(maxsize=2)
def file_at(address: Address, mmap: bool = False) -> File:
    """Return the file at an address, opened once per process; FormatError if its size or number of tensors differs."""
    file = opening.open(address.path, mmap=mmap, limits=address.limits)
    if file.format_spec != address.format:
        file.close()
        file = opening.open(address.path, address.format, mmap=mmap, limits=address.limits)
    size, tensors = file.source.size, len(file)
    if (size, tensors) != (address.size, address.tensors):
        expected = f"{counted(address.size, 'byte')}, {counted(address.tensors, 'tensor')}"
        found = f"{counted(size, 'byte')}, {counted(tensors, 'tensor')}"
        raise FormatError(
            "differs in a worker process", file=address.path, code=ErrorCode.CHANGED, expected=expected, found=found
        )
    return file


def map_spans(
    function: Callable[[Span], Result],
    files: Sequence[File],
    sizes: Sequence[int],
    scheduler: str,
    registry: Registry,
    options: tuple[tuple[str, Any], ...] = (),
    done: Callable[[int, int], object] = lambda tensor, nbytes: None,
) -> list[Result]:
    """Return the results of a function for spans of tensors, in the order of the spans.

    `sizes`: bytes of each tensor. `done` is called with the number of a span's last tensor and the bytes done so far.
    """
    addresses = tuple(map(address_of, files))
    spans = [Span(files=addresses, start=start, stop=stop, options=options) for start, stop in _bounds(sizes)]
    results, nbytes = dict[int, Result](), 0
    with closing(scheduler_named(scheduler, registry).map(function, spans, MEMORY)) as calls:
        for number, result in calls:
            results[number] = result
            nbytes += sum(sizes[spans[number].start : spans[number].stop])
            done(spans[number].stop - 1, nbytes)
    return [results[number] for number in range(len(spans))]


def _bounds(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if number > start and total + size > SPAN_BYTES:
            yield start, number
            start, total = number, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)
