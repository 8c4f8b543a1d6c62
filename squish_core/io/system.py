"""Differences between operating systems: locks, reads and writes at an offset, open folders, renames, cores, memory.

Modules outside `io` use nothing that Windows lacks; in it, `local` (mappings), `sink` (allocation and copies in the
kernel) and `cache` (the user's folder) check the system, too. It imports the vocabulary alone, and is below
`concurrency`, which asks it for the cores.
Windows locks are mandatory, so one byte far behind the end of a file stands for the file: its data stays readable. It
opens no folders, so a file in a folder stands for the folder. It neither renames nor removes open files, so they are
closed before, and it refuses to replace a file that anything has open or mapped.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from squish_core.errors import WriteError


def _module(name: str) -> Any:
    """Return a module of the standard library, or None where the system lacks it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl: Any = _module("fcntl")
_msvcrt: Any = None if _fcntl else _module("msvcrt")
_resource: Any = _module("resource")

IS_POSIX = _fcntl is not None
BINARY = getattr(os, "O_BINARY", 0)
READ = os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0)
"""Flags to open a file for reading: a pipe in its place must not wait for a writer."""
READ_NO_LINK = READ | getattr(os, "O_NOFOLLOW", 0)
WRITES_IN_THREADS = hasattr(os, "pwrite")
"""Whether `write_at` leaves the descriptor's position alone, so that threads can share it."""
LOCKED_BYTE = 1 << 62
"""Offset of the byte that is locked on Windows."""
LOCK_FILE = ".squish-lock"
"""The file in a temporary folder whose lock stands for the folder on Windows."""
PATIENCE = 1.0
"""Seconds for which a file in use on Windows is tried again: a reader or a scanner may have it open for a moment."""
_POLL = 0.02
_position_lock = threading.Lock()


WAIT = 10.0
"""Seconds to wait for another process's lock."""


def try_lock(fd: int, shared: bool = False) -> bool | None:
    """Lock an open file: False if another descriptor has the lock, None if the file system has no locks."""
    try:
        if IS_POSIX:
            _fcntl.flock(fd, _fcntl.LOCK_NB | (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX))
        elif _msvcrt is not None:
            _locking(fd, _msvcrt.LK_NBLCK)  # Windows offers exclusive locks only
        else:
            return None
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, None if IS_POSIX else errno.EACCES) else None
    return True


def wait_lock(fd: int, seconds: float = WAIT) -> bool | None:
    """Lock an open file, waiting up to `seconds`; returns what `try_lock` does."""
    deadline = time.monotonic() + seconds
    while (locked := try_lock(fd)) is False and time.monotonic() < deadline:
        time.sleep(_POLL)
    return locked


def is_locked(fd: int) -> bool | None:
    """Return whether another descriptor has locked the open file; None if the file system has no locks."""
    free = try_lock(fd, shared=True)
    if free and IS_POSIX:
        _fcntl.flock(fd, _fcntl.LOCK_UN)
    elif free:
        _locking(fd, _msvcrt.LK_UNLCK)
    return None if free is None else not free


def _locking(fd: int, mode: int) -> None:
    """Lock or unlock the byte, which is at the descriptor's position meanwhile."""
    with _position_lock:
        position = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        try:
            _msvcrt.locking(fd, mode, 1)
        finally:
            os.lseek(fd, position, os.SEEK_SET)


def lockable(path: Path) -> Path:
    """Return the file whose lock stands for a file or folder."""
    return path / LOCK_FILE if not IS_POSIX and path.is_dir() else path


def open_folder(path: Path) -> int:
    """Open a new folder for its lock."""
    if IS_POSIX:
        return os.open(path, os.O_RDONLY)
    return os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | BINARY)


def release(path: Path, fd: int) -> None:
    """Close the descriptor of a file or folder that is complete, so that it can be renamed or removed."""
    os.close(fd)
    if not IS_POSIX and path.is_dir():
        _patiently(lambda: (path / LOCK_FILE).unlink(missing_ok=True))


def replace(path: Path | str, target: Path | str) -> None:
    """Rename a file or folder, replacing the target; WriteError where the system refuses it because it is in use."""
    try:
        _patiently(lambda: os.replace(path, target))
    except PermissionError as error:
        if IS_POSIX:
            raise
        raise WriteError(
            "cannot be replaced or renamed while it is open",
            file=str(target),
            code="unwritable",
            found=error.strerror or str(error),
            hint="Close the files and arrays that read it, in other programs too, and try again; or choose a new name.",
        ) from None


def unlink(path: Path | str) -> None:
    """Remove a file."""
    _patiently(lambda: os.unlink(path))


