"""Writes UQFF: numbered shards of layers, `residual.safetensors`, the model's other files and a report."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from squish_safetensors.api import (
    DTYPE_ORDER,
    dropped_declarations,
    dropped_non_text,
    dump_header,
    parse_size,
    text_metadata,
    without_declarations,
)

from squish_core.api import (
    ErrorCode,
    FormatError,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Sink,
    SquishError,
    TensorSpec,
    WritePlan,
    dropped_assets,
    dropped_metadata,
    load_json,
)

from .. import tables
from ..read.names import missing_size, name_layers, numbers_of
from ..read.report import make_report
from ..read.shards import ASSETS, CONFIG, REPORT, RESIDUAL
from .accept import Version, dotted
from .layers import Entry, Layer, Streams, blob_of, dense_entry, layers_of, raw, tensors_of

NAME, MAX_SHARD_SIZE, VERSION = "name", "max_shard_size", "version"
PLACES = "places"
"""In the options of an edit: JSON of the number of each tensor's shard."""
NEWEST = dotted((*tables.NEWEST, 0))
LEGACY = {dotted(version): version for version in tables.WRITER_LEGACY}
_HEAD = "lm_head.weight"
_TIED = f"the tied embeddings are also stored as {_HEAD}, the first layer of 0.x"
_NUMBERED = "layers are named by number because there is no config.json; add one with --assets DIR"


@frozen
class PlannedFile:
    """An outgoing file: its name, its tensors in data order, and its header."""

    name: str
    entries: tuple[Entry, ...]
    header: bytes


def legacy_version(options: Options) -> Version | None:
    """Return the 0.x version that the options request, None for 1.x; FormatError for one that is not written."""
    text = options.get(VERSION, NEWEST)
    if text != NEWEST and text not in LEGACY:
        raise FormatError(
            "cannot write this UQFF version",
            expected=" or ".join((NEWEST, *LEGACY)),
            found=text,
            code=ErrorCode.OPTION,
        )
    version = LEGACY.get(text)
    if version and version < tables.FIRST_SHARDED and MAX_SHARD_SIZE in options:
        raise FormatError(
            f"UQFF {text} has no shards",
            expected=f"no {MAX_SHARD_SIZE}, or a later version",
            found=f"{MAX_SHARD_SIZE}={options[MAX_SHARD_SIZE]}",
            code=ErrorCode.OPTION,
        )
    return version


def plan_file(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
) -> WritePlan:
    """State the dropped metadata and assets, stacked layers and notes."""
    legacy = legacy_version(options)
    layers, rest = layers_of(specs, stack=not legacy)
    data = assets[CONFIG].data if CONFIG in assets else None
    config = None if data is None else bytes(data)
    dropped = (
        *(dropped_metadata(meta) if legacy else dropped_non_text(meta)),
        *dropped_assets(name for name in assets if name not in ASSETS),
        *(dropped_declarations(_config(config)) if config is not None else ()),
    )
    if legacy:
        numbered = number_layers(layers, rest, config, legacy)
        tied = any(layer.key == "lm_head" and layer.spec.name != _HEAD for layer in numbered.values())
        return WritePlan(dropped=dropped, notes=(_TIED,) if tied else ())
    notes = (_NUMBERED,) if any(layer.key.isdigit() for layer in layers) else ()
    stacks = {layer.spec.name: layer.owners for layer in layers if layer.spec.name not in layer.owners}
    return WritePlan(dropped=dropped, notes=notes, stacks=stacks)


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: Options,
) -> None:
    """Write all files of the folder, with the report last."""
    legacy = legacy_version(options)
    streams = {tensor.spec.name: tensor.parts for tensor in tensors}
    layers, rest = layers_of([tensor.spec for tensor in tensors], stack=not legacy)
    if legacy:
        files = plan_legacy(number_layers(layers, rest, assets.get(CONFIG), legacy), rest, options, legacy)
    else:
        files = plan(layers, rest, meta, options)
    for file in files:
        with sink.member(file.name) as member:
            member.write(file.header)
            for entry in file.entries:
                _write_entry(member, entry, streams)
    for name in _assets_to_write(assets):
        with sink.member(name) as member:
            member.write(_own_config(assets[name]) if name == CONFIG else assets[name])
    if not legacy:
        with sink.member(REPORT) as member:
            member.write(_report(layers, files))


