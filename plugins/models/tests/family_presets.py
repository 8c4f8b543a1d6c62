"""The small model of each family as presets see it: its tensors in GGUF with rows of whole blocks, and its keys."""

from __future__ import annotations

from typing import Any

from every_family import arrays_of, config_of, mapped

Shapes = dict[str, tuple[int, ...]]
WIDER = 8
"""Rows are this many times as long, so that blocks of 256 divide most of them."""
REQUESTS: tuple[tuple[str, dict[str, str], bool], ...] = (
    *((preset, {}, False) for preset in ("q4_k_m", "q3_k_m", "q2_k", "q5_k_m", "q4_0", "q8_0", "iq4_xs", "mxfp4_moe")),
    ("iq2_xs", {}, True),
    ("q4_k_m", {"pure": "yes"}, False),
)
"""A preset, parameters beside it, and whether activation statistics are given."""


def preset_model(family: str) -> tuple[Shapes, dict[str, Any]]:
    """The shapes of all tensors, and the metadata."""
    model = mapped(arrays_of(family), config_of(family))
    shapes = {name: spec.shape for name, spec in model.index.tensors.items()}
    wider = {name: (*shape[:-1], shape[-1] * WIDER) for name, shape in shapes.items() if len(shape) > 1}
    return {**shapes, **wider}, dict(model.index.meta)
