"""Free bytes of a disk, checked before the first byte is written."""

from __future__ import annotations

from pathlib import Path

from squish_core.errors import WriteError
from squish_core.io.paths import nearest_folder


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
