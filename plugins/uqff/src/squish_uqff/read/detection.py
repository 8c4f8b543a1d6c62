"""Detection of UQFF in safetensors files. Every such file is examined, so this imports no reader."""

from __future__ import annotations

from collections.abc import Mapping

from squish_core.api import TensorSpec

SUFFIX = ".uqff"
VERSION_KEYS = tuple(f"uqff.version.{level}" for level in ("major", "minor", "patch"))


def numbered(tensors: Mapping[str, TensorSpec]) -> dict[int, TensorSpec]:
    """Return the tensors of a legacy file by number, in order; {} for other files."""
    if not tensors or not all(map(is_number, tensors)):
        return {}
    return {number: tensors[str(number)] for number in sorted(map(int, tensors))}


def is_number(name: str) -> bool:
    """Return whether a name is a decimal number of at most nine digits, written as such."""
    return name.isascii() and name.isdigit() and len(name) < 10 and (name == "0" or name[0] != "0")
