"""The logger `squish`; `logging` is not imported, since a program that has not imported it has no handler."""

from __future__ import annotations

import sys


def log(message: str, *values: object) -> None:
    """Log a message of level DEBUG; without a listener this takes less than a microsecond."""
    if (logging := sys.modules.get("logging")) is not None:
        logger = logging.getLogger("squish")
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(message, *values)
