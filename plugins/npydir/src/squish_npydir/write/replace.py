"""Deletes INT8 arrays replaced by 4-bit ones, after comparing both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import evolve

from squish_core.api import Encoding, File, FormatError, panels
from squish_core.api import open as open_model

ROUNDING = 1e-5
"""Rounding error of float32 in addition to half a step, relative to the values."""


def delete_eights(folder: Path) -> int:
    """Delete the INT8 arrays of tensors with asymmetric 4-bit arrays; returns the bytes freed.

    All values are compared first: FormatError, and nothing is deleted, if an error exceeds half a step.
    """
    to_delete = set[Path]()
    with open_model(folder, "npydir") as file:
        own = file.without_caches()
        for name, spec in own.index.tensors.items():
            encodings = {encoding.label: encoding for encoding in spec.encodings}
            if {"int4", "int8"} <= encodings.keys():
                _check(own, name, encodings)
                to_delete |= {
                    folder / own.index.files[part.segments[0].file].name for part in encodings["int8"].parts.values()
                }
    size = sum(path.stat().st_size for path in to_delete)
    for path in sorted(to_delete):
        path.unlink()
    return size


def _check(own: File, name: str, encodings: Mapping[str, Encoding]) -> None:
    spec = own.index.tensors[name]
    index = {
        label: evolve(own.index, tensors={name: evolve(spec, encodings=(encodings[label],))})
        for label in ("int4", "int8")
    }
    four, eight = (File(own.source, index[label], own.registry, own.limits)[name] for label in ("int4", "int8"))
    steps = four.parts()["scale"].numpy().reshape(*spec.shape[:-1], -1)
    for region in panels(spec.shape, (1,) * len(spec.shape), 4, whole_rows=True):
        values, half = eight[region], steps[region[:-1]] / 2
        gap = np.abs(four[region] - values).reshape(*half.shape, -1).max(axis=-1)
        if not (gap <= half * (1 + ROUNDING) + ROUNDING * np.abs(values).max()).all():
            raise FormatError(
                "no INT8 array was deleted: the 4-bit arrays of this tensor differ", file=own.name, tensor=name,
                code="delete", hint="Delete its q4a, s4a and z4a files and build the tier again.",
            )  # fmt: skip
