"""`-v`: what the logger `squish` says of opening, resolving and decoding, on stderr.

On its own because it imports `logging`, which other commands do without.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from squish_core.errors import redact

from .output import print_stderr

NAME = "squish"
"""Name of the logger; third parties may log below it (`squish.acme`)."""


class _Lines(logging.Handler):
    """Prints each message, whose lines are wrapped to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        first, *rest = redact(record.getMessage()).splitlines() or [""]
        print_stderr(f"{record.name}: {first}")
        for line in rest:
            print_stderr(f"  {line}")


@contextmanager
def shown() -> Iterator[None]:
    """Within the block, messages of the logger are printed."""
    logger, handler = logging.getLogger(NAME), _Lines()
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
