"""What it costs to refuse each malformed file of the tests: `python benchmarks/hostile_costs.py [pytest arguments]`.

Runs the tests of malformed input with `squish.open` replaced by one that opens the same target first in a forked
child of this warm interpreter and measures there: seconds, and the growth of the child's own memory at its peak.
Prints the worst refusals; the aim is less than 50 ms and 50 MB. Linux only.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import squish_core
from squish_core import SquishError

ROOT = Path(__file__).parents[1]
SHOWN, SLOW, TRIES = 12, 0.05, 3


class Refusal(NamedTuple):
    """One malformed file: seconds and bytes until the error, and the test it belongs to."""

    seconds: float
    memory: int
    test: str
    error: str


class Costs:
    """A pytest plugin that measures every refusal."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.test = ""
        self._open = squish_core.open

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Measure while the test runs."""
        self.test = item.nodeid.replace("tests/", "")
        squish_core.open = self._measured
        try:
            return (yield)
        finally:
            squish_core.open = self._open

    def _measured(self, *args: Any, **options: Any) -> Any:
        tries: list[tuple[float, int, str]] = []
        while len(tries) < TRIES and (not tries or tries[-1][0] > SLOW):  # a busy machine is not the file's fault
            tries.append(in_child(lambda: self._open(*args, **options)))
        seconds, memory, error = min(tries)
        if error:
            self.refusals.append(Refusal(seconds, memory, self.test, error))
        return self._open(*args, **options)


def in_child(action: Callable[[], Any]) -> tuple[float, int, str]:
    """Seconds, peak bytes of own memory, and the name of the SquishError (or ""), in a forked child."""
    end, start = os.pipe()
    child = os.fork()
    if child:
        os.close(start)
        with os.fdopen(end) as answer:
            costs = json.load(answer)
        os.waitpid(child, 0)
        return costs[0], costs[1], costs[2]
    error = ""
    tracemalloc.stop()
    gc.freeze()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, began = memory(), time.perf_counter()
    try:
        action()
    except SquishError as raised:
        error = type(raised).__name__
    except BaseException as raised:
        error = f"!! {type(raised).__name__}"
    seconds, after = time.perf_counter() - began, memory()
    # Pages of mapped files count in the peak, too, and are not own memory.
    own = after["VmHWM"] - before["VmRSS"] - (after["RssFile"] - before["RssFile"])
    os.write(start, json.dumps([seconds, max(own, 0), error]).encode())
    os._exit(0)


def memory() -> dict[str, int]:
    """The kernel's account of this process, in bytes."""
    text = Path("/proc/self/status").read_text()
    return {key: int(value) << 10 for key, value in re.findall(r"(VmHWM|VmRSS|RssFile):\s+(\d+) kB", text)}


def main(arguments: list[str]) -> int:
    """Run the tests, print the worst refusals."""
    for name in squish_core.registry().containers:
        squish_core.registry().container(name)  # importing a plugin is no cost of the file
    costs = Costs()
    paths = [str(path) for path in sorted(ROOT.glob("plugins/*/tests/test_*malformed*.py"))]
    code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *(arguments or paths)], plugins=[costs])
    print(f"\n{len(costs.refusals)} refusals")
    measures: list[tuple[str, str, Callable[[Refusal], float]]] = [
        ("slowest", "ms", lambda refusal: refusal.seconds * 1e3),
        ("largest", "MB", lambda refusal: refusal.memory * 1e-6),
    ]
    for title, unit, measure in measures:
        print(f"{title}:")
        for refusal in sorted(costs.refusals, key=measure, reverse=True)[:SHOWN]:
            print(f"  {measure(refusal):9.1f} {unit}  {refusal.test}  {refusal.error}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
