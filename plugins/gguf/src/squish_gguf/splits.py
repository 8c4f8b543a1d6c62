"""Split sets: one model in several files, `name-00001-of-00003.gguf` and so on."""

from __future__ import annotations

import re
from typing import Any

from squish_core.api import ErrorCode, FormatError, Limits, Problem, Source, SquishError, align_up

from .reader import MAGIC, Head, read_head

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.DOTALL)
KEYS = ("split.no", "split.count", "split.tensors.count")


def read_set(source: Source, limits: Limits) -> list[Head]:
    """Return the heads of all parts in order; a file outside a set has one."""
    first = read_head(source, limits)
    count, joined = _number(first, "split.count", 1), _second_file(source, first)
    if count <= 1:
        if joined:
            message = "another GGUF file begins here: files that were joined with `cat` are not one model"
            first.problems.append(Problem(code="split", severity="warning", where=f"byte {joined}", message=message))
        return [first]
    if joined:
        raise FormatError(
            f"contains several of {count} parts in one file, as joined by `cat`",
            offset=joined,
            code="split",
            expected="one part in each file",
            found="the start of another GGUF file",
            hint="Name the first of the original parts, which opens the set: squish convert FIRST OUT.gguf joins it.",
        )
    match = _NAME.fullmatch(source.filename)
    if match is None or int(match["count"]) != count or not 1 <= int(match["number"]) <= count:
        raise FormatError(
            f"one of {count} parts, but its name does not say which",
            file=source.name,
            expected=f"a name like model-00001-of-{count:05}.gguf",
            found=source.filename,
            code="split",
            hint="Restore the parts' original names, in one folder.",
        )
    heads = []
    for number in range(1, count + 1):
        name = f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}"
        head = first if name == source.filename else _part_head(source, name, limits)
        _check_part(head, number - 1, count)
        heads.append(head)
    _check_set(heads)
    return heads


def _second_file(source: Source, head: Head) -> int | None:
    """Return the offset at which another GGUF file follows the tensors."""
    end = max((record.offset + record.nbytes for record in head.records.values()), default=head.end)
    for start in (end, align_up(end, head.alignment)):
        if start + len(MAGIC) <= source.size and source.read(start, len(MAGIC)) == MAGIC:
            return start
    return None


def _part_head(source: Source, name: str, limits: Limits) -> Head:
    try:
        return read_head(source.member(name), limits)
    except SquishError as error:
        error.message = f"part {name}: {error.message}"
        raise error.within(file=name, hint="All parts of a split set must be in one folder.") from None


def _check_part(head: Head, number: int, count: int) -> None:
    for key, expected in (("split.count", count), ("split.no", number)):
        value = _number(head, key, 0)
        if value != expected:
            raise FormatError(
                f"{key} does not match this part's position in the set",
                file=head.name,
                expected=expected,
                found=value,
                code="split",
                hint="The part was renamed, or belongs to another model.",
            )


def _check_set(heads: list[Head]) -> None:
    tensors = sum(len(head.records) for head in heads)
    first: dict[str, tuple[Any, str]] = {}
    names: dict[str, str] = {}
    for head in heads:
        total = _number(head, "split.tensors.count", tensors)
        if total != tensors:
            raise FormatError(
                "split.tensors.count is not the total of the parts",
                file=head.name,
                expected=total,
                found=tensors,
                code="split",
                hint="A part belongs to another model.",
            )
        for key, value in head.meta.items():
            other, where = first.setdefault(key, (value, head.name))
            if key.startswith("general.") and other != value:
                raise FormatError(
                    f"{key} contradicts {where}: the parts belong to different models",
                    file=head.name,
                    expected=f"{other.value!r:.80}",
                    found=f"{value.value!r:.80}",
                    code="split",
                )
        for name in head.records:
            if names.setdefault(name, head.name) != head.name:
                raise FormatError(f"also in {names[name]}", file=head.name, tensor=name, code=ErrorCode.DUPLICATE)


def _number(head: Head, key: str, default: int) -> int:
    value = head.value(key, default)
    if type(value) is not int or value < 0:
        raise FormatError(f"{key} is not a count", file=head.name, found=f"{value!r:.40}", code="split")
    return value
