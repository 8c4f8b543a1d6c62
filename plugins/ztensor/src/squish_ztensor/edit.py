"""Changing a file: v2 grows at its end and keeps its old bytes, 1.x is rewritten beside and renamed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.api import (
    DENSE,
    Encoding,
    File,
    FormatError,
    Limits,
    LockedFile,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Source,
    Stream,
    TensorError,
    TensorSpec,
    UnsupportedVersionError,
    appended_file,
    atomic_file,
    dtypes,
    locked_file,
    open_source,
    outgoing,
)

from . import accept, sidecar
from .options import WriteOptions
from .records import Manifest
from .v1 import cbor, writer
from .v1.early import from_1_0
from .v1.manifest import read_manifest
from .v2 import deterministic
from .v2 import writer as second_writer
from .wire import MAGIC, Located, locate

if TYPE_CHECKING:
    import numpy as np

Root = dict[str, Any]


def edit(
    path: str | os.PathLike[str],
    *,
    add: Mapping[str, np.ndarray] | File | None = None,
    remove: Iterable[str] = (),
    attributes: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> None:
    """Remove tensors, then add arrays, or all tensors of an open file with their codes kept, and set metadata (None
    deletes a key).

    v2: appended and synced; on failure the file is cut back to what it was. 1.x: atomic rewrite without the removed
    bytes, 1.0 as 1.1. Waits up to 10 s for another edit of the file. Raises TensorError for a name that is not there
    or there twice, FormatError for what the file cannot hold, and with code `locked` if the other edit goes on.
    """
    with locked_file(Path(path)) as lock:
        change(lock, add=add, remove=remove, attributes=attributes, limits=limits)


def change(
    lock: LockedFile,
    *,
    add: Mapping[str, np.ndarray] | File | None = None,
    remove: Iterable[str] = (),
    attributes: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> None:
    """Change a locked file as `edit` does; what the user should read goes into `lock.notes`."""
    limits = limits or Limits()
    source = open_source(lock.path)
    try:
        location = locate(source, limits)
        if location.wire == "0.1":
            raise UnsupportedVersionError(
                "zTensor 0.1 is not edited", file=source.name, expected="1.0, 1.1, 1.2 or 2", found=location.wire,
                code="version", hint="Convert it: `squish convert OLD NEW --to ztensor:wire=2`.",
            )  # fmt: skip
        manifest = read_manifest(source, limits)  # rejects a damaged file
        flavour = _flavour(manifest)
        root = _root(source, location, limits)
        more = _change(root, manifest, source, tuple(remove), attributes or {}, limits)
        more = [*_incoming(add or {}, flavour), *more]
        for item in more:
            if item.spec.name in root["objects"]:
                raise TensorError(
                    "is already in the file", tensor=item.spec.name, code="name", hint="Remove it in the same edit."
                )
        if location.wire == "2":
            with appended_file(lock) as sink:
                second_writer.append(sink, root, more, flavour)
        else:
            _rewrite(lock, source, root, more, flavour)
    finally:
        source.close()


def _flavour(manifest: Manifest) -> WriteOptions:
    """What is added is as the rest: in v2 compact, in 1.x in the words of its version."""
    if manifest.version == "2":
        return WriteOptions(wire="2", flavour="aligned")
    return WriteOptions(flavour="compatible" if manifest.version.startswith("1.2") else "literal")


def _root(source: Source, location: Located, limits: Limits) -> Root:
    if not location.length:
        return {"objects": {}}
    decode = deterministic.decode if location.wire == "2" else cbor.decode
    root: Root = decode(source.read(location.offset, location.length), location.offset, limits)
    if location.wire == "1.0":
        root = {**from_1_0(root, location.offset), "version": "1.1.0"}
        root = {key: root[key] for key in ("version", "attributes", "objects") if key in root}
    return root


def _incoming(add: Mapping[str, np.ndarray] | File, options: WriteOptions) -> list[OutgoingTensor]:
    if isinstance(add, File):
        return outgoing(add, f"ztensor:wire={options.wire},flavour={options.flavour}")
    return [_array(name, array, options) for name, array in add.items()]


def _array(name: str, array: np.ndarray, options: WriteOptions) -> OutgoingTensor:
    dtype = dtypes.from_numpy(array.dtype)
    if dtypes.bits(dtype) < 8:
        raise TensorError("arrays of this dtype are not added", tensor=name, found=dtype, code="dtype")
    spec = TensorSpec(name=name, shape=array.shape, dtype=dtype)
    origin = Encoding(codec=DENSE, parts={"data": Part(dtype=dtype, shape=array.shape)})
    encoding = (second_writer if options.wire == "2" else writer).accepts(spec, origin, options)
    if isinstance(encoding, Refusal):
        raise TensorError(encoding.why, tensor=name, code=encoding.code)
    data = array.astype(dtypes.to_numpy(dtype), copy=False).tobytes()
    return OutgoingTensor(evolve(spec, encodings=(encoding,)), {"data": Stream(encoding.parts["data"], lambda: [data])})


def _change(
    root: Root, manifest: Manifest, source: Source, remove: tuple[str, ...], attributes: Mapping[str, Any],
    limits: Limits,
) -> list[OutgoingTensor]:  # fmt: skip
    """Change the decoded manifest in place; the new `squish.meta` where metadata is kept there."""
    if not second_writer.storable(attributes):
        raise FormatError("an attribute is of a kind that zTensor does not have", code="attributes")
    objects, record = root["objects"], manifest.records.get(sidecar.NAME)
    metadata = sidecar.restore(manifest.as_first(record), source, limits) if record else None
    restored = None if isinstance(metadata, Problem) else metadata
    for name in remove:
        if name not in objects or (restored and name == sidecar.NAME):
            raise TensorError("is not in the file, so it cannot be removed", tensor=name, code="name")
        del objects[name]
    old = root.pop("attributes", None) or {}
    meta = {key: value for key, value in old.items() if key not in attributes}
    new = {key: value for key, value in attributes.items() if value is not None}
    if meta | (new if restored is None else {}):
        root["attributes"] = meta | (new if restored is None else {})
    if restored is None or not attributes:
        return []
    # What `squish.meta` says comes before the attributes, so it is changed there.
    typed, assets = restored
    typed = {**{key: value for key, value in typed.items() if key not in attributes}, **new}
    del objects[sidecar.NAME]
    return [sidecar.outgoing(typed, {name: bytes(part.data or b"") for name, part in assets.items()})]


def _rewrite(
    lock: LockedFile, source: Source, root: Root, more: Sequence[OutgoingTensor], options: WriteOptions
) -> None:
    placement = writer.Placement(options.compatible, root["objects"])
    components = [
        (part["offset"], part["length"], name, part)
        for name, record in root["objects"].items()
        for part in record["components"].values()
    ]
    moved: dict[tuple[int, int], int] = {}
    with atomic_file(lock.path) as sink:
        sink.write(MAGIC)
        for offset, length, name, part in sorted(components, key=lambda item: item[:3]):
            if (offset, length) not in moved:
                moved[offset, length] = accept.pad(sink, placement.start(sink.tell(), name, length))
                for start in range(0, length, 1 << 22):
                    sink.write(source.view(offset + start, min(1 << 22, length - start)))
            part["offset"] = moved[offset, length]
        writer.append(sink, placement, more, options)
        root["objects"] = dict(sorted(placement.objects.items()))
        writer.close(sink, root)
        lock.check()
    lock.notes += sink.notes
