"""Builds tiers for the next load in a thread, while the first load reads the directory's own files.

A build that still runs when the process ends is finished first, with a line on the standard error stream. A killed
build continues at the next load.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from squish_core.api import SquishError, start_finishing
from squish_core.api import open as open_model

from . import cache, choice

_builds: dict[str, Build] = {}
_lock = threading.Lock()


class Build:
    """A build in progress; `error` is set if it failed."""

    def __init__(self, folder: Path, tiers: Sequence[str]) -> None:
        self.folder, self.tiers = folder, tuple(tiers)
        self.error: SquishError | None = None
        self._thread = start_finishing(self._run, "squish tiers", self._at_exit)

    def is_alive(self) -> bool:
        """Return whether it is still in progress."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            for tier in self.tiers:
                cache.build(self.folder, tier)
        except SquishError as error:  # the model stays readable, so the load succeeds
            self.error = error

    def _at_exit(self) -> None:
        names = " and ".join(self.tiers)
        print(
            f"squish: finishing the tiers {names} of {self.folder}; if interrupted, the next load continues",
            file=sys.stderr,
            flush=True,
        )


def start(folder: Path) -> Build | None:
    """Start building the next tiers of a directory without tiers; None if it has them, or none can be built.

    Returns the running build if there is one.
    """
    key = os.path.realpath(folder)
    with _lock:
        if key in _builds and _builds[key].is_alive():
            return _builds[key]
        with open_model(folder, "npydir") as file:
            tiers = choice.next_tiers(file.index, file.source, file.limits)
        if not tiers:
            return None
        _builds[key] = build = Build(folder, tiers)
        return build


def wait(folder: Path) -> Build | None:
    """Wait for the build of a directory and return it; None if none was started in this process."""
    build = _builds.get(os.path.realpath(folder))
    if build is not None:
        build.join()
    return build
