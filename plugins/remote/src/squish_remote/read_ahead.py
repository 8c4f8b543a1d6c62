"""Read-ahead: announced ranges are prefetched in bounded memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from .pieces import Piece, Range, merge, split
from .settings import Settings

FetchRange = Callable[[Any, int, int], Awaitable[memoryview]]


class _Prefetch:
    """One announced request and its result."""

    def __init__(self, file: Any, start: int, stop: int, useful: int) -> None:
        self.file, self.start, self.stop, self.unread = file, start, stop, useful
        self.task: asyncio.Task[memoryview] | None = None
        self.readers = 0


class ReadAhead:
    """The announced ranges of all files of a model, in order.

    Each range is fetched once and kept until it is read; reading it again fetches it again. All methods run in the
    thread of the event loop.
    """

    def __init__(self, request: FetchRange, settings: Settings) -> None:
        self._request, self._settings = request, settings
        self._queue: list[_Prefetch] = []
        self._next = 0
        self._by_file: dict[Any, list[_Prefetch]] = {}
        self._bytes = 0

    async def announce(self, file: Any, ranges: Sequence[Range]) -> None:
        """Queue ranges of a file after the announced ones; without ranges, cancel all announced ones."""
        if not ranges:
            for prefetch in self._queue:
                if prefetch.task is not None and not prefetch.readers:  # another thread may be waiting for it
                    prefetch.task.cancel()
            self._queue, self._by_file, self._next, self._bytes = [], {}, 0, 0
            return
        head = len(file.head)
        for run in _runs(ranges):
            uncached = [(offset, length) for offset, length in run if offset + length > head]
            for piece in merge(uncached, self._settings.gap, self._settings.piece):
                requests = split(piece, self._settings.piece)
                added = [_Prefetch(file, *bounds, _useful(piece, bounds)) for bounds in requests]
                self._queue += added
                self._by_file.setdefault(file, []).extend(added)
        self._by_file.get(file, []).sort(key=lambda prefetch: prefetch.start)
        self._start()

    async def take(self, file: Any, offset: int, length: int) -> memoryview | None:
        """Return an announced range; None if part of it was not announced or is already read."""
        pieces = self._covering(file, offset, offset + length)
        if pieces is None:
            return None
        for prefetch in pieces:
            prefetch.readers += 1
        try:
            contents = [await asyncio.shield(task) for task in [self._begin(prefetch) for prefetch in pieces]]
        finally:
            for prefetch in pieces:
                prefetch.readers -= 1
        if len(pieces) == 1:
            view = contents[0][offset - pieces[0].start : offset - pieces[0].start + length]
        else:
            view = _assemble(pieces, contents, offset, length)
        for prefetch in pieces:
            prefetch.unread -= min(prefetch.stop, offset + length) - max(prefetch.start, offset)
            if prefetch.unread <= 0:
                self._drop(prefetch)
        self._start()
        return view

    def _covering(self, file: Any, start: int, stop: int) -> list[_Prefetch] | None:
        prefetches = self._by_file.get(file, [])
        index = bisect_right(prefetches, start, key=lambda prefetch: prefetch.start) - 1
        pieces: list[_Prefetch] = []
        while start < stop:
            if index < 0 or index >= len(prefetches) or not prefetches[index].start <= start < prefetches[index].stop:
                return None
            pieces.append(prefetches[index])
            start = prefetches[index].stop
            index += 1
        return pieces

    def _start(self) -> None:
        """Start requests while memory allows."""
        while self._next < len(self._queue):
            prefetch = self._queue[self._next]
            if prefetch.task is None and prefetch.unread > 0:
                if self._bytes + prefetch.stop - prefetch.start > self._settings.memory:
                    return
                self._begin(prefetch)
            self._next += 1

    def _begin(self, prefetch: _Prefetch) -> asyncio.Task[memoryview]:
        if prefetch.task is None:
            self._bytes += prefetch.stop - prefetch.start
            prefetch.task = asyncio.ensure_future(self._request(prefetch.file, prefetch.start, prefetch.stop))
            prefetch.task.add_done_callback(_retrieve_error)
        return prefetch.task

    def _drop(self, prefetch: _Prefetch) -> None:
        prefetches = self._by_file.get(prefetch.file, [])
        if prefetch in prefetches:
            prefetches.remove(prefetch)
            self._bytes -= prefetch.stop - prefetch.start
        prefetch.task = None


def _retrieve_error(task: asyncio.Task[memoryview]) -> None:
    """Retrieve the error of a task, because asyncio reports errors that nobody retrieves."""
    if not task.cancelled():
        task.exception()


def _runs(ranges: Sequence[Range]) -> list[list[Range]]:
    """Split ranges into runs of ascending offsets, in the same order."""
    runs: list[list[Range]] = []
    for offset, length in ranges:
        if runs and offset >= sum(runs[-1][-1]):
            runs[-1].append((offset, length))
        elif length:
            runs.append([(offset, length)])
    return runs


def _useful(piece: Piece, bounds: Range) -> int:
    """Return the number of bytes of a request that will be read."""
    is_unsplit = bounds == (piece.start, piece.stop)
    return piece.useful if is_unsplit else bounds[1] - bounds[0]


def _assemble(pieces: Sequence[_Prefetch], contents: Sequence[memoryview], offset: int, length: int) -> memoryview:
    out = np.empty(length, np.uint8).data
    for prefetch, content in zip(pieces, contents):
        low, high = max(prefetch.start, offset), min(prefetch.stop, offset + length)
        out[low - offset : high - offset] = content[low - prefetch.start : high - prefetch.start]
    return out.toreadonly()
