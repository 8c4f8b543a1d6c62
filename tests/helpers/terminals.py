"""A shell in a pseudo-terminal: type, and read what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence

CONTROLS = re.compile(r"\x1b\[[0-9;?>]*[a-zA-Z]|\x1b[=>()][0-9A-Z]?|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|[\x07\x0f]")


def printed(shown: bytes) -> str:
    """Return what a program shows, without the controls of a terminal."""
    return CONTROLS.sub("", shown.decode(errors="replace"))


def without_spaces(text: str) -> str:
    """Return a text without white space, which shells redraw."""
    return "".join(text.split())


class Terminal:
    """A program in a terminal of 200 columns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        self._process, self._end = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, {**environment, "TERM": "xterm"})
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._end, text.encode())

    def read(self, until: str = "", quiet: float = 1.0, limit: float = 20.0) -> str:
        """Return what the terminal shows: until it has a text, spaces aside, or nothing comes for `quiet` seconds."""
        shown, end = b"", time.monotonic() + limit
        while time.monotonic() < end:
            ready, _, _ = select.select([self._end], [], [], max(end - time.monotonic(), 0) if until else quiet)
            if not ready:
                break
            try:
                shown += os.read(self._end, 65536)
            except OSError:  # the program ended
                break
            self._answer(shown)
            if until and without_spaces(until) in without_spaces(printed(shown)):
                break
        return printed(shown)

    def _answer(self, shown: bytes) -> None:
        """Answer the questions that fish asks terminals."""
        if shown.endswith((b"\x1b[c", b"\x1b[0c")):
            os.write(self._end, b"\x1b[?62;c")

    def close(self) -> None:
        """End the program."""
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._end)
