"""compressed-tensors: configuration groups with targets and formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from attrs import frozen
from squish_codecs.api import FLOAT8_DTYPES
from squish_safetensors.api import CheckpointFiles, StoredParts

from squish_core.api import ErrorCode, FormatError, SquishError, TensorSpec
from squish_hf.declaration import Declared, Patterns, refuse
from squish_hf.methods import compressed_formats as formats
from squish_hf.methods.method import CACHE, Method
from squish_hf.methods.sparse import SPARSE, SPARSE_24, SPARSE_SUFFIXES, read_sparse
from squish_hf.methods.unsupported import refuse_marlin

SUFFIXES = (
    ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".weight_global_scale",
    *SPARSE_SUFFIXES,
)  # fmt: skip
BESIDE = (
    *CACHE, ".input_global_scale", ".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point",
)  # fmt: skip
TRANSFORM_HINT = (
    "compressed-tensors undoes it while the model runs; convert the original model, or read the stored tensors with "
    "{option:format=safetensors}."
)
MIXED, PATTERN = "mixed-precision", "re:"


@frozen
class Group:
    """A configuration group: format and weight settings of its layers."""

    weights: Mapping[str, Any] | None
    format: str | None


@frozen
class Targets:
    """Assigns layers to groups: by name, else by the first matching pattern, else by the class of the module. Files do
    not state the class of a module, so the first such group that the layer's parts match is used."""

    names: Mapping[str, Group]
    patterns: Mapping[str, Group]
    by_class: tuple[Group, ...]
    matched: Patterns
    modules: Collection[str] = ()

    def is_class(self, target: str) -> bool:
        """Return whether a target is the name of a class: without dots, and not one of the outermost modules."""
        return "." not in target and target not in self.modules

    def of(self, layer: str) -> tuple[Group, ...]:
        """Return the candidate groups of a layer."""
        if layer in self.names:
            return (self.names[layer],)
        matches = ((group,) for pattern, group in self.patterns.items() if self.matched.matches(pattern, layer))
        return next(matches, self.by_class)

    def idle(self, layers: Collection[str]) -> list[str]:
        """Return target names and patterns without a matching layer."""
        names = (name for name, group in self.names.items() if "." in name and group.weights and name not in layers)
        patterns = (
            f"{PATTERN}{pattern}"
            for pattern, group in self.patterns.items()
            if group.weights and not any(self.matched.matches(pattern, layer) for layer in layers)
        )
        return [*names, *patterns]


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read compressed-tensors 0.8 to 0.20."""
    matched = Patterns(declared.where)
    targets = _targets(declared, matched, {name.partition(".")[0] for name in files.index.tensors})
    ignored = {pattern for pattern in declared.get("ignore", list, []) if isinstance(pattern, str)}
    unwanted = [pattern.removeprefix(PATTERN) for pattern in ignored if pattern.startswith(PATTERN)]
    sparsity = declared.get("sparsity_config", dict, {}).get("format")
    if sparsity not in (None, "dense", SPARSE, SPARSE_24):
        raise refuse("sparsity", f"{SPARSE} or {SPARSE_24}", sparsity, part=declared.where)

    transforms = _online_transforms(declared)

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        if (location := _transformed(layer, transforms, targets, matched)) is not None:
            raise FormatError(
                f"unsupported transform of the {location} at run time: its codes are those of a rotated weight",
                part="transform_config",
                code=ErrorCode.UNDECLARED_SCALES,
                hint=TRANSFORM_HINT,
            )
        if layer in ignored or any(matched.matches(pattern, layer) for pattern in unwanted):
            raise FormatError(
                "quantized, although `ignore` excludes it", part=declared.where, code=ErrorCode.CONTRADICTION
            )
        if sparsity in (SPARSE, SPARSE_24) and any(suffix in parts for suffix in SPARSE_SUFFIXES):
            return read_sparse(layer, parts, sparsity, files)
        mismatch: SquishError | None = None
        for group in targets.of(layer):
            try:
                return _layer_tensor(layer, parts, group, declared.where, files)
            except SquishError as error:
                mismatch = mismatch or error
        raise mismatch or FormatError(
            "quantized, but not in any configuration group", part=declared.where, code=ErrorCode.CONTRADICTION
        )

    return Method(
        dialect=f"compressed-tensors {declared.get('version', str, '')}".strip(),
        suffixes=SUFFIXES,
        beside=BESIDE,
        make=make,
        packed=FLOAT8_DTYPES,
        idle=targets.idle,
    )


def _online_transforms(declared: Declared) -> list[tuple[str, list[str], list[str]]]:
    """Return location, targets and exceptions of the transforms that run with the model; the others are in the weights.

    Those of queries and the key cache concern no weight. Source: compressed_tensors, transform/transform_args.py.
    """
    groups = declared.get("transform_config", dict, {}).get("config_groups", {})
    if not isinstance(groups, dict):
        raise refuse("transform_config", "an object config_groups", groups, part=declared.where)
    transforms = []
    for name, scheme in groups.items():
        arguments = scheme.get("apply", []) if isinstance(scheme, dict) else None
        if not isinstance(arguments, list) or not all(isinstance(argument, dict) for argument in arguments):
            raise refuse(f"transform {name[:40]!r}", "an object with a list `apply`", scheme, part=declared.where)
        transforms += [
            (argument["location"], _names(argument.get("targets")), _names(argument.get("ignore")))
            for argument in arguments
            if argument.get("location") in ("input", "output")
        ]
    return transforms


def _names(value: Any) -> list[str]:
    """Return names and patterns; compressed-tensors accepts one without a list."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _transformed(
    layer: str, transforms: Collection[tuple[str, list[str], list[str]]], targets: Targets, matched: Patterns
) -> str | None:
    """Return where a layer's input or output is transformed at run time. A class, which files do not state, may be any
    layer's."""

    def names(target: str) -> bool:
        if target.startswith(PATTERN):
            return matched.matches(target.removeprefix(PATTERN), layer)
        return target == layer or targets.is_class(target)

    for location, those, ignored in transforms:
        if any(map(names, those)) and not any(name == layer or (PATTERN in name and names(name)) for name in ignored):
            return location
    return None


