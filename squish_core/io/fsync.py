"""Write-behind: sync earlier bytes in the background while later ones are computed."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, BinaryIO

from squish_core.concurrency import Pool

if TYPE_CHECKING:
    from concurrent.futures import Future

STEP = 64 << 20
"""Bytes of a file between the starts of a writeback."""
THREADS = 4
"""Concurrent syncs: concurrent fsyncs share a journal commit."""
MOST = 16
"""Open files with a sync pending, at most."""


class Syncer:
    """Syncs files in background threads; `wait` raises an OSError from any of them."""

    def __init__(self) -> None:
        self._pool = Pool(THREADS)
        self._running: deque[Future[None]] = deque()

    def begin(self, file: BinaryIO) -> None:
        """Start writeback of a file's dirty pages."""
        self._submit(os.dup(file.fileno()))

    def finish(self, file: BinaryIO) -> None:
        """Flush and close a file, and sync it in the background."""
        with file:
            file.flush()
            self._submit(os.dup(file.fileno()))

    def wait(self) -> None:
        """Wait until all syncs are done."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        """Cancel syncs that have not started."""
        for future in self._running:
            future.cancel()
        self._pool.close()

    def _submit(self, fd: int) -> None:
        while len(self._running) >= MOST:
            self._running.popleft().result()
        future = self._pool.submit(os.fsync, fd)
        future.add_done_callback(lambda _: os.close(fd))
        self._running.append(future)
