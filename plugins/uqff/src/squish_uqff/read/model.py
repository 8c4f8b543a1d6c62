"""A UQFF model of either generation: its shards, residual tensors and other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from squish_safetensors.api import QUANTIZATION_KEYS

from squish_core.api import (
    ErrorCode,
    FileRef,
    FormatError,
    Index,
    Limits,
    Options,
    Part,
    Problem,
    Segment,
    Source,
    TensorSpec,
)

from .. import tables
from . import names, shards, v0, v1
from .detection import VERSION_KEYS, numbered
from .report import findings
from .shards import Shard, ShardSet

_QUANTIZATION = tuple((key,) for key in QUANTIZATION_KEYS)
"""Config keys that may still describe the source checkpoint; UQFF layers carry their own parameters."""
_DECLARATIONS = {shards.CONFIG: _QUANTIZATION, shards.REPORT: ((),)}
_COMPANIONS = {
    shards.RESIDUAL: "norms and other unquantized tensors are missing",
    shards.CONFIG: "the architecture is unknown",
}


def read_model(index: Index, source: Source, limits: Limits, options: Options) -> Index:
    """Return the Index of a model: the layers of all shards, the residual tensors and the other files."""
    members = shards.members_beside(source, index.files[0].name, limits)
    name = shards.single_set(source, members) if source.is_dir else index.files[0].name
    main = Shard(source.member(name) if source.is_dir else source, index.tensors)
    report, problems = shards.read_json(source, shards.REPORT, members, limits)
    shard_set = _open_set(main, name, members, report, limits)
    files = shards.merge(shard_set, limits, VERSION_KEYS)
    version, tensors, more = _layers(files, source, members, options)
    problems += [*more, *findings(shards.output_of(name, report))]
    if shards.RESIDUAL in members and name != shards.RESIDUAL:
        residual = shards.open_shard(source, shards.RESIDUAL, len(files.sources), limits)
        files.sources.append(residual.source)
        problems += _add(tensors, residual.tensors.values())
    if source.path or source.is_remote:  # bytes in memory have no neighboring files
        problems += [_absent(what, why) for what, why in _COMPANIONS.items() if what not in members]
    reported = {(problem.code, problem.where) for problem in index.problems}
    problems = [problem for problem in problems if (problem.code, problem.where) not in reported]
    assets = [source.member(asset) for asset in shards.ASSETS if asset in members]
    refs = tuple(FileRef(file.filename, file.size) for file in (*files.sources, *assets))
    return Index(
        format="uqff",
        version=".".join(map(str, version)),
        files=refs,
        tensors=tensors,
        meta=index.meta,
        assets={
            file.filename: Part(dtype="u8", shape=(file.size,), segments=(Segment(number, 0, file.size),))
            for number, file in enumerate(assets, len(files.sources))
        },
        problems=(*index.problems, *problems),
        declarations={name: paths for name, paths in _DECLARATIONS.items() if name in members},
        ignored=tuple(name for name in (*index.ignored, *index.assets) if name not in {ref.name for ref in refs}),
        attrs={"uqff.shards": len(shard_set)},
    )


def _open_set(main: Shard, name: str, members: Sequence[str], report: Mapping[str, Any], limits: Limits) -> list[Shard]:
    """Open the main file, then the other shards of its set; before 0.1.3, numbers in names are not shard numbers."""
    blobs = numbered(main.tensors)
    if blobs and not report and v0.first_version(blobs, [main.source], limits) < tables.FIRST_SHARDED:
        return [main]
    others = [shard for shard in shards.shard_names(name, members, report) if shard != name]
    return [main, *(shards.open_shard(main.source, shard, file, limits) for file, shard in enumerate(others, 1))]


def _layers(
    files: ShardSet, source: Source, members: Sequence[str], options: Options
) -> tuple[v1.Version, dict[str, TensorSpec], list[Problem]]:
    """Return version, tensors and problems for either generation."""
    v0.check_one_generation(files)
    blobs = numbered(files.tensors)
    tensors: dict[str, TensorSpec] = {}
    if blobs:
        arch = options.get("arch")
        if arch is not None and arch not in names.MODELS:
            architectures = ", ".join(sorted(names.MODELS))
            raise FormatError("unknown layer order", expected=architectures, found=arch, code=ErrorCode.OPTION)
        version = v0.first_version(blobs, files.sources, files.limits)
        config, problems = shards.read_json(source, shards.CONFIG, members, files.limits)
        layers, more = v0.read_layers(blobs, files, config, arch)
        rest: list[TensorSpec] = []
    else:
        version, problems = v1.read_version(files, options.get("allow_newer_minor") in ("true", "1"))
        layers, rest = v1.read_layers(files)
        message = "not part of a layer: its .weight.format is missing"
        more = [Problem(code="key", severity="warning", where=spec.name, message=message) for spec in rest]
    for layer in layers:
        more += [*layer.problems, *_add(tensors, layer.tensors)]
    return version, tensors, [*problems, *more, *_add(tensors, rest)]


def _add(tensors: dict[str, TensorSpec], more: Iterable[TensorSpec]) -> list[Problem]:
    """Add tensors under unused names; report the others."""
    problems = []
    for spec in more:
        if tensors.setdefault(spec.name, spec) is not spec:
            message = "duplicate tensor name; only the first is read"
            problems.append(Problem(code=ErrorCode.DUPLICATE, severity="warning", where=spec.name, message=message))
    return problems


def _absent(name: str, why: str) -> Problem:
    message = f"not found next to the file: {why}"
    return Problem(code="companion", severity="warning", where=name, message=message)
