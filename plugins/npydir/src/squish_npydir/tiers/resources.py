"""The memory and disk space that a build needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from squish_core.api import ErrorCode, LimitError, machine_memory

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
    _, available = machine_memory()
    if available is not None and available < MEMORY:
        raise LimitError(
            "not enough memory available",
            file=str(folder),
            expected=f"{MEMORY} bytes",
            found=f"{available} bytes",
            code=ErrorCode.MEMORY,
            hint="Close other programs and build again; finished tensors are kept.",
        )
