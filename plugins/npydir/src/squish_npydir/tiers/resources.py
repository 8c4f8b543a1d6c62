"""The memory and disk space that a build needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from squish_core.api import ErrorCode, LimitError

MEMORY = 256 << 20
"""Memory of a build in bytes, for panels and temporaries of encoders; independent of the model's size."""


def check_resources(folder: Path, disk: int) -> None:
    """Raise LimitError if memory or disk space is insufficient."""
    free = shutil.disk_usage(folder).free
    if free < disk:
        raise LimitError(
            "not enough disk space for this tier",
            file=str(folder),
            expected=f"{disk} bytes",
            found=f"{free} bytes",
            code="disk",
            hint="Free disk space, or build a smaller tier.",
        )
    memory = available()
    if memory is not None and memory < MEMORY:
        raise LimitError(
            "not enough memory available",
            file=str(folder),
            expected=f"{MEMORY} bytes",
            found=f"{memory} bytes",
            code=ErrorCode.MEMORY,
            hint="Close other programs and build again; finished tensors are kept.",
        )


def available() -> int | None:
    """Return the available memory in bytes; None if the system does not report it (Linux does)."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
