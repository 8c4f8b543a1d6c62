"""Reading ahead: announced ranges are fetched before they are read, in bounded memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from .pieces import Piece, Range, cut, joined
from .settings import Settings

Request = Callable[[Any, int, int], Awaitable[memoryview]]


class _Ahead:
    """One announced request and its result."""

    def __init__(self, file: Any, start: int, stop: int, useful: int) -> None:
        self.file, self.start, self.stop, self.unread = file, start, stop, useful
        self.task: asyncio.Task[memoryview] | None = None
        self.readers = 0


class ReadAhead:
    """The announced ranges of all files of a model, in order. Each is fetched once, kept until it was read, and read
    once; what is read again is fetched again. All of it runs in the thread of the event loop."""

    def __init__(self, request: Request, settings: Settings) -> None:
        self._request, self._settings = request, settings
        self._queue: list[_Ahead] = []
        self._next = 0
        self._by_file: dict[Any, list[_Ahead]] = {}
        self._bytes = 0

    async def announce(self, file: Any, ranges: Sequence[Range]) -> None:
        """Add ranges of a file, to be read after those announced before; none: forget everything announced."""
        if not ranges:
            for ahead in self._queue:
                if ahead.task is not None and not ahead.readers:  # another thread may be waiting for it
                    ahead.task.cancel()
            self._queue, self._by_file, self._next, self._bytes = [], {}, 0, 0
            return
        head = len(file.head)
        for run in _runs(ranges):
            for piece in joined([each for each in run if sum(each) > head], self._settings.gap, self._settings.piece):
                added = [_Ahead(file, *bounds, _useful(piece, bounds)) for bounds in cut(piece, self._settings.piece)]
                self._queue += added
                self._by_file.setdefault(file, []).extend(added)
        self._by_file.get(file, []).sort(key=lambda ahead: ahead.start)
        self._start()

    async def take(self, file: Any, offset: int, length: int) -> memoryview | None:
        """A range from what was announced; None if part of it was not, or was read before."""
        pieces = self._covering(file, offset, offset + length)
        if pieces is None:
            return None
        for ahead in pieces:
            ahead.readers += 1
        try:
            contents = [await asyncio.shield(task) for task in [self._begin(ahead) for ahead in pieces]]
        finally:
            for ahead in pieces:
                ahead.readers -= 1
        if len(pieces) == 1:
            view = contents[0][offset - pieces[0].start : offset - pieces[0].start + length]
        else:
            view = _assembled(pieces, contents, offset, length)
        for ahead in pieces:
            ahead.unread -= min(ahead.stop, offset + length) - max(ahead.start, offset)
            if ahead.unread <= 0:
                self._drop(ahead)
        self._start()
        return view

    def _covering(self, file: Any, start: int, stop: int) -> list[_Ahead] | None:
        files = self._by_file.get(file, [])
        at = bisect_right(files, start, key=lambda ahead: ahead.start) - 1
        pieces: list[_Ahead] = []
        while start < stop:
            if at < 0 or at >= len(files) or not files[at].start <= start < files[at].stop:
                return None
            pieces.append(files[at])
            start = files[at].stop
            at += 1
        return pieces

    def _start(self) -> None:
        """Start requests while memory allows."""
        while self._next < len(self._queue):
            ahead = self._queue[self._next]
            if ahead.task is None and ahead.unread > 0:
                if self._bytes + ahead.stop - ahead.start > self._settings.memory:
                    return
                self._begin(ahead)
            self._next += 1

    def _begin(self, ahead: _Ahead) -> asyncio.Task[memoryview]:
        if ahead.task is None:
            self._bytes += ahead.stop - ahead.start
            ahead.task = asyncio.ensure_future(self._request(ahead.file, ahead.start, ahead.stop))
            ahead.task.add_done_callback(_seen)
        return ahead.task

    def _drop(self, ahead: _Ahead) -> None:
        files = self._by_file.get(ahead.file, [])
        if ahead in files:
            files.remove(ahead)
            self._bytes -= ahead.stop - ahead.start
        ahead.task = None


def _seen(task: asyncio.Task[memoryview]) -> None:
    """Mark an error as seen, since nobody may wait for it."""
    if not task.cancelled():
        task.exception()


def _runs(ranges: Sequence[Range]) -> list[list[Range]]:
    """The ranges in stretches of ascending offsets: order is kept between stretches."""
    runs: list[list[Range]] = []
    for each in ranges:
        if runs and each[0] >= sum(runs[-1][-1]):
            runs[-1].append(each)
        elif each[1]:
            runs.append([each])
    return runs


def _useful(piece: Piece, bounds: Range) -> int:
    """Bytes of a request that will be read."""
    whole = bounds == (piece.start, piece.stop)
    return piece.useful if whole else bounds[1] - bounds[0]


def _assembled(pieces: Sequence[_Ahead], contents: Sequence[memoryview], offset: int, length: int) -> memoryview:
    out = np.empty(length, np.uint8).data
    for ahead, content in zip(pieces, contents):
        low, high = max(ahead.start, offset), min(ahead.stop, offset + length)
        out[low - offset : high - offset] = content[low - ahead.start : high - ahead.start]
    return out.toreadonly()
