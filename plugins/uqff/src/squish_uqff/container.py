"""The refinement: from the tensors of safetensors files to the layers of a UQFF model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_safetensors.api import QUANTIZATION_KEYS

from squish_core.api import (
    CodecSpec,
    CodeLayout,
    Encoding,
    ErrorCode,
    FileRef,
    FormatError,
    Index,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refinement,
    Refusal,
    Segment,
    Sink,
    Source,
    TensorSpec,
    WritePlan,
    parse_spec,
    single_value,
)

from . import ALIASES, tables
from .codecs import spare
from .read import names, shards, v0, v1
from .read.report import findings
from .read.shards import Shard, Stored
from .write import accept, writer


class Uqff(Refinement):
    """UQFF in both generations. It is declared by `uqff.version.major`, or by the file's suffix; legacy blobs under
    another suffix must all be numbered and begin with a version of 0.x."""

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        if not _declared(index, source, limits):
            return None
        members = shards.members_beside(source, index.files[0].name, limits)
        name = shards.the_set(source, members) if source.is_dir else index.files[0].name
        main = Shard(source.member(name) if source.is_dir else source, index.tensors)
        report, problems = shards.read_json(source, shards.REPORT, members, limits)
        found = _open_set(main, name, members, report, limits)
        stored = shards.merged(found, limits, v1.VERSION_KEYS)
        version, tensors, more = _layers(stored, source, members, options)
        problems += [*more, *findings(shards.output_of(name, report))]
        if shards.RESIDUAL in members and name != shards.RESIDUAL:
            residual = shards.open_shard(source, shards.RESIDUAL, len(stored.sources), limits)
            stored.sources.append(residual.source)
            problems += _add(tensors, residual.tensors.values())
        if source.path or source.is_remote:  # bytes in memory have nothing beside them
            problems += [_absent(what, why) for what, why in _COMPANIONS.items() if what not in members]
        reported = {(problem.code, problem.where) for problem in index.problems}
        problems = [problem for problem in problems if (problem.code, problem.where) not in reported]
        beside = [source.member(asset) for asset in shards.ASSETS if asset in members]
        return Index(
            format="uqff",
            version=".".join(map(str, version)),
            files=tuple(FileRef(file.filename, file.size) for file in (*stored.sources, *beside)),
            tensors=tensors,
            meta=index.meta,
            assets={
                file.filename: Part(dtype="u8", shape=(file.size,), segments=(Segment(number, 0, file.size),))
                for number, file in enumerate(beside, len(stored.sources))
            },
            problems=(*index.problems, *problems),
            declarations=dict.fromkeys((shards.CONFIG,) if shards.CONFIG in members else (), _QUANTIZATION),
            attrs={"uqff.shards": len(found)},
        )  # fmt: skip

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Problem]:
        """Bits that no code uses, and that are not zero."""
        return list(spare.findings(index, source, limits))

    def encodings_for(self, *, isq: Any = None, **features: Any) -> tuple[Encoding, ...]:
        if isq is None:
            return ()
        codec = parse_spec(ALIASES[single_value("isq", isq)])
        if codec.id == "hqq":
            codec = evolve(codec, params={**codec.params, **HQQ_GROUPS})
        return (Encoding(codec=codec),)

    def naming(self, options: Options) -> str:
        return "uqff"

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return accept.accepts(spec, encoding, writer.is_legacy(options))

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        return accept.accepts_codes(spec, layout, writer.is_legacy(options))

    def choose(self, specs: Sequence[TensorSpec], wanted: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        return accept.choose(specs, wanted)

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return writer.plan_file(specs, meta, assets, options)

    def writes_folder(self, options: Options) -> bool:
        return True

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, meta, assets, options)


HQQ_GROUPS = {"group_size": 64, "axis": 0}
"""As mistral.rs quantises."""
_QUANTIZATION = tuple((key,) for key in QUANTIZATION_KEYS)
"""What a config may still state of the checkpoint that a model was made from; the layers of UQFF state their own."""
_COMPANIONS = {
    shards.RESIDUAL: "norms, and whatever else is no quantized layer, are missing",
    shards.CONFIG: "the architecture is not known",
}


def _declared(index: Index, source: Source, limits: Limits) -> bool:
    if v1.VERSION_KEYS[0] in index.tensors or any(file.name.endswith(shards.SUFFIX) for file in index.files[:1]):
        return True
    return not source.is_dir and v0.declares_itself(v0.numbered(index.tensors), source, limits)


def _open_set(main: Shard, name: str, members: Sequence[str], report: Mapping[str, Any], limits: Limits) -> list[Shard]:
    """The main file, then the other shards of its set. Before 0.1.3 a number in the name meant nothing."""
    blobs = v0.numbered(main.tensors)
    if blobs and not report and v0.first_version(blobs, [main.source], limits) < tables.FIRST_SHARDED:
        return [main]
    others = [shard for shard in shards.shard_names(name, members, report) if shard != name]
    return [main, *(shards.open_shard(main.source, shard, file, limits) for file, shard in enumerate(others, 1))]


def _layers(
    stored: Stored, source: Source, members: Sequence[str], options: Options
) -> tuple[v1.Version, dict[str, TensorSpec], list[Problem]]:
    """Version, tensors and findings of either generation."""
    v0.check_one_generation(stored)
    blobs = v0.numbered(stored.tensors)
    tensors: dict[str, TensorSpec] = {}
    if blobs:
        arch = options.get("arch")
        if arch is not None and arch not in names.KNOWN:
            known = ", ".join(sorted(names.KNOWN))
            raise FormatError("its layer order is not known", expected=known, found=arch, code=ErrorCode.OPTION)
        version = v0.first_version(blobs, stored.sources, stored.limits)
        config, problems = shards.read_json(source, shards.CONFIG, members, stored.limits)
        layers, more = v0.read_layers(blobs, stored, config, arch)
        rest: list[TensorSpec] = []
    else:
        version, problems = v1.read_version(stored, options.get("allow_newer_minor") in ("true", "1"))
        layers, rest = v1.read_layers(stored)
        message = "belongs to no layer: there is no .weight.format for it"
        more = [Problem(code="key", severity="warning", where=spec.name, message=message) for spec in rest]
    for layer in layers:
        more += [*layer.problems, *_add(tensors, layer.tensors)]
    return version, tensors, [*problems, *more, *_add(tensors, rest)]


def _add(tensors: dict[str, TensorSpec], more: Iterable[TensorSpec]) -> list[Problem]:
    """Add tensors under names that are free; the others are a finding each."""
    problems = []
    for spec in more:
        if tensors.setdefault(spec.name, spec) is not spec:
            message = "a second tensor of this name is left out"
            problems.append(Problem(code="duplicate", severity="warning", where=spec.name, message=message))
    return problems


def _absent(name: str, why: str) -> Problem:
    message = f"is not beside the file: {why}"
    return Problem(code="companion", severity="warning", where=name, message=message)
