"""The files of a UQFF model: shards, `residual.safetensors`, config, tokenizer and report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from squish_safetensors.api import read_header, spec_of_record, stored_part

from squish_core.api import (
    ErrorCode,
    FormatError,
    Limits,
    Part,
    Problem,
    Source,
    SquishError,
    TensorSpec,
    check_file_name,
    counted,
    load_json,
)

from .detection import SUFFIX

RESIDUAL, CONFIG, REPORT = "residual.safetensors", "config.json", "uqff_report.json"
ASSETS = (
    CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "modules.json",
    "chat_template.jinja", "chat_template.json",
    "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json", "squish.gguf.json", REPORT,
)  # fmt: skip
NUMBERED = re.compile(r"(.*)-(0|[1-9]\d{0,5})\.uqff", re.DOTALL)
MAX_JSON = 16 << 20
FIRST_SHARDS = 8
"""Number of shards looked up at once if the folder cannot be listed; doubled while all of them exist."""


@frozen
class Shard:
    """One file of the set and the tensors in its header; segments refer to the file's position in the Index."""

    source: Source
    tensors: Mapping[str, TensorSpec]


@frozen
class ShardSet:
    """The open files, the tensors of all shards, and the limits."""

    sources: list[Source]
    tensors: Mapping[str, TensorSpec]
    limits: Limits

    def read(self, part: Part, what: str) -> bytes:
        """Read the bytes of a small part; `what` names it in errors."""
        (segment,) = part.segments
        return self.sources[segment.file].read(segment.offset, segment.length, what)


def open_shard(main: Source, name: str, file: int, limits: Limits) -> Shard:
    """Open a safetensors file in the same folder."""
    source = main.member(name)
    try:
        records = read_header(source, limits, file).records
    except SquishError as error:
        raise error.within(file=source.name) from None
    return Shard(source, {tensor: spec_of_record(tensor, record) for tensor, record in records.items()})


def merge(shards: Sequence[Shard], limits: Limits, repeatable: Iterable[str]) -> ShardSet:
    """Merge the tensors of all shards; only `repeatable` ones may repeat, with equal contents."""
    tensors: dict[str, TensorSpec] = {}
    holder: dict[str, Shard] = {}
    files = ShardSet([shard.source for shard in shards], tensors, limits)
    for shard in shards:
        for name, spec in shard.tensors.items():
            if name not in tensors:
                tensors[name], holder[name] = spec, shard
            elif name not in repeatable:
                raise FormatError(
                    "appears in two shards",
                    file=shard.source.name,
                    tensor=name,
                    expected=holder[name].source.filename,
                    found=shard.source.filename,
                    code=ErrorCode.DUPLICATE,
                    hint="The shards belong to different models.",
                )
            elif files.read(stored_part(spec), name) != files.read(stored_part(tensors[name]), name):
                raise FormatError(
                    "the shards have different versions",
                    file=shard.source.name,
                    tensor=name,
                    code="version",
                    hint="The shards belong to different models.",
                )
    return files


def members_beside(source: Source, name: str, limits: Limits) -> tuple[str, ...]:
    """Return the names of files that may belong to a model; if the folder cannot be listed, look up the usual names."""
    members = source.members(likely=(*ASSETS, RESIDUAL, name))
    if source.lists_members:
        return members
    report, _ = read_json(source, REPORT, members, limits)
    shards: Sequence[str] = _reported(name, report)
    numbered = None if shards else NUMBERED.fullmatch(name)
    present, count = source.members(likely=shards), FIRST_SHARDS
    while numbered and len(present) < count:
        names = [f"{numbered[1]}-{number}{SUFFIX}" for number in range(count)]
        present = source.members(likely=names)
        if len(present) < count:
            break
        count *= 2
    return tuple(sorted({*members, *present}))


def shard_names(name: str, members: Sequence[str], report: Mapping[str, Any]) -> list[str]:
    """Return all files of the set with `name`, in order; FormatError names missing ones."""
    reported = _reported(name, report)
    if reported:
        _require(reported, members)
        return reported
    match = NUMBERED.fullmatch(name)
    if not match:
        return [name]
    matches = [NUMBERED.fullmatch(member) for member in members]
    last = max(int(each[2]) for each in matches if each and each[1] == match[1])
    names = [f"{match[1]}-{number}{SUFFIX}" for number in range(min(last, len(members)) + 1)]
    _require(names, members)
    return names


def single_set(folder: Source, members: Sequence[str]) -> str:
    """Return one file of a folder's only set; FormatError if there are several sets."""
    sets: dict[str, str] = {}
    for member in members:
        if member.endswith(SUFFIX):
            numbered = NUMBERED.fullmatch(member)
            sets.setdefault(numbered[1] if numbered else member.removesuffix(SUFFIX), member)
    if len(sets) != 1:
        raise FormatError(
            "folder with several UQFF models",
            file=folder.name,
            expected="one set of shards",
            found=", ".join(list(sets.values())[:8]),
            code=ErrorCode.FOLDER,
            hint="Open one of the files.",
        )
    return next(iter(sets.values()))


def read_json(main: Source, name: str, members: Sequence[str], limits: Limits) -> tuple[dict[str, Any], list[Problem]]:
    """Read a JSON object from a neighboring file; {} and a problem if it is unreadable."""
    if name not in members:
        return {}, []
    try:
        source = main.member(name)
        if source.size > MAX_JSON:
            raise FormatError("too large", expected=f"at most {MAX_JSON} bytes", found=source.size, code="json")
        return load_json(source.read(0, source.size), name, limits), []
    except SquishError as error:
        return {}, [Problem(code="json", severity="warning", where=name, message=f"ignored: {error}")]


def output_of(name: str, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the report's entry for the set with the shard `name`, or {}."""
    outputs = report.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        shards = output.get("shards") if isinstance(output, dict) else None
        if isinstance(shards, list) and name in shards and all(isinstance(shard, str) for shard in shards):
            return output
    return {}


def _reported(name: str, report: Mapping[str, Any]) -> list[str]:
    """Return the shards in a report, checked to be unique file names without a path."""
    shards: list[str] = output_of(name, report).get("shards", [])
    for shard in shards:
        check_file_name(shard, REPORT)
    if len(set(map(str.casefold, shards))) != len(shards):
        raise FormatError("lists a shard twice", file=REPORT, found=", ".join(shards)[:200], code="shard-repeated")
    return shards


def _require(names: Sequence[str], members: Sequence[str]) -> None:
    present = frozenset(members)
    missing = [name for name in names if name not in present]
    if missing:
        what = f"the shard {missing[0]!r} is missing" + (f", and {len(missing) - 1} more" if missing[1:] else "")
        raise FormatError(
            what,
            code="shard-missing",
            expected=counted(len(names), "shard"),
            found=f"{len(names) - len(missing)} of these",
            hint=f"Download {', '.join(missing[:8])} to the same folder.",
        )
