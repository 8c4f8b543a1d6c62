"""What starting costs: importing the core, and listing what is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import oracles

from benchmarks.table import Row, markdown


def run(quick: bool) -> str:
    """Whole processes, against bare Python and against importing NumPy."""
    bare, numpy = python("pass"), python("import numpy")
    cases = {
        "python -c 'import squish_core'": (python("import squish_core"), "adds <= 10 ms to bare Python"),
        "squish formats": (command("formats"), "<= 2.5x of importing NumPy"),
        "squish plugins": (command("plugins"), "<= 2.5x of importing NumPy"),
    }
    rows = []
    for name, (call, target) in cases.items():
        seconds = oracles.interleave({"ours": call, "bare Python": bare, "import numpy": numpy}, 3 if quick else 15)
        rows.append(Row(name, seconds.pop("ours"), seconds, target=target))
    return markdown("Startup", "Wall time of whole processes.", rows)


def python(code: str) -> Callable[[], object]:
    """A process that runs one line."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def command(*words: str) -> Callable[[], object]:
    """A process of the command line."""
    return lambda: subprocess.run([sys.executable, "-m", "squish_core", *words], check=True, stdout=subprocess.DEVNULL)
