"""Disk space: free bytes, checked before the first byte is written, and space allocated for a file."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from squish_core.errors import WriteError
from squish_core.io.paths import nearest_folder

KEEP_SIZE = 1
"""Linux's FALLOC_FL_KEEP_SIZE: the file does not grow until it is written."""


def free_bytes(target: Path) -> int | None:
    """Free bytes for this user on the disk of `target`; None if the system does not report them (as for `/proc`)."""
    import shutil  # slow to import, and opening a file imports this module

    try:
        disk = shutil.disk_usage(nearest_folder(target))
    except OSError:
        return None
    return disk.free if disk.total else None


def space_notes(target: Path, size: int | None, estimate: int) -> tuple[str, ...]:
    """A note if a file does not fit on the disk of `target`, or may not.

    Parameters
    ----------
    target
        The file or folder to write.
    size
        Its size in bytes; None if it is unknown until written, as with compression.
    estimate
        Size of the tensors before compression and without headers, used if `size` is None.
    """
    try:
        check_space(target, size)
    except WriteError as error:
        return (f"{error.message} ({error.expected} needed, {error.found})",)
    free = free_bytes(target)
    if size is None and free is not None and free < estimate:
        about = f"about {estimate:,} bytes before any compression"
        return (f"the disk may be too small: the tensors take {about}, and {free:,} bytes are free",)
    return ()


def check_space(target: Path, size: int | None) -> None:
    """Raise WriteError if a file of `size` bytes does not fit on the disk of `target`; None is not checked.

    The bytes of a file to be replaced do not count as free: it stays until the new one is complete.
    """
    free = free_bytes(target)
    if size is not None and free is not None and free < size:
        raise WriteError(
            "not enough disk space", file=str(target), code="space",
            expected=f"{size:,} bytes", found=f"{free:,} bytes free", hint="Free some space, or write to another disk.",
        )  # fmt: skip


def allocate(fd: int, offset: int, length: int) -> None:
    """Allocate disk space for a range of a file; a hint, without effect where the system or the file system cannot.

    Writes then take half the time: ext4 finds places for all blocks at once, not for each page.
    """
    if (fallocate := _fallocate()) is not None:
        fallocate(fd, KEEP_SIZE, offset, length)


@cache
def _fallocate() -> Any:
    """The system call, on 64-bit Linux. `os.posix_fallocate` would write zeros where the file system lacks it."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function