def _patiently(call: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            call()
        except PermissionError:
            if IS_POSIX or time.monotonic() >= deadline:
                raise
        else:
            return
        time.sleep(_POLL)


def set_mode(fd: int, mode: int) -> None:
    """Set the permissions of an open file, if the system and its file system have any."""
    if IS_POSIX and hasattr(os, "fchmod"):
        try:
            os.fchmod(fd, mode)
        except OSError:
            return


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable; OSError if that fails. Windows has no call for it."""
    if IS_POSIX:
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_files(folder: Path) -> None:
    """Make everything that was written below a folder durable.

    Parameters
    ----------
    folder
        The folder. Where the system can, it syncs all its files at once, these among them.

    Examples
    --------
    >>> from pathlib import Path
    >>> sync_files(Path())
    """
    if hasattr(os, "sync"):
        os.sync()
        return
    for parent, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(parent, name), os.O_RDWR | BINARY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Read up to `length` bytes at an offset of a file; the descriptor's position may change."""
    if hasattr(os, "pread"):
        return os.pread(fd, length, offset)
    with _position_lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, length)


def read_into_at(fd: int, out: memoryview, offset: int) -> int:
    """Read bytes at an offset of a file into memory; returns their number. The descriptor's position may change."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [out], offset)
    with _position_lock, FileIO(fd, closefd=False) as file:
        file.seek(offset)
        return file.readinto(out)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all bytes at an offset of a file; the descriptor's position may change."""
    while data:
        if hasattr(os, "pwrite"):
            count = os.pwrite(fd, data, offset)
        else:
            with _position_lock:
                os.lseek(fd, offset, os.SEEK_SET)
                count = os.write(fd, data)
        data, offset = data[count:], offset + count


def user_name() -> str:
    """Name of the user who runs this process, else the user id, else "unknown"."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, or Windows without USERNAME
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def peak_memory() -> int | None:
    """Peak memory of this process.

    Returns
    -------
    int or None
        Bytes; None if the system does not tell.

    Examples
    --------
    >>> (peak_memory() or 0) > 1_000_000
    True
    """
    if _resource is not None:
        peak: int = _resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    # PROCESS_MEMORY_COUNTERS: its length and the page faults, then eight sizes. -1: this process.
    counters = _windows_sizes("K32GetProcessMemoryInfo", 8, -1)
    return counters[1] if counters else None


def machine_memory() -> tuple[int | None, int | None]:
    """Memory of the machine, and how much of it is available.

    Returns
    -------
    tuple of int or None
        Bytes; None for what the system does not tell.

    Examples
    --------
    >>> total, available = machine_memory()
    >>> total is None or available is None or 0 < available < total
    True
    """
    if sizes := _windows_sizes("GlobalMemoryStatusEx", 7):  # MEMORYSTATUSEX: its length and the load, then seven sizes
        return sizes[1], sizes[2]
    total = available = None
    with suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    return total, available


def _windows_sizes(function: str, count: int, *arguments: int) -> Any:
    """Let a function of 64-bit Windows fill a structure of two 32-bit numbers and `count` sizes; None elsewhere."""
    import ctypes

    windows: Any = getattr(ctypes, "windll", None)
    if windows is None or sys.maxsize < 1 << 32:
        return None
    sizes = (ctypes.c_uint64 * (count + 1))((count + 1) * 8)  # the first number is the structure's length
    length = (ctypes.c_uint32(ctypes.sizeof(sizes)),) if arguments else ()
    filled = getattr(windows.kernel32, function)(*map(ctypes.c_void_p, arguments), sizes, *length)
    return sizes if filled else None


@contextmanager
def limited_memory(memory: int) -> Iterator[None]:
    """MemoryError, on Linux, for allocations beyond `memory` bytes on top of the current mappings."""
    with open("/proc/self/statm", "rb") as pages:
        mapped = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = _resource.getrlimit(_resource.RLIMIT_AS)
    lower = min([mapped + memory, *(limit for limit in before if limit != _resource.RLIM_INFINITY)])
    _resource.setrlimit(_resource.RLIMIT_AS, (lower, before[1]))
    try:
        yield
    finally:
        _resource.setrlimit(_resource.RLIMIT_AS, before)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_same_file(path: Path, fd: int) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except OSError:
        return False


def exchange(first: Path, second: Path) -> bool:
    """Let two paths swap what they lead to, in one step; return whether the system and its file system can."""
    import ctypes

    if not IS_POSIX:
        return False
    names, library, swap = (os.fsencode(first), os.fsencode(second)), ctypes.CDLL(None), 2
    try:
        if sys.platform == "darwin":
            return library.renamex_np(*names, swap) == 0
        current_folder = -100
        return library.renameat2(current_folder, names[0], current_folder, names[1], swap) == 0
    except AttributeError:  # an older system
        return False
