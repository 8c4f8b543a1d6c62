"""Writing UQFF: numbered shards of layers, `residual.safetensors`, the model's other files and a report."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from squish_safetensors.api import DTYPE_ORDER, dropped_non_text, dump_header, parse_size, text_metadata

from squish_core.api import (
    FormatError,
    Limits,
    Options,
    OutgoingTensor,
    Sink,
    SquishError,
    TensorSpec,
    WritePlan,
    dropped_assets,
    dropped_metadata,
    load_json,
)

from .. import tables
from ..read.names import numbers_of
from ..read.report import make_report
from ..read.shards import ASSETS, CONFIG, REPORT, RESIDUAL
from .layers import Entry, Layer, Streams, blob_of, layers_of, plain, raw, tensors_of

NAME, MAX_SHARD_SIZE, VERSION = "name", "max_shard_size", "version"
NEWEST = ".".join(map(str, (*tables.NEWEST, 0)))
LEGACY = ".".join(map(str, tables.WRITTEN_LEGACY))
_NUMBERED = "layers are named by their numbers, because no config.json names them; add one with --assets DIR"


@frozen
class Planned:
    """A file to write: its name, its tensors in the order of their data, its header."""

    name: str
    entries: tuple[Entry, ...]
    header: bytes

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + sum(entry.nbytes for entry in self.entries)


def is_legacy(options: Options) -> bool:
    """Whether 0.1.3 is asked for; FormatError for a version that is not written."""
    version = options.get(VERSION, NEWEST)
    if version not in (NEWEST, LEGACY):
        raise FormatError(
            "this version of UQFF is not written", expected=f"{NEWEST} or {LEGACY}", found=version, code="option"
        )
    return version == LEGACY


def plan_file(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, int], options: Options
) -> WritePlan:
    """Bytes of all files, exact unless the config states another quantisation, and what would be left behind.

    The size of 0.1.3 is not known before the config is read.
    """
    dropped = dropped_assets(name for name in assets if name not in ASSETS)
    if is_legacy(options):
        return WritePlan(size=None, dropped=(*dropped_metadata(meta), *dropped))
    layers, rest = layers_of(specs, stack=True)
    notes = (_NUMBERED,) if any(layer.key.isdigit() for layer in layers) else ()
    files = plan(layers, rest, meta, options)
    size = sum(file.size for file in files) + len(_report(layers, files)) + sum(assets[name] for name in _kept(assets))
    stacks = {layer.spec.name: layer.owners for layer in layers if layer.spec.name not in layer.owners}
    return WritePlan(size=size, dropped=(*dropped_non_text(meta), *dropped), notes=notes, stacks=stacks)


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: Options,
) -> None:
    """Write all files of the folder, the report last."""
    legacy = is_legacy(options)
    streams = {tensor.spec.name: tensor.parts for tensor in tensors}
    layers, rest = layers_of([tensor.spec for tensor in tensors], stack=not legacy)
    files = plan_legacy(layers, rest, assets, options) if legacy else plan(layers, rest, meta, options)
    for file in files:
        with sink.member(file.name) as member:
            member.write(file.header)
            for entry in file.entries:
                _write_entry(member, entry, streams)
    for name in _kept(assets):
        with sink.member(name) as member:
            member.write(_own_config(assets[name]) if name == CONFIG else assets[name])
    if not legacy:
        with sink.member(REPORT) as member:
            member.write(_report(layers, files))


def plan(
    layers: Sequence[Layer], rest: Sequence[TensorSpec], meta: Mapping[str, Any], options: Options
) -> list[Planned]:
    """The files of 1.2: shards of at most `max_shard_size` bytes of tensors, then what is no layer."""
    version = [
        Entry(f"uqff.version.{level}", "u32", (), (raw(struct.pack("<I", number)),))
        for level, number in zip(("major", "minor", "patch"), (*tables.NEWEST, 0))
    ]
    entries = [entry for layer in layers for entry in tensors_of(layer)]
    return _files(version, entries, rest, _texts(meta), options)


def plan_legacy(
    layers: Sequence[Layer], rest: Sequence[TensorSpec], assets: Mapping[str, bytes], options: Options
) -> list[Planned]:
    """The files of 0.1.3: blobs under the numbers that the source or the architecture gives them."""
    numbers = {layer.key: layer.spec.attrs.get("uqff.index") for layer in layers}
    if None in numbers.values():
        numbers = dict(_numbers(assets))
    unknown = [layer.key for layer in layers if layer.key not in numbers]
    if unknown:
        raise FormatError(
            "has no number in the layer order of its architecture", tensor=unknown[0], code="names",
            found=f"{len(unknown)} such layers",
            hint="0.1.3 needs a config.json of a known architecture (--assets DIR), or a source of 0.x.",
        )  # fmt: skip
    embeddings = next((spec for spec in rest if spec.name == "model.embed_tokens.weight"), None)
    if "lm_head" in numbers and embeddings and all(layer.key != "lm_head" for layer in layers):
        # Where the two are tied, blob 0 holds the embeddings.
        layers = [Layer("lm_head", tables.UNQUANT, embeddings, (embeddings.name,)), *layers]
    if not layers:
        raise FormatError(
            "has no layer, and a file of 0.1.3 states its version in its layers only", code="layers",
            expected="matrices with the names of Hugging Face, such as model.layers.0.self_attn.q_proj.weight",
            hint="Rename the tensors (names=hf:ARCH), encode some, or write 1.2.0.",
        )  # fmt: skip
    entries = [blob_of(layer, int(numbers[layer.key] or 0)) for layer in layers]
    return _files([], entries, rest, {}, options)


def _numbers(assets: Mapping[str, bytes]) -> dict[str, int]:
    return numbers_of(_config(assets.get(CONFIG, b"{}")))


def _config(raw: bytes) -> dict[str, Any]:
    try:
        return load_json(raw, CONFIG, Limits())
    except SquishError:
        return {}


def _own_config(raw: bytes) -> bytes:
    """A config without what it says of the source's quantisation, as it is where it says nothing."""
    config = _config(raw)
    kept = {key: value for key, value in config.items() if key not in ("quantization", "quantization_config")}
    return raw if kept == config else json.dumps(kept, ensure_ascii=False, indent=2).encode()


