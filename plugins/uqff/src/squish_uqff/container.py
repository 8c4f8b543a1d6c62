"""The refinement: from the tensors of safetensors files to the layers of a UQFF model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from squish_core.api import (
    Encoding,
    FileRef,
    FormatError,
    Index,
    Layout,
    Limits,
    Options,
    Outgoing,
    Part,
    Problem,
    Refinement,
    Refusal,
    Segment,
    Sink,
    Source,
    SquishError,
    TensorSpec,
)
from squish_uqff import legacy, names, shards, tables, writer
from squish_uqff.layers import Layer, make_broken
from squish_uqff.named import MARK, VERSION, VERSION_KEYS, read_layer, read_version
from squish_uqff.shards import Shard

Files = list[Shard]


class Uqff(Refinement):
    """UQFF in both generations. It is declared by `uqff.version.major`, or by the file's suffix; legacy blobs under
    another suffix must all be numbered and begin with a version of 0.x."""

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        name, members = index.files[0].name, source.members()
        if not (name.endswith(shards.SUFFIX) or VERSION_KEYS[0] in index.tensors or _is_legacy(index.tensors, source)):
            return None
        if source.is_dir:
            name = shards.the_set(source, members)
        main = Shard(source.member(name) if source.is_dir else source, index.tensors)
        report, problems = shards.read_json(source, shards.REPORT, members)
        found = _open_set(main, name, members, report)
        stored = _merged(found)
        sources = [shard.source for shard in found]
        numbered = _numbered(stored)
        if numbered:
            version = _legacy_version(numbered, sources)
            tensors, more = _read_legacy(numbered, sources, source, members)
        else:
            version = read_version(
                {key: _part(stored[key]) for key in VERSION_KEYS if key in stored}, _reader(sources)
            )  # fmt: skip
            tensors, more = _read_named(stored, sources)
        problems += more
        if shards.RESIDUAL in members and name != shards.RESIDUAL:
            residual = shards.open_shard(source, shards.RESIDUAL, len(sources))
            sources.append(residual.source)
            problems += _add(tensors, residual.tensors.values())
        beside = [asset for asset in shards.ASSETS if asset in members]
        assets = [source.member(asset) for asset in beside]
        return Index(
            format="uqff",
            version=".".join(map(str, version)),
            files=tuple(FileRef(file.filename, file.size) for file in (*sources, *assets)),
            tensors=tensors,
            meta=index.meta,
            assets={
                file.filename: Part(dtype="u8", shape=(file.size,), segments=(Segment(number, 0, file.size),))
                for number, file in enumerate(assets, len(sources))
            },
            problems=(*index.problems, *problems),
            attrs={"uqff.shards": len(found)},
        )  # fmt: skip

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return writer.accepts(spec, encoding)

    def layout(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> Layout:
        return writer.layout(specs, meta, {name: part.nbytes for name, part in assets.items()}, options)

    def writes_folder(self, options: Options) -> bool:
        return True

    def write(
        self,
        sink: Sink,
        tensors: Sequence[Outgoing],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, meta, assets, options)


def _is_legacy(tensors: Mapping[str, TensorSpec], source: Source) -> bool:
    """Whether a file without the suffix is legacy UQFF: all names are numbers, and a blob begins like one."""
    return not source.is_dir and any(_begins(spec, source) for spec in _numbered(tensors).values())


def _begins(spec: TensorSpec, source: Source) -> bool:
    try:
        return _is_blob(spec) and legacy.begins(source, _segment(spec))
    except SquishError:
        return False


def _open_set(main: Shard, name: str, members: Iterable[str], report: Mapping[str, Any]) -> Files:
    """The main file, then the other shards of its set. Before 0.1.3 a number in the name meant nothing."""
    numbered = _numbered(main.tensors)
    if numbered and not report and _legacy_version(numbered, [main.source]) < tables.FIRST_SHARDED:
        return [main]
    others = [shard for shard in shards.shard_names(name, tuple(members), report) if shard != name]
    return [main, *(shards.open_shard(main.source, shard, file) for file, shard in enumerate(others, 1))]


def _merged(found: Files) -> dict[str, TensorSpec]:
    """The tensors of all shards; only version keys may be repeated, and must then agree."""
    merged: dict[str, TensorSpec] = {}
    holder: dict[str, Shard] = {}
    read = _reader([shard.source for shard in found])
    for shard in found:
        for name, spec in shard.tensors.items():
            if name not in merged:
                merged[name], holder[name] = spec, shard
            elif name not in VERSION_KEYS:
                raise FormatError(
                    "lies in two shards", file=shard.source.name, tensor=name, expected=holder[name].source.filename,
                    found=shard.source.filename, code="duplicate", hint="The shards belong to different models.",
                )  # fmt: skip
            elif read(_part(spec), name) != read(_part(merged[name]), name):
                raise FormatError(
                    "the shards state different versions", file=shard.source.name, tensor=name, code="version",
                    hint="The shards belong to different models.",
                )  # fmt: skip
    return merged


def _read_legacy(
    blobs: Mapping[int, TensorSpec], sources: list[Source], beside: Source, members: Iterable[str]
) -> tuple[dict[str, TensorSpec], list[Problem]]:
    """The layers of numbered blobs, under their names where the config gives them and the shapes agree."""
    config, problems = shards.read_json(beside, shards.CONFIG, tuple(members))
    layers = {number: _blob_layer(str(number), spec, sources) for number, spec in blobs.items()}
    order, reason = _names(layers, config)
    if reason:
        problems.append(Problem(code="names", severity="note", where="", message=reason))
    absent = [layer.name for number, layer in enumerate(order) if number not in layers]
    if absent:
        message = f"is not in the files, nor may be layers after it ({len(absent)} absent); is a shard missing?"
        problems.append(Problem(code="absent", severity="warning", where=absent[0], message=message))
    tensors: dict[str, TensorSpec] = {}
    for number, layer in layers.items():
        named = _renamed(layer, str(number), order[number].name) if order else layer
        problems += [*named.problems, *_add(tensors, named.tensors)]
    return tensors, problems


def _legacy_version(blobs: Mapping[int, TensorSpec], sources: list[Source]) -> legacy.Version:
    """The version of the first blob that states one; the first refusal when none does."""
    refusal = None
    for spec in blobs.values():
        try:
            return legacy.blob_version(sources[_segment(spec).file], _segment(spec))
        except SquishError as error:
            refusal = refusal or error.within(tensor=spec.name)
    raise refusal or FormatError("holds no blob", code="empty")


def _blob_layer(name: str, spec: TensorSpec, sources: list[Source]) -> Layer:
    segment = _segment(spec)
    try:
        if not _is_blob(spec):
            raise FormatError(
                "is no blob", expected="u8 of rank 1", found=f"{spec.dtype} {list(spec.shape)}", code="blob"
            )
        return legacy.read_blob(name, sources[segment.file], segment)
    except SquishError as error:
        return make_broken(f"{name}.weight", error, {"blob": _part(spec)})


def _names(layers: Mapping[int, Layer], config: Mapping[str, Any]) -> tuple[list[names.Expected], str]:
    """The names of all layers, or none and why."""
    if not config:
        return [], "0.x files hold no layer names; put the model's config.json into the folder to have them"
    if not names.known(config):
        return [], f"the layer order of the architecture {str(config.get('model_type'))[:40]!r} is not known"
    last = max(layers)
    order = names.layer_order(config, last + 2) or []  # one more, to see whether the file ends too early
    if len(order) <= last:
        return [], f"config.json does not fit: it describes {len(order)} layers, and the file has number {last}"
    for number, layer in layers.items():
        if layer.weight.problem is None and layer.weight.shape != order[number].shape:
            return [], (
                f"config.json does not fit: layer {number} would be {order[number].name} of shape "
                f"{list(order[number].shape)}, and has {list(layer.weight.shape)}"
            )  # fmt: skip
    return order, ""


def _renamed(layer: Layer, number: str, name: str) -> Layer:
    def new(old: str) -> str:
        return name + old.removeprefix(number)

    def spec(old: TensorSpec) -> TensorSpec:
        return evolve(old, name=new(old.name), attrs={**old.attrs, "uqff.index": int(number)})

    problems = tuple(evolve(problem, where=new(problem.where)) for problem in layer.problems)
    return Layer(spec(layer.weight), spec(layer.bias) if layer.bias else None, problems)


def _read_named(stored: Mapping[str, TensorSpec], sources: list[Source]) -> tuple[dict[str, TensorSpec], list[Problem]]:
    """The layers of 1.x in the order of their weights, then what belongs to none, as it is."""
    keys = [name.removesuffix(MARK) for name in stored if name.endswith(MARK)]
    groups: dict[str, dict[str, Part]] = {key: {} for key in keys}
    rest = []
    for name, spec in stored.items():
        key, field = _split(name)
        if field and key in groups:
            groups[key][field] = _part(spec)
        elif not name.startswith(VERSION):
            rest.append(spec)
    tensors: dict[str, TensorSpec] = {}
    problems: list[Problem] = []
    read = _reader(sources)
    for key, group in groups.items():
        layer = read_layer(key, group, read)
        problems += [*layer.problems, *_add(tensors, layer.tensors)]
    for spec in rest:
        message = "belongs to no layer: there is no .weight.format for it"
        problems.append(Problem(code="key", severity="warning", where=spec.name, message=message))
    return tensors, problems + _add(tensors, rest)


def _split(name: str) -> tuple[str, str]:
    """Layer key and field of a stored name."""
    key, dot, last = name.rpartition(".weight.")
    if dot:
        return key, f"weight.{last}"
    key, _, last = name.rpartition(".")
    return (key, last) if last in ("weight", "bias") else (name, "")


def _add(tensors: dict[str, TensorSpec], more: Iterable[TensorSpec]) -> list[Problem]:
    """Add tensors under names that are free; the others are a finding each."""
    problems = []
    for spec in more:
        if tensors.setdefault(spec.name, spec) is not spec:
            message = "a second tensor of this name is left out"
            problems.append(Problem(code="duplicate", severity="warning", where=spec.name, message=message))
    return problems


def _numbered(tensors: Mapping[str, TensorSpec]) -> dict[int, TensorSpec]:
    """The blobs of a legacy file by number, in order; {} when it is none."""
    if not tensors or not all(map(_is_number, tensors)):
        return {}
    return {number: tensors[str(number)] for number in sorted(map(int, tensors))}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10 and (name == "0" or name[0] != "0")


def _is_blob(spec: TensorSpec) -> bool:
    return spec.dtype == "u8" and len(spec.shape) == 1


def _parts(spec: TensorSpec) -> Iterator[Part]:
    for encoding in spec.encodings:
        yield from encoding.parts.values()
    yield from spec.extras.values()


def _part(spec: TensorSpec) -> Part:
    return next(_parts(spec))


def _segment(spec: TensorSpec) -> Segment:
    return _part(spec).segments[0]


def _reader(sources: list[Source]) -> Any:
    """A function that reads a small part."""

    def read(part: Part, what: str) -> bytes:
        segment = part.segments[0]
        return sources[segment.file].read(segment.offset, segment.length, what)

    return read
