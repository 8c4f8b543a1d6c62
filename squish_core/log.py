"""The logger `squish`; `logging` is not imported, since a program that has not imported it has no handler."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


def log(message: str, *values: object) -> None:
    """Log a message of level DEBUG; without a listener this takes less than a microsecond."""
    if "logging" in sys.modules and (logger := _logger()).isEnabledFor(10):
        logger.debug(message, *values)


@cache
def _logger() -> Any:
    import logging

    return logging.getLogger("squish")
