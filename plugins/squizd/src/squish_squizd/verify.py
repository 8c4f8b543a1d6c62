"""Checks that need the data: scale table entries, and the contents of the CoreML appendix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from squish_core.api import Index, Limits, Problem, Source, SquishError

from .findings import Findings
from .read import walk
from .read.anatomy import Anatomy
from .read.blocks import BITS, Block, skip_zeros
from .read.coreml import check_contents
from .read.tables import SUB_BLOCK, Scales

_CHUNK = 1 << 16


def verify(index: Index, source: Source, limits: Limits) -> list[Problem]:
    """List the findings that `open` does not report: those in the data, and those that a directory hid."""
    findings, opening = Findings(), Findings()
    try:
        anatomy = walk.read(source, limits, opening)
    except SquishError:
        if opening.first is None:
            raise
        return _unreported(opening, index)
    findings.problems += _unreported(opening, index)
    _check_directory(anatomy, source, findings)
    for _, name, block in (*anatomy.named(), *anatomy.named(draft=True)):
        scales = anatomy.scales.get(block.start)
        if scales is not None and scales.problem is None:
            _check_entries(source, name, block, scales, findings)
    if anatomy.appendix is not None:
        check_contents(source, anatomy.appendix, findings)
    return findings.problems


def _unreported(opening: Findings, index: Index) -> list[Problem]:
    return [problem for problem in opening.problems if problem not in index.problems]


def _check_directory(anatomy: Anatomy, source: Source, findings: Findings) -> None:
    """Compare the directory of blocks with the blocks."""
    from .read import directory

    try:
        stated = directory.parse(anatomy.names, anatomy.header, 0, 0)
    except ValueError as error:
        findings.warn("P9", "SQXT", f"invalid directory of blocks: {error}")
        return
    for message in directory.contradictions(stated, anatomy, source) if stated is not None else ():
        findings.warn("P9", "SQXT", f"the directory {message}, so remote readers fail or read each block")


def _check_entries(source: Source, name: str, block: Block, scales: Scales, findings: Findings) -> None:
    first = int.from_bytes(source.read(scales.runs[0][0], 8), "little")
    for number, offset, rows in _entries(source, scales):
        if (rows["id"] != first).any():
            findings.error("P3", name, "entries of other tensors lie among its sub-blocks", offset=offset)
        if not np.isfinite(rows["pair"]).all():
            findings.error("P3", name, "a scale or zero point is NaN or infinite", offset=offset)
        scale = np.abs(rows["pair"][:, 0])
        if ((scale > 0) & (scale < np.finfo(np.float32).tiny)).any():
            findings.warn("P3", name, "a scale is denormal", offset=offset)
        if block.kind in BITS:
            _check_zero_scales(source, name, block, scales, number + np.flatnonzero(scale == 0), findings)
    if bool(first & SUB_BLOCK) != (scales.group_size is not None):
        findings.warn("P3", name, "the top bit of its tensor_id is wrong", offset=scales.runs[0][0])


def _entries(source: Source, scales: Scales) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (number of the first entry, offset, entries) by chunk."""
    number = 0
    for offset, count in scales.runs:
        for start in range(0, count, _CHUNK):
            data = source.read(offset + 16 * start, 16 * min(_CHUNK, count - start))
            yield number + start, offset + 16 * start, np.frombuffer(data, [("id", "<u8"), ("pair", "<f4", 2)])
        number += count


def _check_zero_scales(
    source: Source, name: str, block: Block, scales: Scales, zero: np.ndarray, findings: Findings
) -> None:
    """Warn if a scale is 0 but its codes are not: their values are lost."""
    length = scales.group_size or block.elements
    for run in np.split(zero, np.flatnonzero(np.diff(zero) != 1) + 1) if len(zero) else ():
        start, stop = int(run[0]) * length, min((int(run[-1]) + 1) * length, block.elements)
        if _any_code(source, block, start, stop):
            at = block.data + start * BITS[block.kind] // 8
            findings.warn("P3", name, "a scale is 0, but its codes are not", offset=at)
            return


def _any_code(source: Source, block: Block, start: int, stop: int) -> bool:
    """Return whether a range of elements has a nonzero code."""
    low, high = start * BITS[block.kind], stop * BITS[block.kind]
    begin, end = block.data + low // 8, block.data + -(-high // 8)
    at = skip_zeros(source, begin, end)
    while at < end:
        byte = source.read(at, 1)[0]
        byte &= 0xFF << low % 8 if at == begin else 0xFF
        byte &= 0xFF >> -high % 8 if at == end - 1 else 0xFF
        if byte:
            return True
        at = skip_zeros(source, at + 1, end)
    return False
