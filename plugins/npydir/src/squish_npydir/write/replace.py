"""Deletes INT8 arrays replaced by 4-bit ones, after comparing both, and tiers that are refused."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import evolve

from squish_core.api import Encoding, File, FormatError, Limits, atomic_file, open_source, panels
from squish_core.api import open as open_model

from ..features import LISTING
from ..read import listing
from ..read.folder import SHAPE, Folder
from ..read.manifest import PLACE
from ..read.npy import PREFIX, header_size

IN_PLACE = {"int4": "int4 symmetric", "int4a": "int4"}
"""Tier of 4-bit arrays next to INT8 ones, which is not a cache -> the label of the arrays."""
ROUNDING = 1e-5
"""Rounding error of float32 in addition to half a step, relative to the values."""


def delete_eights(folder: Path) -> int:
    """Delete the INT8 arrays of tensors with 4-bit arrays; returns the bytes freed.

    All values are compared first: FormatError, and nothing is deleted, if an error exceeds half a step.
    """
    to_delete = set[Path]()
    with open_model(folder, "npydir") as file:
        own = file.without_caches()
        for name, spec in own.index.tensors.items():
            encodings = {encoding.label: encoding for encoding in spec.encodings}
            label = next((label for label in IN_PLACE.values() if label in encodings), None)
            if label is not None and "int8" in encodings:
                _check(own, name, label, encodings)
                to_delete |= {
                    folder / own.index.files[part.segments[0].file].name for part in encodings["int8"].parts.values()
                }
    size = sum(path.stat().st_size for path in to_delete)
    for path in sorted(to_delete):
        path.unlink()
    return size


def refresh_listing(path: Path) -> None:
    """Rewrite the list of files, if the directory has one, after arrays were added or deleted."""
    if not (path / LISTING).is_file():
        return
    folder = Folder(source=open_source(path), limits=Limits())
    files = listing.parse(folder.json(LISTING, "list of files"))
    arrays = [f"{PLACE}/{name}" for name in sorted(folder.names(PLACE)) if name.endswith(".npy")]
    kept = {name: listed for name, listed in files.items() if not name.endswith(".npy")}
    for name in arrays:
        size, head = folder.source.first(name, SHAPE)
        kept[name] = listing.Listed(size, head if name.endswith("__shape.npy") else head[: header_size(head[:PREFIX])])
    folder.source.close()
    with atomic_file(path / LISTING) as sink:
        sink.write(listing.dump(kept))


def _check(own: File, name: str, fours: str, encodings: Mapping[str, Encoding]) -> None:
    spec = own.index.tensors[name]
    index = {
        label: evolve(own.index, tensors={name: evolve(spec, encodings=(encodings[label],))})
        for label in (fours, "int8")
    }
    four, eight = (File(own.source, index[label], own.registry, own.limits)[name] for label in (fours, "int8"))
    steps = four.parts()["scale"].numpy().reshape(*spec.shape[:-1], -1)
    for region in panels(spec.shape, (1,) * len(spec.shape), 4, whole_rows=True):
        values, half = eight[region], steps[region[:-1]] / 2
        gap = np.abs(four[region] - values).reshape(*half.shape, -1).max(axis=-1)
        if not (gap <= half * (1 + ROUNDING) + ROUNDING * np.abs(values).max()).all():
            raise FormatError(
                "no INT8 array was deleted: the 4-bit arrays of this tensor differ",
                file=own.name,
                tensor=name,
                code="delete",
                hint="Delete its 4-bit arrays and build the tier again.",
            )


def delete_tier(folder: Path, label: str, needs: str) -> None:
    """Delete the files of a tier without a sentinel; for tiers in place, the arrays next to INT8 ones."""
    if label in IN_PLACE.values():
        with open_model(folder, "npydir") as file:
            index = file.index
            arrays = [
                folder / index.files[part.segments[0].file].name
                for spec in index.tensors.values()
                if any(encoding.label == "int8" for encoding in spec.encodings)
                for encoding in spec.encodings
                if encoding.label == label
                for part in encoding.parts.values()
            ]
        for path in arrays:
            path.unlink(missing_ok=True)
        return
    place = folder / Path(needs).parts[0]
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
