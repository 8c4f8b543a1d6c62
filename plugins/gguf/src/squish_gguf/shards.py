"""Options of `--to gguf:...`, and the tensors of each file of a split set, as llama.cpp's gguf-split cuts it.

Apart from the writer, which writes one file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from squish_core.api import ErrorCode, Options, OutgoingTensor, Typed, UsageError, align_up

from .types import DEFAULT_ALIGNMENT, MAX_ALIGNMENT

MAX_SIZE, MAX_TENSORS, EMPTY_FIRST, ALIGNMENT = "max_shard_size", "max_shard_tensors", "empty_first_shard", "alignment"


@frozen
class Shards:
    """How a model is cut: most bytes and most tensors of a file, and whether the first has only the metadata."""

    size: int | None = None
    tensors: int | None = None
    empty_first: bool = False


def splits(options: Options) -> bool:
    """Return whether the options ask for a split set."""
    return any(key in options for key in (MAX_SIZE, MAX_TENSORS, EMPTY_FIRST))


def shards_of(options: Options) -> Shards:
    """Return how the options cut a model; UsageError for an invalid value."""
    size, tensors = options.get(MAX_SIZE), options.get(MAX_TENSORS)
    most = None if size is None else _bytes(size)
    if size is not None and not most:
        raise _invalid(MAX_SIZE, size, "a size such as 2GB or 500MiB")
    if tensors is not None and not (tensors.isascii() and tensors.isdigit() and int(tensors[:9]) > 0):
        raise _invalid(MAX_TENSORS, tensors, "a number, at least 1")
    if (first := options.get(EMPTY_FIRST, "no")) not in ("yes", "no"):
        raise _invalid(EMPTY_FIRST, first, "yes or no")
    return Shards(most, None if tensors is None else int(tensors), first == "yes")


def with_alignment(meta: Mapping[str, Any], options: Options) -> Mapping[str, Any]:
    """Return the metadata with the alignment of the options; UsageError for an invalid value."""
    if (text := options.get(ALIGNMENT)) is None:
        return meta
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1) or value % 8:
        raise _invalid(ALIGNMENT, text, f"a power of two from 8 to {MAX_ALIGNMENT}")
    return {**meta, "general.alignment": Typed("u32", value)}


def cut(tensors: Sequence[OutgoingTensor], shards: Shards) -> list[list[OutgoingTensor]]:
    """Return the tensors of each file, in order; a larger tensor than the limit has a file of its own."""
    groups: list[list[OutgoingTensor]] = [[]]
    if shards.empty_first and tensors:
        groups.append([])
    filled = 0
    for tensor in tensors:
        parts = tensor.spec.encodings[0].parts.values()
        size = sum(align_up(part.nbytes, DEFAULT_ALIGNMENT) for part in parts)
        group = groups[-1]
        is_full = shards.size is not None and filled + size > shards.size
        if group and (is_full or (shards.tensors is not None and len(group) >= shards.tensors)):
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    if len(groups) > 65535:  # split.count is a u16
        raise UsageError(
            "GGUF has at most 65535 shards",
            found=f"{len(groups)} shards",
            code=ErrorCode.OPTION,
            hint=f"Choose a larger {MAX_SIZE} or {MAX_TENSORS}.",
        )
    return groups


def split_keys(number: int, count: int, tensors: int) -> dict[str, Typed]:
    """Return the keys of one file of a set."""
    return {
        "split.no": Typed("u16", number),
        "split.count": Typed("u16", count),
        "split.tensors.count": Typed("i32", tensors),
    }


def shard_name(target: str, number: int, count: int) -> str:
    """Return the name of one file of a set whose target is `target`.

    >>> shard_name("m.gguf", 0, 4)
    'm-00001-of-00004.gguf'
    """
    return f"{target.removesuffix('.gguf')}-{number + 1:05}-of-{count:05}.gguf"


def _bytes(text: str) -> int:
    """Return the bytes of a size such as 2G, 2GB, 500MiB or 1000; 0 for anything else.

    >>> _bytes("2G"), _bytes("1MiB"), _bytes("x")
    (2000000000, 1048576, 0)
    """
    match = re.fullmatch(r"(\d{1,15})(?:([kmgt])(i?)b?|b)?", text.strip().lower(), re.ASCII)
    if match is None:
        return 0
    power = " kmgt".index(match[2]) if match[2] else 0
    return int(match[1]) * int((1024 if match[3] else 1000) ** power)


def _invalid(key: str, value: str, expected: str) -> UsageError:
    return UsageError(
        f"invalid value of the GGUF option {key}", found=repr(value), expected=expected, code=ErrorCode.OPTION
    )