def plan(
    layers: Sequence[Layer], rest: Sequence[TensorSpec], meta: Mapping[str, Any], options: Options
) -> list[PlannedFile]:
    """Plan the files of 1.2: shards of at most `max_shard_size` tensor bytes, then the residual."""
    version = [
        Entry(f"uqff.version.{level}", "u32", (), (raw(struct.pack("<I", number)),))
        for level, number in zip(("major", "minor", "patch"), (*tables.NEWEST, 0))
    ]
    return _files(version, [(layer, tensors_of(layer)) for layer in layers], rest, _texts(meta), options)


def plan_legacy(
    layers: Mapping[int, Layer], rest: Sequence[TensorSpec], options: Options, version: Version
) -> list[PlannedFile]:
    """Plan the files of 0.x: numbered blobs, then the residual. Before 0.1.3 there is one file, without a number."""
    blobs = [(layer, [blob_of(layer, number, version)]) for number, layer in layers.items()]
    return _files([], blobs, rest, {}, options, is_sharded=version >= tables.FIRST_SHARDED)


def number_layers(
    layers: Sequence[Layer], rest: Sequence[TensorSpec], raw_config: bytes | None, version: Version
) -> dict[int, Layer]:
    """Return the layers by their number in 0.x, from the source or the architecture."""
    text = dotted(version)
    config = _config(raw_config or b"{}")
    numbers = {layer.key: layer.spec.attrs.get("uqff.index") for layer in layers}
    if None in numbers.values():
        numbers = dict(numbers_of(config))
    unknown = [layer.key for layer in layers if layer.key not in numbers]
    if unknown:
        if key := missing_size(config):
            raise FormatError(
                "is missing, and 0.1.3 numbers the layers by it",
                part=f"{CONFIG} {key}",
                code="names",
                hint=f"Add {key} to {CONFIG}, or write 1.2.0, which stores names.",
            )
        raise FormatError(
            "not in the layer order of its architecture",
            tensor=unknown[0],
            code="names",
            found=f"{len(unknown)} such layers",
            hint=f"{text} needs a config.json of a known architecture (--assets DIR), or a 0.x source.",
        )
    embeddings = next((spec for spec in rest if spec.name == "model.embed_tokens.weight"), None)
    if "lm_head" in numbers and embeddings and all(layer.key != "lm_head" for layer in layers):
        # With tied embeddings, blob 0 holds them.
        layers = [Layer("lm_head", tables.UNQUANT, embeddings, (embeddings.name,)), *layers]
    if not layers:
        raise FormatError(
            f"no layers: {text} stores its version only in layers",
            code="layers",
            expected="matrices under Hugging Face names, such as model.layers.0.self_attn.q_proj.weight",
            hint="Rename the tensors ({option:rename=hf:ARCH}), encode some, or write 1.2.0.",
        )
    numbered = {int(numbers[layer.key] or 0): layer for layer in layers}
    if len(numbered) < len(layers):
        raise FormatError("two layers have the same number", code="names", hint="Write 1.2.0, which stores names.")
    _check_names(numbered, config, text)
    return numbered


def _check_names(layers: Mapping[int, Layer], config: Mapping[str, Any], version: str) -> None:
    """Raise FormatError if a reader would derive another layer name from the number and the config."""
    order, reason = name_layers({number: layer.spec.shape for number, layer in layers.items()}, config, None)
    for number, layer in layers.items():
        name = order[number].name if order else str(number)
        if name != layer.key:
            raise FormatError(
                f"would be read under a different name: {reason}" if reason else "would be read under a different name",
                tensor=layer.spec.name,
                expected=layer.key,
                found=name,
                code="names",
                hint=f"{version} stores no names: add the config.json of this model (--assets DIR), or write 1.2.0.",
            )


