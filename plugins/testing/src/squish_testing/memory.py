"""Memory bounds for a block of code: measured, or enforced by the system at no cost."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from squish_core.io.system import limited_memory

EVERY = 32
"""One block in so many is measured, if the system can limit the others."""


def within(memory: int, number: int, what: str) -> AbstractContextManager[None]:
    """Context manager: block `number` of many may allocate `memory` bytes.

    On Linux one block in `EVERY` is measured and the others are limited; elsewhere all are measured, which takes
    five times as long.
    """
    return limited_memory(memory) if sys.platform == "linux" and number % EVERY else _measured(memory, what)


@contextmanager
def _measured(memory: int, what: str) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory, f"{what}: a peak of {peak} bytes"
