"""Tensor types with which llama.cpp's operations abort or do not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from squish_core.api import Problem, TensorSpec

LISTED = 3
"""Number of tensors that a problem names."""
VECTORS = (
    "*norm*", "*.bias", "rope_*", "*attn_sinks.*", "*.scale", "*.input_scale", "*output_scale.*", "*correct_scale.*",
    "*.ssm_a", "*.ssm_d",
    "*.ssm_conv1d*.weight", "token_types.weight",
)  # fmt: skip
"""Tensors that are multiplied or added element by element, which must be f32."""


TABLES = "*.ffn_gate_tid2eid.weight"
"""Tables of whole numbers."""
UNRUN = ("ggml.q8_k",)
"""Blocks of intermediate results, which files of weights do not have."""


def operation_problems(tensors: Mapping[str, TensorSpec]) -> Iterator[Problem]:
    """Yield tensors of types that llama.cpp does not compute with, grouped by type."""
    groups: dict[str, list[str]] = {}
    for name, spec in tensors.items():
        stored = stored_type(spec)
        if not _runs(name, stored):
            groups.setdefault(stored, []).append(name)
    for stored, names in groups.items():
        message = f"is stored as {stored}, which llama.cpp does not run{others(names)}"
        yield Problem(code="engine-type", severity="error", where=names[0], message=message)


def stored_type(spec: TensorSpec) -> str:
    """Return the dtype of a dense tensor, or the id of its codec."""
    if not spec.encodings:
        return spec.problem or "nothing readable"
    codec = spec.encodings[0].codec
    return spec.dtype if codec.id == "dense" else codec.id


def _runs(name: str, stored: str) -> bool:
    if any(fnmatchcase(name, pattern) for pattern in VECTORS):
        return stored == "f32"
    if fnmatchcase(name, TABLES):
        return stored == "i32"
    return stored in ("f32", "f16", "bf16") or (stored.startswith("ggml.") and stored not in UNRUN)


def others(names: Sequence[str]) -> str:
    """Return text about the other tensors with the fault of the first one.

    >>> others(["a", "b", "c", "d"])
    '; so are b, c and 1 more'
    """
    listed = ", ".join(names[1:LISTED])
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"; so are {listed}{more}" if listed else ""