def _layer_tensor(layer: str, parts: StoredParts, group: Group, where: str, files: CheckpointFiles) -> TensorSpec:
    """Build a layer's tensor in this group; SquishError if its parts do not fit."""
    if group.weights is None:
        raise FormatError(
            "quantized, but its configuration group has no weights", part=where, code=ErrorCode.CONTRADICTION
        )
    if group.format == "marlin-24":
        raise refuse_marlin(where)
    maker = FORMATS.get(group.format or "")
    if maker is None:
        raise refuse("format", " or ".join(FORMATS), group.format, part=where)
    return maker(layer, parts, formats.Weights.of(group.weights, where), files)


Maker = Callable[[str, StoredParts, formats.Weights, CheckpointFiles], TensorSpec]
FORMATS: dict[str, Maker] = {
    "dense": formats.dense,
    "pack-quantized": formats.packed,
    "int-quantized": formats.unpacked,
    "float-quantized": formats.unpacked,
    "naive-quantized": formats.unpacked,
    "nvfp4-pack-quantized": formats.nvfp4,
    "mxfp4-pack-quantized": formats.mxfp4,
    "mxfp8-quantized": formats.mxfp8,
}


def _targets(declared: Declared, matched: Patterns, modules: Collection[str]) -> Targets:
    """Return the targets of the configuration groups in order; a group without a format has the global one. A name
    without dots that is not one of the outermost `modules` is a class."""
    whole, groups = declared.get("format", str), {}
    for name, group in declared.get("config_groups", dict, {}).items():
        targets = group.get("targets") if isinstance(group, dict) else None
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(targets, list) or not isinstance(weights, (dict, type(None))):
            raise refuse(f"config group {name[:40]!r}", "targets and weights", group, part=declared.where)
        form = group.get("format")
        if not isinstance(form, (str, type(None))):
            raise refuse(f"format of group {name[:40]!r}", "a name", form, part=declared.where)
        settings = Group(weights, form or (None if whole == MIXED else whole))
        groups.update({target: settings for target in targets if isinstance(target, str) and target not in groups})
    names = {target: group for target, group in groups.items() if not target.startswith(PATTERN)}
    patterns = {target.removeprefix(PATTERN): group for target, group in groups.items() if target not in names}
    classes = (group for target, group in names.items() if "." not in target and target not in modules)
    with_weights = tuple(group for group in classes if group.weights is not None)
    return Targets(names, patterns, with_weights, matched, modules)
