"""Unused bits: decoding ignores them, writers leave them zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from squish_codecs.api import HQQ_PACKINGS
from squish_safetensors.api import CheckpointFiles

from squish_core.api import Index, Limits, Part, Problem, Source, TensorSpec

from .f8q8 import BLOCK

CHUNK = 1 << 22


def findings(index: Index, source: Source, limits: Limits) -> Iterator[Problem]:
    """Yield a problem for each tensor with nonzero unused bits."""
    files = CheckpointFiles(index, source, limits)
    for spec in index.tensors.values():
        for encoding in spec.encodings:
            check = _CHECKS.get(encoding.codec.id)
            if check and check(spec, encoding.parts["data"], files.file(encoding.parts["data"].segments[0].file)):
                message = "has nonzero unused bits; they are ignored"
                yield Problem(code="spare-bits", severity="warning", where=spec.name, message=message)


def _f8q8(spec: TensorSpec, data: Part, source: Source) -> bool:
    """Check the padding of the last block."""
    (segment,), spare = data.segments, -spec.elements % BLOCK
    return any(source.read(segment.offset + segment.length - spare, spare))


def _hqq(spec: TensorSpec, data: Part, source: Source) -> bool:
    """Check 3-bit words: the top two bits, and padding rows."""
    params = spec.encodings[0].codec.params
    if params["bits"] != 3:
        return False
    packing, (rows, columns) = HQQ_PACKINGS[3], data.shape
    n_rows = params["group_size"] if params["axis"] == 0 else spec.elements // params["group_size"]
    legal = np.zeros(rows, np.uint32)  # per word row: the bits in use
    for place in range(packing.codes):
        in_use = place * rows + np.arange(rows) < n_rows
        legal |= np.where(in_use, np.uint32(7 << packing.first - place * packing.step), np.uint32(0))
    step = max(1, CHUNK // (4 * columns))
    for row in range(0, rows, step):
        count = min(step, rows - row)
        raw = source.view(data.segments[0].offset + row * columns * 4, count * columns * 4)
        words = np.frombuffer(raw, "<u4").reshape(count, columns)
        if (words & ~legal[row : row + count, None]).any():
            return True
    return False


_CHECKS = {"uqff.f8q8": _f8q8, "hqq": _hqq}
