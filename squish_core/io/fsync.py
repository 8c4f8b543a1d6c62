"""Writing behind: the disk takes what was written while what comes next is made."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, BinaryIO

from squish_core.concurrency import Pool

if TYPE_CHECKING:
    from concurrent.futures import Future

STEP = 64 << 20
"""Bytes of a file after which the disk is told to begin with it."""
THREADS = 4
"""Files synced at once: a journal takes them together."""
MOST = 16
"""Files that wait for the disk, open."""


class Syncer:
    """Syncs files in threads of its own; `wait` raises the OSError that one of them met."""

    def __init__(self) -> None:
        self._pool = Pool(THREADS)
        self._running: deque[Future[None]] = deque()

    def begin(self, file: BinaryIO) -> None:
        """Let the disk have what the system holds of a file so far."""
        self._submit(os.dup(file.fileno()))

    def finish(self, file: BinaryIO) -> None:
        """Close a file and sync it."""
        with file:
            file.flush()
            self._submit(os.dup(file.fileno()))

    def wait(self) -> None:
        """Until the disk has everything."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        """Forget what has not begun."""
        for future in self._running:
            future.cancel()
        self._pool.close()

    def _submit(self, fd: int) -> None:
        while len(self._running) >= MOST:
            self._running.popleft().result()
        future = self._pool.submit(os.fsync, fd)
        future.add_done_callback(lambda _: os.close(fd))
        self._running.append(future)
