"""Mapping a file read-only without keeping a descriptor: a model may have more files than a process may have open."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref


def mapped(fd: int, size: int) -> memoryview:
    """The first `size` bytes (at least one) of an open file; the mapping lives as long as views of it. OSError."""
    if sys.platform == "win32":
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    # `mmap.mmap` keeps a duplicate of the descriptor, which a mapping does not need (3.13 has trackfd=False).
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    held = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(held, _libc.munmap, address, size).atexit = False  # views may outlive everything else
    return memoryview(held).cast("B").toreadonly()


if sys.platform != "win32":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