def _config(raw: bytes) -> dict[str, Any]:
    try:
        return load_json(raw, CONFIG, Limits())
    except SquishError:
        return {}


def _own_config(raw: bytes) -> bytes:
    """Return a config without the source's quantization keys; unchanged if there are none."""
    config = _config(raw)
    clean = without_declarations(config)
    return raw if clean == config else json.dumps(clean, ensure_ascii=False, indent=2).encode()


def _files(
    first: list[Entry],
    layers: Sequence[tuple[Layer, list[Entry]]],
    rest: Iterable[TensorSpec],
    texts: Mapping[str, str],
    options: Options,
    *,
    is_sharded: bool = True,
) -> list[PlannedFile]:
    if not is_sharded:
        groups = [[*first, *(entry for _, entries in layers for entry in entries)]]
    elif PLACES in options:
        groups = _own_groups(first, layers, json.loads(options[PLACES]))
    else:
        groups = _groups(first, layers, parse_size(options.get(MAX_SHARD_SIZE, "10GiB")))
    stem = options.get(NAME, "model")
    names = [f"{stem}-{number}.uqff" for number in range(len(groups))] if is_sharded else [f"{stem}.uqff"]
    shards = [(name, group, texts if not number else {}) for number, (name, group) in enumerate(zip(names, groups))]
    residual = [dense_entry(spec) for spec in rest]
    return [_plan_one(*each) for each in [*shards, *([(RESIDUAL, residual, {})] if residual else [])]]


def _groups(first: list[Entry], layers: Sequence[tuple[Layer, list[Entry]]], limit: int) -> list[list[Entry]]:
    """Return the entries of each shard, at most `limit` bytes or one entry."""
    groups, nbytes = [first], 0
    for entry in (entry for _, entries in layers for entry in entries):
        if nbytes and nbytes + entry.nbytes > limit:
            groups.append([])
            nbytes = 0
        groups[-1].append(entry)
        nbytes += entry.nbytes
    return groups


def _own_groups(
    first: list[Entry], layers: Sequence[tuple[Layer, list[Entry]]], numbers: Mapping[str, int]
) -> list[list[Entry]]:
    """Return the entries of each shard of an edited model: layers stay in their shards, new ones are in the last."""
    last = max(numbers.values(), default=0)
    groups = [first, *([] for _ in range(last))]
    for layer, entries in layers:
        owner = layer.owners[0] if layer.owners else layer.spec.name
        groups[numbers.get(owner, last)] += entries
    return groups


def _plan_one(name: str, entries: list[Entry], texts: Mapping[str, str]) -> PlannedFile:
    by_alignment = tuple(sorted(entries, key=lambda entry: (-DTYPE_ORDER[entry.dtype], entry.name)))
    return PlannedFile(name, by_alignment, dump_header([entry[:3] for entry in by_alignment], texts))


def _write_entry(sink: Sink, entry: Entry, streams: Mapping[str, Streams]) -> None:
    for piece in entry.pieces:
        if isinstance(piece.data, bytes):
            sink.write(piece.data)
        elif isinstance(piece.data, str):
            streams[piece.owner][piece.data].write_to(sink)
        else:
            sink.write(piece.data(streams[piece.owner]))


def _report(layers: Sequence[Layer], files: Sequence[PlannedFile]) -> bytes:
    return make_report(layers, [file.name for file in files if file.name != RESIDUAL], NEWEST)


def _assets_to_write(assets: Iterable[str]) -> list[str]:
    """Return the assets to write, without the source's report."""
    return [name for name in assets if name in ASSETS and name != REPORT]


def _texts(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the text metadata, with the version of the outgoing file."""
    texts = text_metadata(meta)
    return {**texts, "uqff.version": NEWEST} if "uqff.version" in texts else texts
