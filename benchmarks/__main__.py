"""`python -m benchmarks [loading|decoding|startup|tiers ...] [--quick] [--write]`"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the oracles are a test helper

INTRO = """# Benchmarks

`python -m benchmarks --write` measures and writes this page, `make bench` prints it: medians, the peers interleaved
in the same run, each in an environment and process of its own (`tests/oracles`). Ratios count; absolute times vary from
machine to machine and minute to minute.
"""


def main() -> None:
    """Run the groups and print (or write) the page."""
    from benchmarks import decoding, loading, startup, tiers

    groups = {"loading": loading.run, "decoding": decoding.run, "startup": startup.run, "tiers": tiers.run}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(groups)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small files and few rounds, to try it out")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    page = [INTRO, machine()]
    for name in options.groups or groups:
        section = groups[name](options.quick)
        print(section, flush=True)
        page.append(section)
    if options.write:
        (ROOT / "docs" / "benchmarks.md").write_text("\n".join(page))


def machine() -> str:
    """The machine in a line."""
    import os

    import numpy as np

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return (
        f"Machine: {model}, {os.cpu_count()} cores, {platform.system()}; "
        f"Python {platform.python_version()}, NumPy {np.__version__}.\n"
    )


main()
