"""compressed-tensors: configuration groups with targets, each in a format of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen
from squish_codecs.float8 import ELEMENTS
from squish_safetensors.layers import Files, Parts

from squish_core.api import FormatError, TensorSpec
from squish_hf import compressed_formats as formats
from squish_hf.declaration import Declared, Patterns, refuse
from squish_hf.method import Method
from squish_hf.sparse import SPARSE, SPARSE_24, SPARSE_SUFFIXES, read_sparse

SUFFIXES = (
    ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".weight_global_scale",
    *SPARSE_SUFFIXES,
)  # fmt: skip
BESIDE = (
    ".input_global_scale", ".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point",
    ".k_scale", ".v_scale",
)  # fmt: skip
UNNAMED = ("dense", "mixed-precision")


@frozen
class Group:
    """A configuration group: which layers it is for, how their weights are quantised, in which format."""

    targets: tuple[str, ...]
    weights: Mapping[str, Any] | None
    format: str | None


def read(declared: Declared, files: Files) -> Method:
    """compressed-tensors 0.8 to 0.20."""
    groups = _groups(declared)
    ignored = tuple(each for each in declared.get("ignore", list, []) if isinstance(each, str))
    patterns = Patterns(declared.where)
    sparsity = declared.get("sparsity_config", dict, {}).get("format")
    if sparsity not in (None, "dense", SPARSE, SPARSE_24):
        raise refuse("sparsity", f"{SPARSE} or {SPARSE_24}", sparsity, part=declared.where)

    def make(layer: str, parts: Parts) -> TensorSpec:
        if any(_matches(target, layer, patterns, classes=False) for target in ignored):
            raise FormatError("is quantised, and `ignore` names it", part=declared.where, code="contradiction")
        if sparsity in (SPARSE, SPARSE_24) and any(suffix in parts for suffix in SPARSE_SUFFIXES):
            return read_sparse(layer, parts, sparsity, files)
        group = _of(layer, groups, patterns)
        if group is None or group.weights is None:
            raise FormatError("is quantised, and no group names it", part=declared.where, code="contradiction")
        maker = FORMATS.get(group.format or "")
        if maker is None:
            raise refuse("format", " or ".join(FORMATS), group.format, part=declared.where)
        return maker(layer, parts, formats.Weights.of(group.weights, declared.where), files)

    return Method(
        dialect=f"compressed-tensors {declared.get('version', str, '')}".strip(), suffixes=SUFFIXES, beside=BESIDE,
        make=make, packed=ELEMENTS,
    )  # fmt: skip


Maker = Callable[[str, Parts, formats.Weights, Files], TensorSpec]
FORMATS: dict[str, Maker] = {
    "pack-quantized": formats.packed,
    "int-quantized": formats.plain,
    "float-quantized": formats.plain,
    "naive-quantized": formats.plain,
    "nvfp4-pack-quantized": formats.nvfp4,
    "mxfp4-pack-quantized": formats.mxfp4,
    "mxfp8-quantized": formats.mxfp8,
}


def _groups(declared: Declared) -> list[Group]:
    """The configuration groups in order; a group without a format has that of the whole."""
    whole, found = declared.get("format", str), []
    for name, group in declared.get("config_groups", dict, {}).items():
        targets = group.get("targets") if isinstance(group, dict) else None
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(targets, list) or not isinstance(weights, (dict, type(None))):
            raise refuse(f"config group {name[:40]!r}", "targets and weights", group, part=declared.where)
        own = group.get("format") or (None if whole in UNNAMED else whole)
        found.append(Group(tuple(each for each in targets if isinstance(each, str)), weights, own))
    return found


def _of(layer: str, groups: list[Group], patterns: Patterns) -> Group | None:
    """The group of a layer: by its name, else by a pattern, else by the class of its module."""
    ranks: tuple[Callable[[str], bool], ...] = (
        lambda target: target == layer,
        lambda target: target.startswith("re:") and _matches(target, layer, patterns, classes=False),
        lambda target: _matches(target, layer, patterns, classes=True),
    )
    return next((group for rank in ranks for group in groups if any(map(rank, group.targets))), None)


def _matches(target: str, layer: str, patterns: Patterns, *, classes: bool) -> bool:
    """Whether a target names a layer. Which class a module is of, a file does not say: any quantised layer may be."""
    if target.startswith("re:"):
        return patterns.matches(target[3:], layer)
    return target == layer or (classes and "." not in target)
