"""Typed metadata and assets as one object `squish.meta`; zTensor 1.1 itself only stores text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import (
    DENSE,
    Encoding,
    FormatError,
    Limits,
    OutgoingTensor,
    Part,
    Problem,
    Source,
    Stream,
    TensorSpec,
    dump_meta,
    load_meta,
)

NAME = "squish.meta"


def restore(
    record: Mapping[str, Any], source: Source, limits: Limits
) -> tuple[dict[str, Any], dict[str, Part]] | Problem:
    """Return metadata and assets from the object's record, or the reason why it stays a tensor."""
    data = record["components"].get("data", {})
    description = (record.get("format"), data.get("dtype"), data.get("encoding") or "raw")
    if description != ("dense", "u8", "raw") or data.get("file"):
        return _problem("it must be one raw u8 component")
    if data["length"] > limits.header:
        return _problem(f"it has {data['length']} bytes, more than the limit of {limits.header}")
    try:
        meta, assets = load_meta(source.read(data["offset"], data["length"], NAME), limits)
    except FormatError as error:
        return _problem(f"{error.message}: {error.found}")
    return meta, {name: Part(dtype="u8", shape=(len(blob),), data=blob) for name, blob in assets.items()}


def is_text(meta: Mapping[str, Any], assets: Mapping[str, Any]) -> bool:
    """Return whether the root attributes can store everything, so that every reader of 1.1 understands it."""
    return not assets and all(type(value) is str for value in meta.values())


def outgoing(meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> OutgoingTensor:
    """Return the object as a tensor to write."""
    packed = dump_meta(meta, assets)
    spec = _spec(len(packed))
    return OutgoingTensor(spec, {"data": Stream(spec.encodings[0].parts["data"], lambda: [packed])})


def _spec(length: int) -> TensorSpec:
    part = Part(dtype="u8", shape=(length,))
    return TensorSpec(name=NAME, shape=(length,), dtype="u8", encodings=(Encoding(codec=DENSE, parts={"data": part}),))


def _problem(why: str) -> Problem:
    return Problem(code="meta", severity="warning", where=NAME, message=f"cannot restore metadata and assets: {why}")
