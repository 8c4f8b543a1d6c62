"""Scale table entries: collected while blocks are written, spooled, with the ids of their tensors."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Mapping
from typing import IO, Any, Self

import numpy as np

from squish_core.api import Sink

from ..read.tables import ENTRY, MAGIC, SUB_BLOCK
from .place import PlacedBlock

_CODES = {"INT4": (-8, 7), "INT2": (0, 3)}


class Entries:
    """Tensor-level entries in memory, sub-block entries in a temporary file.

    `records`: only lay out the target, so that entries have a size but no values.
    """

    def __init__(self, *, records: bool = False) -> None:
        self._records = records
        self._level: list[bytes] = []
        self._pairs = 0
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._spool.close()

    def __bool__(self) -> bool:
        return bool(self._level)

    def add(self, block: PlacedBlock, streams: Mapping[str, Any]) -> None:
        """Add the entries of a block, if it is quantized."""
        if block.kind == "ASTW":
            self._level.append(ENTRY.pack(block.id, block.codec.params["scale"], block.codec.params["zero"]))
        elif "table" in streams and self._records:
            self._level.append(bytes(ENTRY.size))
            self._pairs += block.pairs
        elif "table" in streams:
            self._add_table(block, streams["table"].chunks())

    def _add_table(self, block: PlacedBlock, chunks: Iterable[Any]) -> None:
        """Add the table of a block; if it has sub-blocks, the tensor-level pair spans the range of all of them."""
        low, high, pair = np.inf, -np.inf, (0.0, 0.0)
        sub = "group_size" in block.codec.params
        tensor_id = block.id | (SUB_BLOCK if sub else 0)
        for chunk in chunks:
            rows = np.frombuffer(chunk, "<u4").reshape(-1, 4).copy()
            if not len(rows):
                continue
            rows[:, 0], rows[:, 1] = tensor_id & 0xFFFFFFFF, tensor_id >> 32
            scale, zero = rows[:, 2:].copy().view("<f4").astype(np.float64).T
            if sub:
                ends = [scale * code + zero for code in _CODES[block.kind]]
                low, high = (
                    min(low, *(float(end.min()) for end in ends)),
                    max(high, *(float(end.max()) for end in ends)),
                )
                self._spool.write(rows.tobytes())
                self._pairs += len(rows)
            else:
                pair = (float(scale[0]), float(zero[0]))
        if sub and low <= high:
            first, last = _CODES[block.kind]
            scale_all = (high - low) / (last - first)
            largest = float(np.finfo(np.float32).max)
            pair = (min(scale_all, largest), float(np.clip(low - first * scale_all, -largest, largest)))
        self._level.append(ENTRY.pack(block.id, *pair))

    def write_to(self, sink: Sink) -> None:
        """Write both tables; the second only if there are sub-blocks."""
        sink.write(struct.pack("<4sI", MAGIC, len(self._level)))
        if self._records:
            sink.skip(len(self._level) * ENTRY.size)
        else:
            sink.write(b"".join(self._level))
        if self._pairs:
            sink.pad(64)
            sink.write(struct.pack("<4sI", MAGIC, self._pairs))
            if self._records:
                sink.skip(self._pairs * ENTRY.size)
            self._spool.seek(0)
            while chunk := self._spool.read(1 << 22):
                sink.write(chunk)
