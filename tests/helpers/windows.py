"""A process that looks like Windows where it matters here: `import windows` first. Used by test_windows.py.

`fcntl` and the other POSIX modules are missing, and so are the functions of `os`. `msvcrt.locking` locks bytes in a
table in the folder WINDOWS_LOCKS, which processes share; one lock for each open file, which ends with it. As on
Windows, open files are neither renamed nor removed, and a locked byte can neither be read nor written by others.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - as typer
import errno
import fcntl as _fcntl  # of the real system, for the fake
import mmap
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 - as typer
import typer  # noqa: F401 - libraries that choose by `sys.platform` are loaded before the modules are gone

MISSING_MODULES = ("fcntl", "resource", "termios", "pwd", "grp")
MISSING_FUNCTIONS = (
    "pwrite", "pread", "preadv", "pwritev", "sync", "fchmod", "fchown", "chown", "getuid", "geteuid", "getgid",
    "sched_getaffinity", "copy_file_range", "sendfile", "fork", "register_at_fork", "posix_fallocate", "posix_fadvise",
    "killpg", "setsid", "mkfifo", "getloadavg", "sysconf", "uname", "readv", "writev", "nice", "chroot",
    "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "O_SYNC", "WNOHANG", "getpgid", "getrlimit", "wait4",
)  # fmt: skip
_REAL = {name: getattr(os, name) for name in ("open", "close", "replace", "rename", "unlink", "rmdir", "lseek")}
_LOCKS = Path(os.environ["WINDOWS_LOCKS"])
_held: dict[int, int] = {}
"""Descriptor -> that of its file in the table."""
offsets: list[int] = []
"""The bytes that were locked."""


def _locking(fd: int, mode: int, nbytes: int) -> None:
    """Lock (2) or unlock (0) bytes from the descriptor's position on."""
    position, info = os.lseek(fd, 0, os.SEEK_CUR), os.fstat(fd)
    assert nbytes == 1
    assert position > info.st_size, "the data would be locked too"
    if mode == 0:
        _REAL["close"](_held.pop(fd))
        return
    if fd in _held:
        raise PermissionError(errno.EACCES, "Permission denied")
    table = _REAL["open"](_LOCKS / f"{info.st_ino}-{position}", os.O_RDWR | os.O_CREAT)
    try:
        _fcntl.flock(table, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        _REAL["close"](table)
        raise PermissionError(errno.EACCES, "Permission denied") from None
    offsets.append(position)
    _held[fd] = table


_positions: dict[int, int] = {}
"""Descriptor -> its position, where that is beyond any file of Linux."""


def _close(fd: int) -> None:
    """Close a descriptor and, as its file's last one, release its lock; Squish closes copies of it earlier."""
    _REAL["close"](fd)
    _positions.pop(fd, None)
    if fd in _held:
        _REAL["close"](_held.pop(fd))


def _lseek(fd: int, position: int, how: int) -> int:
    """Windows takes any position; a file system of Linux takes those that a file of it can have."""
    if how == os.SEEK_SET and position > 1 << 40:
        _positions[fd] = position
        return position
    if (how, position) == (os.SEEK_CUR, 0) and fd in _positions:
        return _positions[fd]
    _positions.pop(fd, None)
    result: int = _REAL["lseek"](fd, position, how)
    return result


def _open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    if os.path.isdir(path) and not flags & os.O_TMPFILE == os.O_TMPFILE:  # `tempfile` has its own way on Windows
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
    fd: int = _REAL["open"](path, flags, *arguments, **options)
    return fd


def _refuse_open(path: Any) -> None:
    """As CreateFile without FILE_SHARE_DELETE: files that this process has open stay where they are."""
    path = os.path.realpath(path)
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target == path or target.startswith(path + os.sep):
            raise PermissionError(errno.EACCES, "The process cannot access the file", path)
    with open("/proc/self/maps") as maps:
        if any(line.rstrip().endswith(f" {path}") for line in maps):
            raise PermissionError(errno.EACCES, "The process cannot access the file", path)


def _checked(name: str) -> Any:
    def call(*paths: Any, **options: Any) -> Any:
        for path in paths:
            if isinstance(path, (str, os.PathLike)):
                _refuse_open(path)
        return _REAL[name](*paths, **options)

    return call


class _Absent:
    """Finds nothing for the missing modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in MISSING_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def install() -> None:
    """Change this process."""
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore[attr-defined] # the same since Python 3.14
    for name in MISSING_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Absent())  # type: ignore[arg-type]
    for name in MISSING_FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)
    for name in dir(mmap):
        if name.startswith(("PROT_", "MAP_", "MADV_")):
            delattr(mmap, name)
    for name in ("replace", "rename", "unlink", "rmdir"):
        setattr(os, name, _checked(name))
    os.remove = os.unlink
    os.close, os.open, os.lseek = _close, _open, _lseek
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.LK_UNLCK, msvcrt.LK_LOCK, msvcrt.LK_NBLCK = 0, 1, 2
    msvcrt.locking = _locking
    sys.modules["msvcrt"] = msvcrt


install()
