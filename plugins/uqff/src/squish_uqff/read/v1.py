"""UQFF 1.x: a layer is `<key>.weight` and the tensors `<key>.weight.*`."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from attrs import evolve
from squish_safetensors.api import stored_part

from squish_core.api import ErrorCode, FormatError, Part, Problem, SquishError, TensorSpec, UnsupportedVersionError

from .. import tables
from ..layers import Layer, make_bias, make_broken, make_weight, number_problems, refuse
from .detection import VERSION_KEYS
from .names import row_names
from .shards import ShardSet

MARK = ".weight.format"
Version = tuple[int, int, int]

_U8 = frozenset(("bits", "axis", "round_zeros", "channel_wise"))
_U32 = frozenset(("dtype", "group_size", "optimization_steps", "num_blocks"))


def read_version(files: ShardSet, newer: bool) -> tuple[Version, list[Problem]]:
    """Read the version scalars; `newer` accepts a newer minor version, with a warning."""
    levels = []
    for key in VERSION_KEYS:
        if key not in files.tensors:
            raise FormatError(
                "the version is missing", tensor=key, code="version", hint="Is shard 0 of the set missing?"
            )
        part = stored_part(files.tensors[key])
        if (part.dtype, part.shape) != ("u32", ()):
            raise FormatError(
                "the version is not a u32 scalar",
                tensor=key,
                expected="u32 []",
                found=f"{part.dtype} {list(part.shape)}",
                code="version",
            )
        levels.append(int.from_bytes(files.read(part, key), "little"))
    major, minor, patch = levels
    version, newest = f"{major}.{minor}.{patch}", ".".join(map(str, tables.NEWEST))
    if major != tables.NEWEST[0] or (minor > tables.NEWEST[1] and not newer):
        override = "open it with {option:format=uqff:allow_newer_minor=true}, " if major == tables.NEWEST[0] else ""
        swapped = major == tables.NEWEST[0] << 24
        raise UnsupportedVersionError(
            "unsupported UQFF version",
            tensor=VERSION_KEYS[0],
            expected=f"1.0 to {newest}",
            found=version,
            code="version",
            hint="Byte order is swapped: a big-endian file?"
            if swapped
            else f"Upgrade squish-uqff, {override}or list the raw tensors with {{option:format=safetensors}}.",
        )
    if minor <= tables.NEWEST[1]:
        return (major, minor, patch), []
    message = f"{version} is newer than {newest}; layers are read as {newest}"
    return (major, minor, patch), [Problem(code="version", severity="warning", where=VERSION_KEYS[1], message=message)]


def read_layers(files: ShardSet) -> tuple[list[Layer], list[TensorSpec]]:
    """Return the 1.x layers, in weight order, and the remaining tensors."""
    groups: dict[str, dict[str, Part]] = {name.removesuffix(MARK): {} for name in files.tensors if name.endswith(MARK)}
    rest = []
    for name, spec in files.tensors.items():
        key, field = _split(name)
        if field and key in groups:
            groups[key][field] = stored_part(spec)
        elif name not in VERSION_KEYS:
            rest.append(spec)
    return [_layer(key, group, files) for key, group in groups.items()], rest


def _split(name: str) -> tuple[str, str]:
    """Split a tensor name into layer key and field."""
    key, dot, last = name.rpartition(".weight.")
    if dot:
        return key, f"weight.{last}"
    key, _, last = name.rpartition(".")
    return (key, last) if last in ("weight", "bias") else (name, "")


def _layer(key: str, parts: Mapping[str, Part], files: ShardSet) -> Layer:
    """Build a layer from its tensors (`weight`, `bias`, `weight.format`, ...); unreadable ones become broken layers."""
    name = f"{key}.weight"
    try:
        isq = _number(parts, "weight.format", "u8", files)
        if isq >= len(tables.ISQ_NAMES):
            raise refuse("weight.format", f"0..{len(tables.ISQ_NAMES) - 1}", isq, "isq-type")
        values, numbers = _fields(isq, parts, files)
        weight = make_weight(name, isq, values, numbers, files.limits)
    except SquishError as error:
        return make_broken(name, error, parts)
    more = set(parts) - {"weight", "bias", "weight.format", *(f"weight.{each}" for each in tables.SUFFIXES[isq])}
    problems = (
        *number_problems(name, isq, numbers),
        *(
            Problem(code="field", severity="warning", where=name, message=f"unknown field {field[:80]!r} for this type")
            for field in sorted(more)
        ),
    )
    extras = {**weight.extras, **{field: parts[field] for field in sorted(more)}}
    weight = evolve(weight, extras=extras, row_names=row_names(key, len(weight.shape)))
    return Layer(weight, make_bias(f"{key}.bias", parts["bias"]) if "bias" in parts else None, problems)


def _fields(isq: int, fields: Mapping[str, Part], files: ShardSet) -> tuple[dict[str, Part], dict[str, Any]]:
    """Return the parts and numbers of a type; FormatError if one is missing."""
    for field in ("weight", *(f"weight.{suffix}" for suffix in tables.SUFFIXES[isq])):
        if field not in fields:
            raise FormatError(
                f"missing in a layer of type {tables.ISQ_NAMES[isq]}",
                part=field,
                code=ErrorCode.MISSING,
                hint="It may be in a missing shard.",
            )
    parts: dict[str, Part] = {"weight": fields["weight"]}
    numbers: dict[str, Any] = {}
    for suffix in tables.SUFFIXES[isq]:
        field = f"weight.{suffix}"
        if suffix == "shape":
            numbers[suffix] = _dims(fields[field], files)
        elif suffix in _U8 or suffix in _U32:
            narrow = suffix in _U8 or (isq == tables.AFQ and suffix == "group_size")
            numbers[suffix] = _number(fields, field, "u8" if narrow else "u32", files)
        else:
            if suffix.endswith("_scale"):
                _expect(fields[field], field, "f32")
            parts[suffix] = fields[field]
    return parts, numbers


def _number(parts: Mapping[str, Part], field: str, dtype: str, files: ShardSet) -> int:
    _expect(parts[field], field, dtype)
    return int.from_bytes(files.read(parts[field], field), "little")


def _expect(part: Part, field: str, dtype: str) -> None:
    if (part.dtype, part.shape) != (dtype, ()):
        raise refuse(field, f"{dtype} []", f"{part.dtype} {list(part.shape)}", "dtype", offset=_offset(part))


def _dims(part: Part, files: ShardSet) -> tuple[int, ...]:
    if part.dtype != "u32" or len(part.shape) != 1 or part.shape[0] > files.limits.rank:
        expected = f"u32 of rank 1, at most {files.limits.rank}"
        stored = f"{part.dtype} {list(part.shape)}"
        raise refuse("weight.shape", expected, stored, "shape", offset=_offset(part))
    return struct.unpack(f"<{part.shape[0]}I", files.read(part, "weight.shape"))


def _offset(part: Part) -> int:
    return part.segments[0].offset
