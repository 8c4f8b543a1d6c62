"""Editing a file: v2 is appended to, 1.x is rewritten to a temporary file that replaces it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve
from squish_convert.api import LockedFile, appended_file, locked_file, outgoing

from squish_core.api import (
    DENSE,
    Encoding,
    File,
    FormatError,
    Limits,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Source,
    Stream,
    TensorError,
    TensorSpec,
    Typed,
    UnsupportedVersionError,
    atomic_file,
    dtypes,
    open_source,
)

from . import accept, sidecar
from .options import ALIGNMENT, MOST, WriteOptions
from .records import Manifest
from .v1 import cbor, writer
from .v1.early import from_1_0
from .v1.manifest import read_manifest
from .v2 import deterministic, footer
from .v2 import writer as v2_writer
from .wire import MAGIC, Location, locate

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
    """Add and remove tensors of a zTensor file, and change its metadata.

    Removal comes first, so that one call can replace a tensor. A v2 file is appended to and synced; on failure it is
    truncated to its old size. A 1.x file is rewritten atomically, without the removed bytes; 1.0 becomes 1.1.

    Parameters
    ----------
    path
        The file to edit.
    add
        Arrays by name, or an open file whose tensors are added with their codes unchanged.
    remove
        Names of tensors to remove.
    attributes
        Metadata to set; None deletes a key.
    limits
        Limits for reading the file.

    Raises
    ------
    TensorError
        A name to remove does not exist, or one to add exists already.
    FormatError
        The file cannot store the tensors or metadata. Code `locked`: another edit of the file did not end within 10 s.

    Examples
    --------
    >>> import numpy as np, squish_core as squish, tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.zt")
    ...     _ = squish.save(path, {"a": np.zeros(3, np.float32)}, format="ztensor:wire=2")
    ...     edit(path, add={"b": np.ones(2, np.float32)}, remove=["a"], attributes={"license": "MIT"})
    ...     with squish.open(path) as file:
    ...         list(file), file.metadata
    (['b'], {'license': 'MIT'})
    """
    with locked_file(Path(path)) as lock:
        change(lock, add=add, remove=remove, attributes=attributes, limits=limits)


def change(
    lock: LockedFile,
    *,
    add: Mapping[str, np.ndarray] | File | None = None,
    remove: Iterable[str] = (),
    attributes: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    assets: Mapping[str, bytes] | None = None,
    limits: Limits | None = None,
) -> None:
    """Change a locked file like `edit`, and add notes for the user to `lock.notes`.

    `rename`: old names -> new ones, after the removal. `assets`: files of the model, by name, that change.
    """
    limits = limits or Limits()
    source = open_source(lock.path)
    try:
        location = locate(source, limits)
        if location.wire == "0.1":
            raise UnsupportedVersionError(
                "zTensor 0.1 files cannot be edited",
                file=source.name,
                expected="1.0, 1.1, 1.2 or 2",
                found=location.wire,
                code="version",
                hint="Convert it: `squish convert OLD NEW --to ztensor:wire=2`.",
            )
        manifest = read_manifest(source, limits)  # raises if the file is damaged
        write_options = _write_options(manifest)
        root = _root(source, location, limits)
        metadata = _change(root, manifest, source, tuple(remove), attributes or {}, assets or {}, limits)
        objects, names = root["objects"], rename or {}
        root["objects"] = {names.get(name, name): record for name, record in objects.items()}
        tensors = [*_tensors_to_add(add or {}, write_options), *metadata]
        for item in tensors:
            if item.spec.name in root["objects"]:
                raise TensorError(
                    "a tensor of this name exists already",
                    tensor=item.spec.name,
                    code="name",
                    hint="Remove it in the same edit to replace it.",
                )
        if location.wire == "2":
            with appended_file(lock) as sink:
                v2_writer.append(sink, root, tensors, write_options)
        else:
            _rewrite(lock, source, root, tensors, write_options)
    finally:
        source.close()


def _write_options(manifest: Manifest) -> WriteOptions:
    """Return options that add tensors like the existing ones, with the alignment that all of these have."""
    offsets = [offset for file, offset, length, _ in manifest.extents if file == 0 and length]
    least = footer.ALIGNMENT if manifest.version == "2" else ALIGNMENT
    shared = min((offset & -offset for offset in offsets), default=least)
    alignment = str(min(max(shared, least), MOST))
    if manifest.version == "2":
        return WriteOptions(wire="2", flavor="aligned", alignment=alignment)
    flavor = "compatible" if manifest.version.startswith("1.2") else "literal"
    return WriteOptions(flavor=flavor, alignment=alignment)


def _root(source: Source, location: Location, limits: Limits) -> Root:
    if not location.length:
        return {"objects": {}}
    decode = deterministic.decode if location.wire == "2" else cbor.decode
    root: Root = decode(source.read(location.offset, location.length), location.offset, limits)
    if location.wire == "1.0":
        root = {**from_1_0(root, location.offset), "version": "1.1.0"}
        root = {key: root[key] for key in ("version", "attributes", "objects") if key in root}
    return root


def _tensors_to_add(add: Mapping[str, np.ndarray] | File, options: WriteOptions) -> list[OutgoingTensor]:
    if isinstance(add, File):
        return outgoing(add, f"ztensor:wire={options.wire},flavor={options.flavor}")
    return [_array(name, array, options) for name, array in add.items()]


def _array(name: str, array: np.ndarray, options: WriteOptions) -> OutgoingTensor:
    dtype = dtypes.from_numpy(array.dtype)
    if dtypes.bits(dtype) < 8:
        raise TensorError("unsupported dtype of an array to add", tensor=name, found=dtype, code="dtype")
    spec = TensorSpec(name=name, shape=array.shape, dtype=dtype)
    origin = Encoding(codec=DENSE, parts={"data": Part(dtype=dtype, shape=array.shape)})
    encoding = (v2_writer if options.wire == "2" else writer).accepts(spec, origin, options)
    if isinstance(encoding, Refusal):
        raise TensorError(encoding.why, tensor=name, code=encoding.code)
    data = array.astype(dtypes.to_numpy(dtype), copy=False).tobytes()
    return OutgoingTensor(evolve(spec, encodings=(encoding,)), {"data": Stream(encoding.parts["data"], lambda: [data])})


def _change(
    root: Root,
    manifest: Manifest,
    source: Source,
    remove: tuple[str, ...],
    attributes: Mapping[str, Any],
    files: Mapping[str, bytes],
    limits: Limits,
) -> list[OutgoingTensor]:
    """Change the decoded manifest in place; return the new `squish.meta` if the file has its metadata there."""
    values = {key: value.value if isinstance(value, Typed) else value for key, value in attributes.items()}
    if not v2_writer.storable(values):
        raise FormatError("zTensor cannot store an attribute of this type", code="attributes")
    objects, record = root["objects"], manifest.records.get(sidecar.NAME)
    metadata = sidecar.restore(manifest.as_v1(record), source, limits) if record else None
    restored = None if isinstance(metadata, Problem) else metadata
    for name in remove:
        if name not in objects or (restored and name == sidecar.NAME):
            raise TensorError("cannot remove: the file has no tensor of this name", tensor=name, code="name")
        del objects[name]
    old = root.pop("attributes", None) or {}
    meta = {key: value for key, value in old.items() if key not in attributes}
    new = {key: value for key, value in attributes.items() if value is not None}
    if restored is None:
        meta |= {key: values[key] for key in new}
    if meta:
        root["attributes"] = meta
    if restored is None or not (attributes or files):
        return []
    # `squish.meta` has priority over the attributes, so change it there.
    typed, assets = restored
    typed = {**{key: value for key, value in typed.items() if key not in attributes}, **new}
    del objects[sidecar.NAME]
    return [sidecar.outgoing(typed, {name: bytes(part.data or b"") for name, part in assets.items()} | {**files})]


def _rewrite(
    lock: LockedFile, source: Source, root: Root, tensors: Sequence[OutgoingTensor], options: WriteOptions
) -> None:
    placement = writer.Placement(options.compatible, root["objects"], alignment=options.step)
    components = [
        (part["offset"], part["length"], name, part)
        for name, record in root["objects"].items()
        for part in record["components"].values()
    ]
    new_offsets: dict[tuple[int, int], int] = {}
    with atomic_file(lock.path) as sink:
        sink.write(MAGIC)
        for offset, length, name, part in sorted(components, key=lambda item: item[:3]):
            if (offset, length) not in new_offsets:
                new_offsets[offset, length] = accept.pad(sink, placement.start(sink.tell(), name, length))
                for start in range(0, length, 1 << 22):
                    sink.write(source.view(offset + start, min(1 << 22, length - start)))
            part["offset"] = new_offsets[offset, length]
        writer.append(sink, placement, tensors, options)
        root["objects"] = dict(sorted(placement.objects.items()))
        writer.close(sink, root)
        lock.check()
        source.close()
        lock.prepare_rename()
    lock.notes += sink.notes