def _files(
    first: list[Entry], entries: Iterable[Entry], rest: Iterable[TensorSpec], texts: Mapping[str, str], options: Options
) -> list[Planned]:
    limit = parse_size(options.get(MAX_SHARD_SIZE, "10GiB"))
    groups, held = [first], 0
    for entry in entries:
        if held and held + entry.nbytes > limit:
            groups.append([])
            held = 0
        groups[-1].append(entry)
        held += entry.nbytes
    stem = options.get(NAME, "model")
    named = [(f"{stem}-{number}.uqff", group, texts if not number else {}) for number, group in enumerate(groups)]
    residual = [plain(spec) for spec in rest]
    return [_planned(*each) for each in [*named, *([(RESIDUAL, residual, {})] if residual else [])]]


def _planned(name: str, entries: list[Entry], texts: Mapping[str, str]) -> Planned:
    ordered = tuple(sorted(entries, key=lambda entry: (-DTYPE_ORDER[entry.dtype], entry.name)))
    return Planned(name, ordered, dump_header([entry[:3] for entry in ordered], texts))


def _write_entry(sink: Sink, entry: Entry, streams: Mapping[str, Streams]) -> None:
    for piece in entry.pieces:
        if isinstance(piece.data, bytes):
            sink.write(piece.data)
        elif isinstance(piece.data, str):
            streams[piece.owner][piece.data].write_to(sink)
        else:
            sink.write(piece.data(streams[piece.owner]))


def _report(layers: Sequence[Layer], files: Sequence[Planned]) -> bytes:
    return make_report(layers, [file.name for file in files if file.name != RESIDUAL], NEWEST)


def _kept(assets: Iterable[str]) -> list[str]:
    """The assets that have a place; the report is made anew."""
    return [name for name in assets if name in ASSETS and name != REPORT]


def _texts(meta: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that is text; a version that the source stated is now the one that is written."""
    found = text_metadata(meta)
    return {**found, "uqff.version": NEWEST} if "uqff.version" in found else found
