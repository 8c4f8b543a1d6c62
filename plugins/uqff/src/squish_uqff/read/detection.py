"""Whether a safetensors file is UQFF, which is asked of every such file: this imports no reader."""

from __future__ import annotations

from collections.abc import Mapping

from squish_core.api import Index, Limits, Source, TensorSpec

SUFFIX = ".uqff"
VERSION_KEYS = tuple(f"uqff.version.{level}" for level in ("major", "minor", "patch"))


def is_uqff(index: Index, source: Source, limits: Limits) -> bool:
    """Whether a tensor of 1.x, the suffix, or a 0.x blob among numbered tensors says so."""
    if VERSION_KEYS[0] in index.tensors or any(file.name.endswith(SUFFIX) for file in index.files[:1]):
        return True
    blobs = {} if source.is_dir else numbered(index.tensors)
    if not blobs:
        return False
    from .v0 import declares_itself

    return declares_itself(blobs, source, limits)


def numbered(tensors: Mapping[str, TensorSpec]) -> dict[int, TensorSpec]:
    """Return the tensors of a legacy file by number, in order; {} for other files."""
    if not tensors or not all(map(is_number, tensors)):
        return {}
    return {number: tensors[str(number)] for number in sorted(map(int, tensors))}


def is_number(name: str) -> bool:
    """Whether a name is a decimal number of at most nine digits, written as such."""
    return name.isascii() and name.isdigit() and len(name) < 10 and (name == "0" or name[0] != "0")
