"""Types of tensors with which llama.cpp's operations end or do not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from squish_core.api import Problem, TensorSpec

from .keys import Hyperparameters

LISTED = 3
VECTORS = ("*norm*", "*.bias", "rope_*", "*attn_sinks.*", "*.scale", "*.input_scale")
"""Tensors that are multiplied or added element by element: in f32."""


def operation_problems(numbers: Hyperparameters, tensors: Mapping[str, TensorSpec]) -> Iterator[Problem]:
    """Tensors of a type that llama.cpp does not compute with, grouped by type."""
    groups: dict[str, list[str]] = {}
    for name, spec in tensors.items():
        stored = stored_type(spec)
        if not _runs(name, stored):
            groups.setdefault(stored, []).append(name)
    for stored, names in groups.items():
        listed = ", ".join(names[1:LISTED])
        more = f"; so are {listed}{f' and {len(names) - LISTED} more' if len(names) > LISTED else ''}" if listed else ""
        message = f"is stored as {stored}, which llama.cpp does not run{more}"
        yield Problem(code="engine-type", severity="error", where=names[0], message=message)


def stored_type(spec: TensorSpec) -> str:
    """The dtype of a tensor of plain numbers, or the id of its codec."""
    if not spec.encodings:
        return spec.problem or "nothing readable"
    codec = spec.encodings[0].codec
    return spec.dtype if codec.id == "dense" else codec.id


def _runs(name: str, stored: str) -> bool:
    if any(fnmatchcase(name, pattern) for pattern in VECTORS):
        return stored == "f32"
    return stored in ("f32", "f16", "bf16") or stored.startswith("ggml.")
