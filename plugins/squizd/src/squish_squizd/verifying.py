"""Findings that only a look at the data shows: table entries, spare bits, the appendix' contents."""

from __future__ import annotations

import numpy as np

from squish_core.api import Limits, Problem, Source

from . import sections
from .appendix import check_contents
from .blocks import Block
from .findings import Findings
from .tables import SUB_BLOCK, Scales

_CHUNK = 1 << 16


def verify(source: Source, limits: Limits) -> list[Problem]:
    """Findings beyond those of opening."""
    found = Findings()
    anatomy = sections.read(source, limits, Findings())
    for _, name, block in (*anatomy.named(), *anatomy.named(draft=True)):
        scales = anatomy.scales.get(block.start)
        if scales is not None and scales.problem is None:
            _check_entries(source, name, block, scales, found)
    if anatomy.appendix is not None:
        check_contents(source, anatomy.appendix, found)
    return found.problems


def _check_entries(source: Source, name: str, block: Block, scales: Scales, found: Findings) -> None:
    for offset, count in scales.runs:
        first = int.from_bytes(source.read(offset, 8), "little")
        for start in range(0, count, _CHUNK):
            number = min(_CHUNK, count - start)
            rows = np.frombuffer(source.read(offset + 16 * start, 16 * number), [("id", "<u8"), ("pair", "<f4", 2)])
            if (rows["id"] != first).any():
                found.error(
                    "P3", name, "entries of other tensors stand between its sub-blocks", offset=offset + 16 * start
                )
            if not np.isfinite(rows["pair"]).all():
                found.error("P3", name, "a scale or zero is not finite", offset=offset + 16 * start)
            scale = np.abs(rows["pair"][:, 0])
            if ((scale > 0) & (scale < np.finfo(np.float32).tiny)).any():
                found.warn("P3", name, "a scale is denormal", offset=offset + 16 * start)
            if block.kind != "ASTW":
                _check_zero_scales(source, name, block, scales, np.flatnonzero(scale == 0), found)
        if bool(first & SUB_BLOCK) != (scales.group_size is not None):
            found.warn("P3", name, "its entries have the wrong top bit", offset=offset)


def _check_zero_scales(
    source: Source, name: str, block: Block, scales: Scales, zero: np.ndarray, found: Findings
) -> None:
    """A scale of 0 makes its codes meaningless, unless they are all 0."""
    for number in zero[:1]:
        length = scales.group_size or block.elements
        start, stop = int(number) * length, min((int(number) + 1) * length, block.elements)
        per_byte = 2 if block.kind == "INT4" else 4
        low, high = start // per_byte, -(-stop // per_byte)
        if high - low <= 1 << 24 and any(source.read(block.data + low, high - low)):
            found.warn("P3", name, "a scale is 0 although its codes are not", offset=block.data + low)
