"""Memory bounds for a block of code: measured, or enforced by the system at no cost."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

EVERY = 32
"""One block in so many is measured, if the system can limit the others."""


def within(memory: int, number: int, what: str) -> AbstractContextManager[None]:
    """Context manager: block `number` of many may allocate `memory` bytes.

    On Linux one block in `EVERY` is measured and the others are limited; elsewhere all are measured, which takes
    five times as long.
    """
    return _limited(memory) if sys.platform == "linux" and number % EVERY else _measured(memory, what)


@contextmanager
def _measured(memory: int, what: str) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory, f"{what}: a peak of {peak} bytes"


@contextmanager
def _limited(memory: int) -> Iterator[None]:
    """MemoryError for allocations beyond `memory` bytes on top of the current mappings."""
    import resource  # absent on Windows

    with open("/proc/self/statm", "rb") as sizes:
        mapped = int(sizes.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    lower = min([mapped + memory, *(limit for limit in before if limit != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_AS, (lower, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
