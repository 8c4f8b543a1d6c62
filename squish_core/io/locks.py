"""Advisory locks on open files. They end with the process, so a free lock means that the writer is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from squish_core.io.system import lock, unlock

WAIT = 10.0
"""Seconds to wait for another process's lock."""
_POLL = 0.02


def try_lock(fd: int, shared: bool = False) -> bool | None:
    """Lock an open file: False if another descriptor has the lock, None if the file system has no locks."""
    try:
        lock(fd, shared)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def wait_lock(fd: int, seconds: float = WAIT) -> bool | None:
    """Lock an open file, waiting up to `seconds`; returns what `try_lock` does."""
    deadline = time.monotonic() + seconds
    while (locked := try_lock(fd)) is False and time.monotonic() < deadline:
        time.sleep(_POLL)
    return locked


def is_locked(fd: int) -> bool | None:
    """Whether another descriptor has locked the open file; None if the file system has no locks."""
    free = try_lock(fd, shared=True)
    if free:
        unlock(fd)
    return None if free is None else not free


def is_same_file(path: Path, fd: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except OSError:
        return False
