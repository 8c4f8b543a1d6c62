"""What belongs to a UQFF file: its other shards, `residual.safetensors`, config, tokenizer and report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from squish_safetensors.header import build, read_header
from squish_safetensors.strict_json import loads

from squish_core.api import FormatError, Problem, Source, SquishError, TensorSpec, check_plain_name
from squish_uqff.layers import LIMITS

SUFFIX, RESIDUAL, CONFIG, REPORT = ".uqff", "residual.safetensors", "config.json", "uqff_report.json"
ASSETS = (
    CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "chat_template.jinja",
    "processor_config.json", "preprocessor_config.json", REPORT,
)  # fmt: skip
NUMBERED = re.compile(r"(.*)-(0|[1-9]\d{0,5})\.uqff", re.DOTALL)
MAX_JSON = 16 << 20


@frozen
class Shard:
    """One file of the set and the tensors that its header lists; segments count `file` into the Index's files."""

    source: Source
    tensors: Mapping[str, TensorSpec]


def open_shard(main: Source, name: str, file: int) -> Shard:
    """A safetensors file beside the main one."""
    source = main.member(name)
    try:
        records = read_header(source, LIMITS, file).records
    except SquishError as error:
        raise error.within(file=source.name) from None
    return Shard(source, {tensor: build(tensor, record) for tensor, record in records.items()})


def shard_names(name: str, members: Sequence[str], report: Mapping[str, Any]) -> list[str]:
    """All files of the set that `name` belongs to, in order; FormatError naming the first one that is missing."""
    listed = _reported(name, report)
    if listed:
        _demand(listed, members)
        return listed
    numbered = NUMBERED.fullmatch(name)
    if not numbered:
        return [name]
    found = [NUMBERED.fullmatch(member) for member in members]
    numbers = sorted(int(each[2]) for each in found if each and each[1] == numbered[1])
    wanted = [f"{numbered[1]}-{number}{SUFFIX}" for number in range(len(numbers))]
    _demand(wanted, members)
    return wanted


def the_set(folder: Source, members: Sequence[str]) -> str:
    """The file that stands for the one set of a folder; FormatError when there are several."""
    sets: dict[str, str] = {}
    for member in members:
        if member.endswith(SUFFIX):
            numbered = NUMBERED.fullmatch(member)
            sets.setdefault(numbered[1] if numbered else member.removesuffix(SUFFIX), member)
    if len(sets) != 1:
        raise FormatError(
            "is a folder with several UQFF models", file=folder.name, expected="one set of shards",
            found=", ".join(list(sets.values())[:8]), code="folder", hint="Name one of the files.",
        )  # fmt: skip
    return next(iter(sets.values()))


def read_json(main: Source, name: str, members: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """The object that a file beside the main one holds; {} and a problem when it cannot be read."""
    if name not in members:
        return {}, []
    try:
        source = main.member(name)
        if source.size > MAX_JSON:
            raise FormatError("is too large", expected=f"at most {MAX_JSON} bytes", found=source.size, code="json")
        return loads(source.read(0, source.size), name, LIMITS), []
    except SquishError as error:
        return {}, [Problem(code="json", severity="warning", where=name, message=f"is not used: {error}")]


def _reported(name: str, report: Mapping[str, Any]) -> list[str]:
    """The shards of the output of a report that `name` is one of."""
    outputs = report.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        shards = output.get("shards") if isinstance(output, dict) else None
        if isinstance(shards, list) and name in shards and all(isinstance(shard, str) for shard in shards):
            for shard in shards:
                check_plain_name(shard, REPORT)
            return list(dict.fromkeys(shards))
    return []


def _demand(names: Sequence[str], members: Sequence[str]) -> None:
    there = frozenset(members)
    for name in names:
        if name not in there:
            raise FormatError(
                f"the shard {name!r} is missing", code="shard-missing", expected=f"{len(names)} shards at least",
                found=f"{len(there.intersection(names))} of these", hint="Fetch it into the same folder.",
            )  # fmt: skip
