"""ACME runs: a byte codec of pairs, the length of a run less one and its byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from squish_core import api

LONGEST = 256


class Runs(api.ByteCodec):
    """Run lengths of bytes."""

    def decode(self, data: memoryview, params: api.Params, *, out: memoryview, ratio: int) -> None:
        size = self.decoded_size(data, params, most=len(out))  # before any memory is taken for the runs
        if size != len(out):
            raise api.CodecError("the runs are too short", expected=len(out), found=size, code="size")
        lengths, values = np.frombuffer(data, np.uint8).reshape(-1, 2).T
        np.frombuffer(out, np.uint8)[:] = np.repeat(values, lengths.astype(np.int64) + 1)

    def decoded_size(self, data: memoryview, params: api.Params, *, most: int) -> int:
        if len(data) % 2:
            raise api.CodecError("a run is cut", offset=len(data) - 1, expected="2 bytes", found="1 byte", code="cut")
        size = int(np.frombuffer(data, np.uint8)[::2].sum(dtype=np.int64)) + len(data) // 2
        if size > most:
            raise api.CodecError("the runs are too long", expected=f"at most {most}", found=size, code="size")
        return size

    def encode(self, chunks: Iterable[Any], params: api.Params) -> Iterator[bytes]:
        for chunk in chunks:
            data = np.frombuffer(chunk, np.uint8)
            starts = np.flatnonzero(np.diff(data, prepend=~data[:1]))
            lengths = np.diff(starts, append=len(data))
            pieces = -(-lengths // LONGEST)
            stored = np.full(pieces.sum(), LONGEST)
            stored[np.cumsum(pieces) - 1] = lengths - LONGEST * (pieces - 1)
            yield np.stack([stored - 1, np.repeat(data[starts], pieces)], axis=1).astype(np.uint8).tobytes()
