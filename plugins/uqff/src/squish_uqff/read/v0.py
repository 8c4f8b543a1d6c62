"""UQFF 0.x sets: numbered blobs, named by the layer order of the architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_safetensors.api import stored_part

from squish_core.api import FormatError, Limits, Problem, Segment, Source, SquishError, TensorSpec

from ..layers import Layer, make_broken
from .blob import Blob, Version, begins, read_blob
from .detection import is_number, numbered
from .names import name_layers
from .shards import ShardSet

Blobs = Mapping[int, TensorSpec]


def check_one_generation(files: ShardSet) -> None:
    """Raise FormatError if 0.x layers are mixed with 1.x tensors: the shards belong to two models."""
    if numbered(files.tensors):
        return
    for name, spec in files.tensors.items():
        source = files.sources[stored_part(spec).segments[0].file]
        if is_number(name) and _begins(spec, source, files.limits):
            raise FormatError(
                "a UQFF 0.x layer among 1.x tensors",
                file=source.name,
                tensor=name,
                offset=_segment(spec).offset,
                expected="shards of one version",
                code="generation",
                hint="Move the shards of each version to a separate folder; "
                "{option:format=safetensors} opens one shard.",
            )


def declares_itself(blobs: Blobs, source: Source, limits: Limits) -> bool:
    """Return whether a blob starts with a 0.x version and a type."""
    return any(_begins(spec, source, limits) for spec in blobs.values())


def first_version(blobs: Blobs, sources: Sequence[Source], limits: Limits) -> Version:
    """Return the version of the first valid blob, or raise the error of the first blob."""
    refusal = None
    for spec in blobs.values():
        try:
            segment = _segment(spec)
            return Blob(sources[segment.file], segment, limits).version
        except SquishError as error:
            refusal = refusal or error.within(tensor=spec.name)
    raise refusal or FormatError("contains no blobs", code="empty")


def read_layers(
    blobs: Blobs, files: ShardSet, config: Mapping[str, Any], arch: str | None
) -> tuple[list[Layer], list[Problem]]:
    """Return the layers, named if the architecture is known and the shapes match, and the problems of the set."""
    versions: dict[int, Version] = {}
    layers: dict[int, Layer] = {}
    for number, spec in blobs.items():
        try:
            segment = _segment(spec)
            source = files.sources[segment.file]
            versions[number], layers[number] = read_blob(str(number), source, segment, files.limits)
        except SquishError as error:
            layers[number] = make_broken(f"{number}.weight", error, {"blob": stored_part(spec)})
    shapes = {number: None if layer.weight.problem else layer.weight.shape for number, layer in layers.items()}
    order, reason = name_layers(shapes, config, arch)
    problems = _other_versions(versions)
    if reason:
        problems.append(Problem(code="names", severity="note", where="", message=reason))
    absent = [layer.name for number, layer in enumerate(order) if number not in layers]
    if absent:
        message = f"missing, possibly with later layers ({len(absent)} absent); is a shard missing?"
        problems.append(Problem(code="absent", severity="warning", where=absent[0], message=message))
    names = {number: order[number].name if order else str(number) for number in layers}
    return [_rename(layer, number, names[number]) for number, layer in layers.items()], problems


def _other_versions(versions: Mapping[int, Version]) -> list[Problem]:
    """Report blobs with a different version than the first one."""
    first = next(iter(versions.values()), None)
    others = [number for number, version in versions.items() if version != first]
    if not others:
        return []
    message = f"version differs from the first blob ({len(others)} such blobs); are the files mixed?"
    return [Problem(code="version", severity="warning", where=f"{others[0]}.weight", message=message)]


def _rename(layer: Layer, number: int, name: str) -> Layer:
    def new(old: str) -> str:
        return name + old.removeprefix(str(number))

    def spec(old: TensorSpec) -> TensorSpec:
        return evolve(old, name=new(old.name), attrs={**old.attrs, "uqff.index": number})

    problems = tuple(evolve(problem, where=new(problem.where)) for problem in layer.problems)
    return Layer(spec(layer.weight), spec(layer.bias) if layer.bias else None, problems)


def _begins(spec: TensorSpec, source: Source, limits: Limits) -> bool:
    try:
        return begins(source, _segment(spec), limits)
    except SquishError:
        return False


def _segment(spec: TensorSpec) -> Segment:
    """Return the byte range of a blob; FormatError if the tensor is not a blob."""
    if spec.dtype != "u8" or len(spec.shape) != 1:
        stored = f"{spec.dtype} {list(spec.shape)}"
        raise FormatError("not a blob", tensor=spec.name, expected="u8 of rank 1", found=stored, code="blob")
    return stored_part(spec).segments[0]
