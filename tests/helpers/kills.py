"""Work that is killed at its n-th write, sync, rename, cut or removal, for every n.

`kill_everywhere(code, root)` runs `prepare(folder)` and `work(folder)`, as `code` defines them, in `root/0`, `root/1`,
...: a forked child kills itself by SIGKILL at step n, until the work completes. Even folders are killed before the
step, odd ones after half of a write.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

HOOKED = (
    "fsync",
    "pwrite",
    "replace",
    "rename",
    "link",
    "truncate",
    "ftruncate",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "copy_file_range",
)


def kill_everywhere(code: str, root: Path, least: int = 6) -> list[Path]:
    """The folders in which the work was killed, one for each step; the last folder, where it completed, is not one."""
    script = root / "work.py"
    script.write_text(code)
    ran = subprocess.run([sys.executable, __file__, str(script), str(root)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    folders = sorted((path for path in root.iterdir() if path.is_dir()), key=lambda path: int(path.name))
    assert len(folders) > least, "the hooks were not reached"
    return folders[:-1]


class Steps:
    """Counts steps, and kills the process at one of them."""

    def __init__(self, last: int, torn: bool) -> None:
        self.count, self.last, self.torn = 0, last, torn

    def take(self, half: Any = None) -> None:
        self.count += 1
        if self.count == self.last:
            if half and self.torn:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        steps, real_open = self, io.open

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                view = memoryview(data).cast("B")
                write = super().write
                steps.take(lambda: write(view[: len(view) // 2]))
                return write(view)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, opener: Any = None, **more: Any) -> Any:
            if "b" not in mode or not set(mode) & set("wxa+"):
                return real_open(file, mode, buffering, *rest, opener=opener, **more)
            size = buffering if buffering > 0 else io.DEFAULT_BUFFER_SIZE
            raw = Raw(file, mode, opener=opener)
            return io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)

        def hooked(function: Any) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                steps.take()
                return function(*args, **named)

            return call

        builtins.open = io.open = opened  # type: ignore[assignment]
        for name in HOOKED:
            if hasattr(os, name):
                setattr(os, name, hooked(getattr(os, name)))


def main(script: Path, root: Path) -> int:
    """Kill the work at one step after the other until it completes."""
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    number = 0
    for last in range(1, 500):
        for torn in (False, True):
            folder = root / str(number)
            folder.mkdir()
            number += 1
            names["prepare"](folder)
            status = _run(names["work"], folder, Steps(last, torn))
            if status == 0:
                return 0
            if not os.WIFSIGNALED(status):
                return 1
    return 1


def _run(work: Any, folder: Path, steps: Steps) -> int:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        steps.install()
        work(folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
