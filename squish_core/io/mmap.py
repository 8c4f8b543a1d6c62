"""Memory maps that keep no file descriptor: a model may have more files than a process may have open."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import TruncatedError


def mapped(fd: int, size: int) -> memoryview:
    """Map the first `size` bytes (at least one) of an open file, read-only. Views keep the mapping alive."""
    if sys.platform == "win32":
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    return _mapping(fd, 0, size, mmap.PROT_READ, mmap.MAP_SHARED).toreadonly()


def mapped_privately(fd: int, offset: int, length: int) -> memoryview:
    """Map a range (at least one byte) of an open file copy-on-write: writes never reach the file."""
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    size = offset + length - start
    if sys.platform == "win32":
        view = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY, offset=start))
    else:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        view = _mapping(fd, start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags)
    return view[offset - start :]


UNTRACKED: Mapping[str, Any] = {"trackfd": False}
"""Arguments of `mmap.mmap` that keep it from duplicating the descriptor."""
IS_UNTRACKED = sys.version_info >= (3, 13) and sys.platform == "linux"
"""Whether `mmap.mmap` takes them; on macOS it would also flush the disk with each mapping."""

if sys.platform != "win32":

    def _mapping(fd: int, offset: int, size: int, protection: int, flags: int) -> memoryview:
        if IS_UNTRACKED:
            try:
                return memoryview(mmap.mmap(fd, size, flags, protection, offset=offset, **UNTRACKED))
            except ValueError as error:  # the file has become shorter than the range
                raise OSError(errno.ENXIO, str(error)) from None
        address = _libc.mmap(None, size, protection, flags, fd, offset)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        pages = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(pages, _libc.munmap, address, size).atexit = False  # views may outlive everything else
        return memoryview(pages).cast("B")

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def release_pages(view: memoryview) -> None:
    """Give the resident pages of a mapping back to the system; reading them again takes them from its cache."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is None:
        return
    if isinstance(view.obj, mmap.mmap):
        view.obj.madvise(advice)
    elif isinstance(view.obj, ctypes.Array):
        _libc.madvise(ctypes.addressof(view.obj), view.nbytes, advice)


@frozen
class MappedFile:
    """A file that loaded weights read in place. Identified by path: one descriptor per file would be too many."""

    name: str
    node: tuple[int, int]
    """Device and inode."""
    size: int

    def check(self) -> None:
        """Raise TruncatedError if the file has shrunk. A deleted or replaced file stays alive under its mapping."""
        try:
            info = os.stat(self.name)
        except OSError:
            return
        if info.st_size < self.size and (info.st_dev, info.st_ino) == self.node:
            raise shrunk(self.name, self.size, info.st_size)


def shrunk(name: str, expected: int, size: int) -> TruncatedError:
    """Error for a file that shrank while it was open."""
    return TruncatedError(
        "the file changed while it was open", file=name, expected=f"{expected} bytes", found=f"{size} bytes",
        code=ErrorCode.CHANGED, hint="Open it again once it is complete.",
    )  # fmt: skip
