"""Free disk space, checked before the first byte of a file is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from squish_core.errors import WriteError


def free_bytes(target: Path) -> int | None:
    """Bytes that this user may still write to the disk of `target`'s folder; None if the system does not say."""
    try:
        return shutil.disk_usage(target.parent).free
    except OSError:
        return None


def space_notes(target: Path, size: int | None, estimate: int) -> tuple[str, ...]:
    """A note if a file would not fit on the disk of `target`, or might not.

    Parameters
    ----------
    target
        The file or folder to write.
    size
        Its bytes; None if they are known only once it is written, as with compression.
    estimate
        The bytes of its tensors before compression and without headers, for such files.
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
    """WriteError if a file of `size` bytes does not fit on the disk of `target`; nothing if the size is not known.

    A file that is replaced stays until the new one is complete, so its bytes do not count as free.
    """
    free = free_bytes(target)
    if size is not None and free is not None and free < size:
        raise WriteError(
            "there is not enough space on the disk", file=str(target), code="space",
            expected=f"{size:,} bytes", found=f"{free:,} bytes free", hint="Free some space, or write to another disk.",
        )  # fmt: skip
