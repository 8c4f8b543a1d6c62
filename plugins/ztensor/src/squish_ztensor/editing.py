"""Changing a file: v2 grows at its end and keeps its old bytes, 1.1 and 1.2 are rewritten beside and renamed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import cbor2

from squish_core.api import (
    Digest,
    FormatError,
    Limits,
    Source,
    TensorError,
    UnsupportedVersionError,
    atomic_file,
    check_name,
    dtypes,
    open_source,
)

from . import cbor, deterministic, footer
from .manifest import ALIGNMENT, read_manifest
from .names import DTYPES, TYPES
from .second_writer import storable
from .wire import MAGIC, Located, locate

if TYPE_CHECKING:
    import numpy as np

Root = dict[str, Any]


def edit(
    path: str | os.PathLike[str],
    *,
    add: Mapping[str, np.ndarray] | None = None,
    remove: Iterable[str] = (),
    attributes: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> None:
    """Remove tensors, then add dense arrays, and set root attributes (None deletes one).

    v2: appended and synced; on failure the file is cut back to what it was. 1.1, 1.2: atomic rewrite without the
    removed bytes. Raises TensorError for a name that is not there or there twice, FormatError for what the file cannot
    hold.
    """
    limits, target = limits or Limits(), Path(path)
    source = open_source(target)
    try:
        found = locate(source, limits)
        if found.wire not in _EDITS:
            raise UnsupportedVersionError(
                f"zTensor {found.wire} is not edited", file=str(target), expected="1.1, 1.2 or 2", found=found.wire,
                code="version", hint="Convert it: `squish convert OLD NEW --to ztensor:wire=2`.",
            )  # fmt: skip
        read_manifest(source, limits)  # refuses what is not a sound file
        decode, write = _EDITS[found.wire]
        root = decode(source, found, limits)
        _change(root, tuple(remove), add or {}, attributes or {}, limits)
        write(target, source, root, add or {})
    finally:
        source.close()


def _change(
    root: Root, remove: tuple[str, ...], add: Mapping[str, Any], attributes: Mapping[str, Any], limits: Limits
) -> None:
    objects = root["objects"]
    for name in remove:
        if name not in objects:
            raise TensorError("is not in the file, so it cannot be removed", tensor=name, code="name")
        del objects[name]
    for name in add:
        if name in objects:
            raise TensorError("is in the file already", tensor=name, code="name", hint="Remove it in the same edit.")
        check_name(name, limits).encode()
    if not storable(attributes):
        raise FormatError("an attribute is of a kind that zTensor does not have", code="attributes")
    kept = {**(root.get("attributes") or {}), **attributes}
    kept = {key: value for key, value in kept.items() if value is not None or key not in attributes}
    root.pop("attributes", None)
    if kept:
        root["attributes"] = kept


def _decode_second(source: Source, found: Located, limits: Limits) -> Root:
    if not found.length:
        return {"objects": {}}
    root: Root = deterministic.decode(source.read(found.offset, found.length), found.offset, limits)
    return root


def _append_second(target: Path, source: Source, root: Root, add: Mapping[str, Any]) -> None:
    with target.open("r+b") as file:
        try:
            file.seek(source.size)
            for name, given in add.items():
                dtype, array = _stored(name, given, tuple(TYPES) + DTYPES)
                storage, logical = TYPES.get(dtype, (dtype, None))
                digest = Digest("xxh3")
                digest.update(array)
                part = {"dtype": storage, "blob": _blob(file, array, footer.ALIGNMENT), "digest": str(digest)}
                if logical:
                    part["type"] = logical
                root["objects"][name] = {"shape": list(given.shape), "layout": "dense", "parts": {"data": part}}
            manifest = deterministic.encode(root)
            offset, _ = _blob(file, manifest, footer.ALIGNMENT)
            file.write(footer.pack(offset, manifest))
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            file.flush()
            file.truncate(source.size)
            raise


def _decode_first(source: Source, found: Located, limits: Limits) -> Root:
    root: Root = cbor.decode(source.read(found.offset, found.length), found.offset, limits)
    return root


def _rewrite_first(target: Path, source: Source, root: Root, add: Mapping[str, Any]) -> None:
    components = [part for record in root["objects"].values() for part in record["components"].values()]
    moved: dict[tuple[int, int], int] = {}
    with atomic_file(target) as sink:
        sink.write(MAGIC)
        for part in sorted(components, key=lambda part: (part["offset"], part["length"])):
            place = (part["offset"], part["length"])
            if place not in moved:
                sink.pad(ALIGNMENT)
                moved[place] = sink.tell()
                for start in range(0, place[1], 1 << 22):
                    sink.write(source.view(place[0] + start, min(1 << 22, place[1] - start)))
        for part in components:
            part["offset"] = moved[part["offset"], part["length"]]
        for name, given in add.items():
            dtype, array = _stored(name, given, DTYPES)
            sink.pad(ALIGNMENT)
            part = {"dtype": dtype, "offset": sink.tell(), "length": len(array)}
            sink.write(array)
            root["objects"][name] = {"shape": list(given.shape), "format": "dense", "components": {"data": part}}
        root["objects"] = dict(sorted(root["objects"].items()))
        manifest = cbor2.dumps(root)
        for piece in (manifest, len(manifest).to_bytes(8, "little"), MAGIC):
            sink.write(piece)


_EDITS = {"1.1": (_decode_first, _rewrite_first), "2": (_decode_second, _append_second)}


def _stored(name: str, given: np.ndarray, allowed: tuple[str, ...]) -> tuple[str, bytes]:
    """Dtype name and bytes of an array."""
    dtype = dtypes.from_numpy(given.dtype)
    if dtype not in allowed or dtypes.bits(dtype) < 8:
        raise TensorError("this dtype is not added", tensor=name, found=dtype, code="dtype")
    return dtype, given.astype(dtypes.to_numpy(dtype), copy=False).tobytes()


def _blob(file: BinaryIO, data: bytes, alignment: int) -> tuple[int, int]:
    file.write(bytes(-file.tell() % alignment))
    offset = file.tell()
    file.write(data)
    return offset, len(data)
