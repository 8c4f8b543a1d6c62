"""UQFF 0.x as a set: numbered blobs, and the names that the architecture's layer order gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_safetensors.api import stored_part

from squish_core.api import FormatError, Limits, Problem, Segment, Source, SquishError, TensorSpec

from ..layers import Layer, make_broken
from .blob import Blob, Version, begins, read_blob
from .names import name_layers
from .shards import Stored

Blobs = Mapping[int, TensorSpec]


def numbered(tensors: Mapping[str, TensorSpec]) -> dict[int, TensorSpec]:
    """The tensors of a legacy file by number, in order; {} when it is none."""
    if not tensors or not all(map(_is_number, tensors)):
        return {}
    return {number: tensors[str(number)] for number in sorted(map(int, tensors))}


def check_one_generation(stored: Stored) -> None:
    """FormatError if layers of UQFF 0.x lie among tensors of 1.x: shards of two models in one folder."""
    if numbered(stored.tensors):
        return
    for name, spec in stored.tensors.items():
        source = stored.sources[stored_part(spec).segments[0].file]
        if _is_number(name) and _begins(spec, source, stored.limits):
            raise FormatError(
                "is a layer of UQFF 0.x among tensors of 1.x", file=source.name, tensor=name,
                offset=_segment(spec).offset, expected="shards of one version", code="generation",
                hint="Move the shards of each version to a folder of their own; format='safetensors' opens a shard.",
            )  # fmt: skip


def declares_itself(blobs: Blobs, source: Source, limits: Limits) -> bool:
    """Whether a blob begins with a version of 0.x and a type."""
    return any(_begins(spec, source, limits) for spec in blobs.values())


def first_version(blobs: Blobs, sources: Sequence[Source], limits: Limits) -> Version:
    """The version of the first blob that states one; the first refusal when none does."""
    refusal = None
    for spec in blobs.values():
        try:
            segment = _segment(spec)
            return Blob(sources[segment.file], segment, limits).version
        except SquishError as error:
            refusal = refusal or error.within(tensor=spec.name)
    raise refusal or FormatError("holds no blob", code="empty")


def read_layers(
    blobs: Blobs, stored: Stored, config: Mapping[str, Any], arch: str | None
) -> tuple[list[Layer], list[Problem]]:
    """The layers, under their names where these are known and the shapes agree, and what is odd about the set."""
    versions: dict[int, Version] = {}
    layers: dict[int, Layer] = {}
    for number, spec in blobs.items():
        try:
            segment = _segment(spec)
            source = stored.sources[segment.file]
            versions[number], layers[number] = read_blob(str(number), source, segment, stored.limits)
        except SquishError as error:
            layers[number] = make_broken(f"{number}.weight", error, {"blob": stored_part(spec)})
    shapes = {number: None if layer.weight.problem else layer.weight.shape for number, layer in layers.items()}
    order, reason = name_layers(shapes, config, arch)
    problems = _other_versions(versions)
    if reason:
        problems.append(Problem(code="names", severity="note", where="", message=reason))
    absent = [layer.name for number, layer in enumerate(order) if number not in layers]
    if absent:
        message = f"is not in the files, nor may be layers after it ({len(absent)} absent); is a shard missing?"
        problems.append(Problem(code="absent", severity="warning", where=absent[0], message=message))
    names = {number: order[number].name if order else str(number) for number in layers}
    return [_renamed(layer, number, names[number]) for number, layer in layers.items()], problems


def _other_versions(versions: Mapping[int, Version]) -> list[Problem]:
    """One finding when blobs state another version than the first one."""
    first = next(iter(versions.values()), None)
    others = [number for number, version in versions.items() if version != first]
    if not others:
        return []
    message = f"states another version than the blobs before it ({len(others)} blobs in all); are the files mixed?"
    return [Problem(code="version", severity="warning", where=f"{others[0]}.weight", message=message)]


def _renamed(layer: Layer, number: int, name: str) -> Layer:
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
    """Where the bytes of a blob lie; FormatError when the tensor is none."""
    if spec.dtype != "u8" or len(spec.shape) != 1:
        found = f"{spec.dtype} {list(spec.shape)}"
        raise FormatError("is no blob", tensor=spec.name, expected="u8 of rank 1", found=found, code="blob")
    return stored_part(spec).segments[0]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10 and (name == "0" or name[0] != "0")
