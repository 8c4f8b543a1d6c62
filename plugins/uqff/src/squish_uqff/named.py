"""UQFF 1.x: a layer is `<key>.weight` and what lies under that name, each a tensor of the file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from squish_core.api import FormatError, Part, Problem, SquishError, UnsupportedVersionError
from squish_uqff import tables
from squish_uqff.layers import LIMITS, Layer, make_bias, make_broken, make_weight, refuse

MARK = ".weight.format"
VERSION = "uqff.version."
VERSION_KEYS = tuple(VERSION + level for level in ("major", "minor", "patch"))
Read = Callable[[Part, str], bytes]
"""The bytes of a small part; the text names it in errors."""

_U8 = frozenset(("bits", "axis", "round_zeros", "channel_wise"))
_U32 = frozenset(("dtype", "group_size", "optimization_steps", "num_blocks"))


def read_version(stored: Mapping[str, Part], read: Read) -> tuple[int, int, int]:
    """The version that the three scalars state."""
    found = []
    for key in VERSION_KEYS:
        if key not in stored:
            raise FormatError(
                "the version is not stated", tensor=key, code="version", hint="Is shard 0 of the set missing?"
            )
        if (stored[key].dtype, stored[key].shape) != ("u32", ()):
            raise FormatError(
                "the version is no scalar u32", tensor=key, expected="u32 []",
                found=f"{stored[key].dtype} {list(stored[key].shape)}", code="version",
            )  # fmt: skip
        found.append(int.from_bytes(read(stored[key], key), "little"))
    major, minor, patch = found
    if major != tables.NEWEST[0] or minor > tables.NEWEST[1]:
        raise UnsupportedVersionError(
            "this version of UQFF is not supported", tensor=VERSION_KEYS[0],
            expected=f"{tables.NEWEST[0]}.0 to {'.'.join(map(str, tables.NEWEST))}", found=f"{major}.{minor}.{patch}",
            code="version", hint="Look for a newer squish-uqff; format='safetensors' shows the stored tensors.",
        )  # fmt: skip
    return major, minor, patch


def read_layer(key: str, stored: Mapping[str, Part], read: Read) -> Layer:
    """One layer from its tensors (`weight`, `bias`, `weight.format`, ...), or a broken one."""
    name = f"{key}.weight"
    try:
        isq = _number(stored, "weight.format", "u8", read)
        if isq >= len(tables.ISQ_NAMES):
            raise refuse("weight.format", f"0..{len(tables.ISQ_NAMES) - 1}", isq, "isq-type")
        weight = make_weight(name, isq, *_fields(isq, stored, read))
    except SquishError as error:
        return make_broken(name, error, stored)
    more = set(stored) - {"weight", "bias", "weight.format", *(f"weight.{each}" for each in tables.SUFFIXES[isq])}
    problems = tuple(
        Problem(code="field", severity="warning", where=name, message=f"{field[:80]!r} is no field of this type")
        for field in sorted(more)
    )
    weight = evolve(weight, extras={**weight.extras, **{field: stored[field] for field in sorted(more)}})
    return Layer(weight, make_bias(f"{key}.bias", stored["bias"]) if "bias" in stored else None, problems)


def _fields(isq: int, stored: Mapping[str, Part], read: Read) -> tuple[dict[str, Part], dict[str, Any]]:
    """The parts and the numbers of a type, all of them there."""
    for field in ("weight", *(f"weight.{suffix}" for suffix in tables.SUFFIXES[isq])):
        if field not in stored:
            raise FormatError(
                f"is missing in a layer of type {tables.ISQ_NAMES[isq]}", part=field, code="missing",
                hint="It may be in a shard that is missing.",
            )  # fmt: skip
    parts: dict[str, Part] = {"weight": stored["weight"]}
    numbers: dict[str, Any] = {}
    for suffix in tables.SUFFIXES[isq]:
        field = f"weight.{suffix}"
        if suffix == "shape":
            numbers[suffix] = _dims(stored[field], read)
        elif suffix in _U8 or suffix in _U32:
            narrow = suffix in _U8 or (isq == tables.AFQ and suffix == "group_size")
            numbers[suffix] = _number(stored, field, "u8" if narrow else "u32", read)
        else:
            if suffix.endswith("_scale"):
                _expect(stored[field], field, "f32")
            parts[suffix] = stored[field]
    return parts, numbers


def _number(stored: Mapping[str, Part], field: str, dtype: str, read: Read) -> int:
    _expect(stored[field], field, dtype)
    return int.from_bytes(read(stored[field], field), "little")


def _expect(part: Part, field: str, dtype: str) -> None:
    if (part.dtype, part.shape) != (dtype, ()):
        raise refuse(field, f"{dtype} []", f"{part.dtype} {list(part.shape)}", "dtype")


def _dims(part: Part, read: Read) -> tuple[int, ...]:
    if part.dtype != "u32" or len(part.shape) != 1 or part.shape[0] > LIMITS.rank:
        expected = f"u32 of rank 1, at most {LIMITS.rank}"
        raise refuse("weight.shape", expected, f"{part.dtype} {list(part.shape)}", "shape")
    return struct.unpack(f"<{part.shape[0]}I", read(part, "shape"))
