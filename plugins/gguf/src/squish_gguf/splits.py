"""Split sets: `name-00001-of-00003.gguf` and its siblings are one model."""

from __future__ import annotations

import re
from typing import Any

from squish_core.api import FormatError, Limits, Source, SquishError

from .reader import Head, read_head

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.DOTALL)
KEYS = ("split.no", "split.count", "split.tensors.count")


def read_set(source: Source, limits: Limits) -> list[Head]:
    """The heads of all parts in order; of one file, when it is no part of a set."""
    opened = read_head(source, limits)
    count = _number(opened, "split.count", 1)
    if count <= 1:
        return [opened]
    match = _NAME.fullmatch(source.filename)
    if match is None or int(match["count"]) != count or not 1 <= int(match["number"]) <= count:
        raise FormatError(
            f"is one of {count} parts, but its name does not say which", file=source.name,
            expected=f"a name like model-00001-of-{count:05}.gguf", found=source.filename, code="split",
            hint="Give the parts their original names, in one folder.",
        )  # fmt: skip
    heads = []
    for number in range(1, count + 1):
        name = f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}"
        head = opened if name == source.filename else _read_part(source, name, limits)
        _check_part(head, number - 1, count)
        heads.append(head)
    _check_set(heads)
    return heads


def _read_part(source: Source, name: str, limits: Limits) -> Head:
    try:
        return read_head(source.member(name), limits)
    except SquishError as error:
        error.message = f"part {name}: {error.message}"
        raise error.within(file=name, hint="All parts of a split set must lie in one folder.") from None


def _check_part(head: Head, number: int, count: int) -> None:
    for key, wanted in (("split.count", count), ("split.no", number)):
        found = _number(head, key, 0)
        if found != wanted:
            raise FormatError(
                f"{key} does not fit the place of this part in its set", file=head.name,
                expected=wanted, found=found, code="split", hint="A part was renamed, or belongs to another model.",
            )  # fmt: skip


def _check_set(heads: list[Head]) -> None:
    tensors = sum(len(head.records) for head in heads)
    first: dict[str, tuple[Any, str]] = {}
    names: dict[str, str] = {}
    for head in heads:
        declared = _number(head, "split.tensors.count", tensors)
        if declared != tensors:
            raise FormatError(
                "split.tensors.count is not what the parts hold together", file=head.name,
                expected=declared, found=tensors, code="split", hint="A part belongs to another model.",
            )  # fmt: skip
        for key, value in head.meta.items():
            other, where = first.setdefault(key, (value, head.name))
            if key.startswith("general.") and other != value:
                raise FormatError(
                    f"{key} contradicts {where}: the parts are of two models", file=head.name,
                    expected=f"{other.value!r:.80}", found=f"{value.value!r:.80}", code="split",
                )  # fmt: skip
        for name in head.records:
            if names.setdefault(name, head.name) != head.name:
                raise FormatError(f"is in {names[name]} too", file=head.name, tensor=name, code="duplicate")


def _number(head: Head, key: str, default: int) -> int:
    value = head.plain(key, default)
    if type(value) is not int or value < 0:
        raise FormatError(f"{key} is not a count", file=head.name, found=f"{value!r:.40}", code="split")
    return value
