"""Which tiers the first load of a directory builds, from its Index alone.

MLX's layout for codes that it can store; otherwise dense weights, as one file and as arrays. Tiers that need more
memory than the machine has, and widths that the model's family does not tolerate, are not built.
"""

from __future__ import annotations

import os

from squish_core.api import ErrorCode, Index, Limits, Source, SquishError, UsageError, load_json, machine_memory

from ..features import INT3_FAMILIES, MLX_GROUPS

VARIABLE = "SQUISH_TIERS"
DENSE_MEMORY = 34 / 16
"""Memory that the machine needs for the tier of dense weights, relative to the model in bf16: 34 GB for 8B.

Source: Squish architecture document, note on tier 2.
"""
FOUR_BITS = ("int4", "int4 q4", "int4 symmetric")
"""Labels of dialects whose codes panels and MLX's layout store unchanged."""


def builds_by_setting() -> bool:
    """Return whether SQUISH_TIERS requests builds; UsageError for values other than `build`."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "build"):
        raise UsageError(f"invalid value of {VARIABLE}", expected="build", found=repr(value), code=ErrorCode.OPTION)
    return value == "build"


def next_tiers(index: Index, source: Source, limits: Limits) -> tuple[str, ...]:
    """Return the tiers to build, by the codes and the size of the model; none if there is one, or none fits.

    If only the arrays are missing next to dense weights, a build was interrupted, and they are next.
    """
    if index.caches:
        return ("finalized",) if index.caches == ("squish_weights",) else ()
    tensors = index.tensors
    if not tensors or any(not spec.encodings for spec in tensors.values()):
        return ()
    first = [spec.encodings[0] for spec in tensors.values()]
    if any(each.label in FOUR_BITS and each.codec.params.get("group_size") in MLX_GROUPS for each in first):
        return ("4bit",)
    if any((each.label or "").startswith("int3") for each in first) and is_int3_family(index, source, limits):
        return ("3bit",)
    memory, _ = machine_memory()
    weights = sum(spec.elements for spec in tensors.values())
    fits = memory is None or 2 * weights * DENSE_MEMORY <= memory
    return ("mlx", "finalized") if fits else ("finalized",)


def is_int3_family(index: Index, source: Source, limits: Limits) -> bool:
    """Return whether config.json declares a family that tolerates three bits."""
    return (family_of(index, source, limits) or "").startswith(INT3_FAMILIES)


def family_of(index: Index, source: Source, limits: Limits) -> str | None:
    """Return the `model_type` that config.json declares."""
    if "config.json" not in index.assets:
        return None
    try:
        config = source.member("config.json")
        family = load_json(config.read(0, config.size), "configuration", limits).get("model_type")
    except SquishError:
        return None
    return family if isinstance(family, str) else None
