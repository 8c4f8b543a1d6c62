"""Differences between operating systems: file locks, writes at an offset, open folders, renames, process memory.

No other module checks the system, except `local` (mappings), `sink` (allocation) and `cache` (the user's folder).
Windows locks are mandatory, so one byte far behind the end of a file stands for the file: its data stays readable. It
opens no folders, so a file in a folder stands for the folder. It neither renames nor removes open files, so they are
closed before, and it refuses to replace a file that anything has open or mapped.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
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

IS_POSIX = _fcntl is not None
BINARY = getattr(os, "O_BINARY", 0)
LOCKED_BYTE = 1 << 62
"""Offset of the byte that is locked on Windows."""
LOCK_FILE = ".squish-lock"
"""The file in a temporary folder whose lock stands for the folder on Windows."""
PATIENCE = 1.0
"""Seconds for which a file in use on Windows is tried again: a reader or a scanner may have it open for a moment."""
_POLL = 0.02
_position_lock = threading.Lock()


def lock(fd: int, shared: bool = False) -> None:
    """Lock an open file at once: BlockingIOError if another one has the lock, OSError if its system has no locks."""
    if IS_POSIX:
        _fcntl.flock(fd, _fcntl.LOCK_NB | (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX))
        return
    if _msvcrt is None:
        raise OSError("no locks")
    try:
        _locking(fd, _msvcrt.LK_NBLCK)  # Windows offers exclusive locks only
    except PermissionError:
        raise BlockingIOError from None


def unlock(fd: int) -> None:
    """Release the lock of an open file."""
    if IS_POSIX:
        _fcntl.flock(fd, _fcntl.LOCK_UN)
    else:
        _locking(fd, _msvcrt.LK_UNLCK)


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
    resource = _module("resource")
    if resource is None:
        return _peak_on_windows()
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if os.uname().sysname == "Darwin" else peak * 1024


def _peak_on_windows() -> int | None:
    """`PeakWorkingSetSize` of GetProcessMemoryInfo."""
    import ctypes

    windows: Any = getattr(ctypes, "windll", None)
    if windows is None:
        return None
    sizes = (ctypes.c_size_t * 10)()  # PROCESS_MEMORY_COUNTERS: two numbers of 32 bits, then eight sizes
    sizes_at = ctypes.sizeof(ctypes.c_uint32) * 2
    ctypes.c_uint32.from_buffer(sizes).value = sizes_at + 8 * ctypes.sizeof(ctypes.c_size_t)
    kernel = windows.kernel32
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    size = ctypes.c_uint32.from_buffer(sizes).value
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), sizes, size):
        return None
    return ctypes.c_size_t.from_buffer(sizes, sizes_at).value


WAIT = 10.0
"""Seconds to wait for another process's lock."""


def try_lock(fd: int, shared: bool = False) -> bool | None:
    """Lock an open file: False if another descriptor has the lock, None if the file system has no locks."""
    try:
        lock(fd, shared)
    except BlockingIOError:
        return False
    except OSError:
        return None
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
    if free:
        unlock(fd)
    return None if free is None else not free


def is_same_file(path: Path, fd: int) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except OSError:
        return False
