"""Options of `--to gguf:...`, and the tensors of each file of a split set, as llama.cpp's gguf-split cuts it.

Apart from the writer, which writes one file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from squish_core.api import ErrorCode, Options, OutgoingTensor, Typed, UsageError, align_up

from .types import DEFAULT_ALIGNMENT, MAX_ALIGNMENT

MAX_SIZE, MAX_TENSORS, EMPTY_FIRST, ALIGNMENT = "max_shard_size", "max_shard_tensors", "empty_first_shard", "alignment"
PLACES = "places"
"""In the options of an edit: JSON of an `EditedSet`."""
SHARD_KEYS = "gguf.shard_keys"
"""In `Index.attrs` of a split set: name of each file -> names of its metadata keys."""


@frozen
class Shards:
    """How a model is cut: most bytes and most tensors of a file, and whether the first has only the metadata."""

    size: int | None = None
    tensors: int | None = None
    empty_first: bool = False

    def groups(self, tensors: Sequence[OutgoingTensor]) -> list[list[OutgoingTensor]]:
        """Return the tensors of each file, in order; a larger tensor than the limit has a file of its own."""
        groups: list[list[OutgoingTensor]] = [[]]
        if self.empty_first and tensors:
            groups.append([])
        filled = 0
        for tensor in tensors:
            parts = tensor.spec.encodings[0].parts.values()
            size = sum(align_up(part.nbytes, DEFAULT_ALIGNMENT) for part in parts)
            group = groups[-1]
            is_full = self.size is not None and filled + size > self.size
            if group and (is_full or (self.tensors is not None and len(group) >= self.tensors)):
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

    def metadata(self, number: int, meta: Mapping[str, Any], split: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metadata of one file: all in the first, the alignment in each."""
        own = {key: value for key, value in meta.items() if key == "general.alignment"} if number else meta
        return {**own, **split}


@frozen
class EditedSet:
    """The files of a set that is edited: the metadata keys that each had, and the number of each tensor's file.

    Files that an edit does not concern get the bytes that they had, whoever wrote them.
    """

    keys: tuple[tuple[str, ...], ...]
    files: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> EditedSet:
        """Return the set that an option describes."""
        keys, files = json.loads(text)
        return cls(tuple(map(tuple, keys)), files)

    def groups(self, tensors: Sequence[OutgoingTensor]) -> list[list[OutgoingTensor]]:
        """Return the tensors of each file, in order."""
        groups: list[list[OutgoingTensor]] = [[] for _ in self.keys]
        for tensor in tensors:
            groups[self.files[tensor.spec.name]].append(tensor)
        return groups

    def metadata(self, number: int, meta: Mapping[str, Any], split: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metadata of one file, in its order: the keys that it had, and in the first those of no other."""
        values = {**meta, **split}
        own = {key: values[key] for key in self.keys[number] if key in values}
        others = {key for keys in self.keys[1:] for key in keys}
        return own if number else {**own, **{key: value for key, value in values.items() if key not in others}}


def splits(options: Options) -> bool:
    """Return whether the options ask for a split set."""
    return any(key in options for key in (MAX_SIZE, MAX_TENSORS, EMPTY_FIRST, PLACES))


def edited_places(attrs: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """Return the option of an edit from `attrs` of the set's Index, and the name of each tensor's file."""
    keys: Mapping[str, Sequence[str]] = attrs[SHARD_KEYS]
    numbers = {name: number for number, name in enumerate(keys)}
    return json.dumps([list(keys.values()), {tensor: numbers[name] for tensor, name in files.items()}])


def shards_of(options: Options) -> Shards | EditedSet:
    """Return how the options cut a model; UsageError for an invalid value."""
    if PLACES in options:
        return EditedSet.parse(options[PLACES])
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
