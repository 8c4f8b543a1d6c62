"""Bits that no code uses: decoding ignores them, and a writer leaves them zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from squish_safetensors.api import CheckpointFiles

from squish_core.api import Index, Limits, Part, Problem, Source, TensorSpec

from .f8q8 import BLOCK
from .hqq import PACKINGS

CHUNK = 1 << 22


def findings(index: Index, source: Source, limits: Limits) -> Iterator[Problem]:
    """A problem for each tensor whose spare bits are not zero."""
    files = CheckpointFiles(index, source, limits)
    for spec in index.tensors.values():
        for encoding in spec.encodings:
            check = _CHECKS.get(encoding.codec.id)
            if check and check(spec, encoding.parts["data"], files.file(encoding.parts["data"].segments[0].file)):
                message = "has bits that no code uses, and they are not zero; they are ignored"
                yield Problem(code="spare-bits", severity="warning", where=spec.name, message=message)


def _f8q8(spec: TensorSpec, data: Part, source: Source) -> bool:
    """The values with which the last block is padded."""
    (segment,), spare = data.segments, -spec.elements % BLOCK
    return any(source.read(segment.offset + segment.length - spare, spare))


def _hqq(spec: TensorSpec, data: Part, source: Source) -> bool:
    """In words of three bits the top two bits, and the codes of rows that only fill the words."""
    params = spec.encodings[0].codec.params
    if params["bits"] != 3:
        return False
    packing, (rows, columns) = PACKINGS[3], data.shape
    used = params["group_size"] if params["axis"] == 0 else spec.elements // params["group_size"]
    legal = np.zeros(rows, np.uint32)  # by row of words: the bits that codes use
    for place in range(packing.codes):
        there = place * rows + np.arange(rows) < used
        legal |= np.where(there, np.uint32(7 << packing.first - place * packing.step), np.uint32(0))
    step = max(1, CHUNK // (4 * columns))
    for row in range(0, rows, step):
        count = min(step, rows - row)
        raw = source.view(data.segments[0].offset + row * columns * 4, count * columns * 4)
        words = np.frombuffer(raw, "<u4").reshape(count, columns)
        if (words & ~legal[row : row + count, None]).any():
            return True
    return False


_CHECKS = {"uqff.f8q8": _f8q8, "hqq": _hqq}
