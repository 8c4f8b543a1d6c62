"""Writes a directory: arrays, assets, statistics and manifest, then the sentinel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from squish_safetensors.api import is_model_asset

from squish_core.api import OutgoingTensor, Part, Sink, TensorSpec, dtypes, dump_meta

from ..features import LISTING
from ..read import listing
from ..read.dialects import DIALECTS
from ..read.folder import META
from ..read.manifest import PLACE
from ..read.npy import header

FILES = {dialect.label: dialect.files for dialect in DIALECTS}
ROWS = frozenset(FILES) - {"passthrough", "int3 milo", "sqint2"}
STATS = (
    "base_model_dir_name", "quant_mode", "quant_label", "n_quantized", "n_passthrough", "orig_f32_bytes",
    "compressed_bytes", "on_disk_bytes", "compression_ratio", "shards_deleted", "source_bytes_reclaimed", "elapsed_s",
)  # fmt: skip
SAFE_KEY = re.compile(r"[A-Za-z0-9_-]{1,200}")


def write(sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> None:
    """Write the directory."""
    specs = [tensor.spec for tensor in tensors]
    for tensor, key in zip(tensors, keys(spec.name for spec in specs).values()):
        label = tensor.spec.encodings[0].label
        for role, stream in tensor.parts.items():
            with sink.member(f"{key}__{FILES[label][role]}.npy", PLACE) as member:
                member.write(_header(label, role, stream.part))
                stream.write_to(member)
        with sink.member(f"{key}__shape.npy", PLACE) as member:
            member.write(shape_array(tensor.spec.shape))
    for path, data in assets.items():
        if is_model_asset(path):
            folder, _, name = path.rpartition("/")
            with sink.member(name, folder) as member:
                member.write(data)
    files = _files(specs, meta, {path: len(data) for path, data in assets.items()})
    for name, data in (*_described(specs, meta), (LISTING, listing.dump(files))):
        with sink.member(name) as member:
            member.write(data)
    sink.sentinel(".manifest_ready", PLACE)


def keys(names: Iterable[str]) -> dict[str, str]:
    """Return name -> safe key: dots become double underscores; unsafe or duplicate keys get a digest."""
    key_of: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        key = name.replace(".", "__")
        if not SAFE_KEY.fullmatch(key) or key.casefold() in used:
            from hashlib import sha256

            digest = sha256(name.encode()).hexdigest()[:16]
            key = f"{re.sub('[^A-Za-z0-9_-]', '_', key)[:150]}_{digest}"
        used.add(key.casefold())
        key_of[name] = key
    return key_of


def _header(label: str, role: str, part: Part) -> bytes:
    """Return the header of an array in Squish's shape: codes as a matrix, row scales as a vector."""
    shape = part.shape
    if label in ROWS:
        shape = (dtypes.count(shape[:-1]), shape[-1]) if len(shape) > 1 else (1, dtypes.count(shape))
        if label == "int8" and role == "scale" and shape[1] == 1:
            shape = shape[:1]
    return header(part.dtype, shape)


def shape_array(shape: tuple[int, ...]) -> bytes:
    """Return the file with a tensor's logical shape."""
    return header("i64", (len(shape),)) + b"".join(size.to_bytes(8, "little") for size in shape)


def _files(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, int]
) -> dict[str, listing.Listed]:
    """Return all files with their sizes and, of arrays, the bytes that opening reads."""
    files = {}
    for spec, key in zip(specs, keys(spec.name for spec in specs).values()):
        encoding = spec.encodings[0]
        for role, part in encoding.parts.items():
            head = _header(encoding.label, role, part)
            path = f"{PLACE}/{key}__{FILES[encoding.label][role]}.npy"
            files[path] = listing.Listed(len(head) + part.nbytes, head)
        shape = shape_array(spec.shape)
        files[f"{PLACE}/{key}__shape.npy"] = listing.Listed(len(shape), shape)
    files |= {name: listing.Listed(assets[name]) for name in assets if is_model_asset(name)}
    return files | {name: listing.Listed(len(data)) for name, data in _described(specs, meta)}


def _described(specs: Iterable[TensorSpec], meta: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the source's statistics, its other metadata, and the manifest."""
    stats = {key: meta[key] for key in STATS if isinstance(meta.get(key), (str, int, float))}
    if stats:
        yield "stats.json", json.dumps(stats, indent=2).encode()
    if others := {key: value for key, value in meta.items() if key not in stats}:
        yield META, dump_meta(others, {})
    yield "manifest.json", json.dumps(keys(spec.name for spec in specs), indent=2).encode()
