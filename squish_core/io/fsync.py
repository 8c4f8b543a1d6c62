"""Write-behind: write and sync earlier bytes in the background while later ones are computed."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO

from squish_core.concurrency import Pool
from squish_core.io.system import write_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

STEP = 64 << 20
"""Bytes of a file between the starts of a writeback."""
THREADS = 4
"""Concurrent syncs: concurrent fsyncs share a journal commit."""
MOST = 16
"""Open files with a sync pending, at most."""


WRITES = 3
"""Writes pending, at most; each keeps its bytes in memory."""


class Syncer:
    """Writes to files and syncs them in background threads; `settle` and `wait` raise an OSError from any of them."""

    def __init__(self) -> None:
        self._pool = Pool(THREADS)
        self._running: deque[Future[None]] = deque()
        self._writes: deque[Future[None]] = deque()

    def write(self, file: BinaryIO, offset: int, data: memoryview) -> None:
        """Start writing bytes at an offset."""
        while len(self._writes) >= WRITES:
            self._writes.popleft().result()
        self._writes.append(self._submitted(write_at, file, data, offset))

    def settle(self) -> None:
        """Wait until all bytes are written."""
        while self._writes:
            self._writes.popleft().result()

    def begin(self, file: BinaryIO) -> None:
        """Start writeback of a file's dirty pages."""
        self._submit(file)

    def finish(self, file: BinaryIO) -> None:
        """Flush and close a file, and sync it in the background."""
        with file:
            file.flush()
            self.settle()
            self._submit(file)

    def wait(self) -> None:
        """Wait until all syncs are done."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        """Cancel writes and syncs that have not started, and wait for the others."""
        self._pool.close()

    def _submit(self, file: BinaryIO) -> None:
        while len(self._running) >= MOST:
            self._running.popleft().result()
        self._running.append(self._submitted(os.fsync, file))

    def _submitted(self, function: Callable[..., None], file: BinaryIO, *arguments: Any) -> Future[None]:
        """A call with a descriptor of its own: the file may be closed meanwhile."""
        fd = os.dup(file.fileno())
        future = self._pool.submit(function, fd, *arguments)
        future.add_done_callback(lambda _: os.close(fd))
        return future
