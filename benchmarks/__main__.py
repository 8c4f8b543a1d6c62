"""`python -m benchmarks [GROUP ...] [--quick] [--write]`"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.table import Section

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = PAGE.with_suffix("")
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]  # the oracles are a test helper

# group -> the plugin that it needs; a module of this package with `run(quick) -> markdown` or a Section
GROUPS = {
    "loading": "squish_ztensor",
    "decoding": "squish_ggml",
    "startup": "squish_core",
    "calls": "squish_gguf",
    "wires": "squish_ztensor",
    "uqff": "squish_uqff",
    "models": "squish_models",
    "gguf_to_mlx": "squish_models",
    "language_models": "squish_torch",
    "checkpoints": "squish_hf",
    "compressed": "squish_zstd",
    "tiers": "squish_npydir",
    "kernels.limits": "squish_cpu",
    "kernels.decode": "squish_cpu",
    "kernels.levels": "squish_cpu",
    "kernels.products": "squish_cpu",
    "kernels.encode": "squish_cpu",
    "packages": "squish_ane",
    "squizd": "squish_squizd",
    "remote": "squish_remote",
    "jobs": "squish_gguf",
    "onnx": "squish_onnx",
}


def main() -> None:
    """Run the groups and print (or write) their sections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (`kernels`: all of its own); all by default"
    )
    parser.add_argument("--quick", action="store_true", help="small files and few rounds, to try it out")
    parser.add_argument("--write", action="store_true", help=f"write the sections of docs/{PAGE.name}")
    options = parser.parse_args()
    chosen = {
        group_name: [name for name in GROUPS if f"{name}.".startswith(f"{group_name}.")]
        for group_name in options.groups
    }
    if unknown := [group_name for group_name, names in chosen.items() if not names]:
        parser.error(f"no such group: {', '.join(unknown)}")
    for name in [name for names in chosen.values() for name in names] or GROUPS:
        if not find_spec(GROUPS[name]):
            print(f"{name}: left out, {GROUPS[name]} is not installed", file=sys.stderr)
            continue
        section = importlib.import_module(f"benchmarks.{name}").run(options.quick)
        section = section if isinstance(section, Section) else Section(section, {})
        section = section._replace(text=f"{machine()}\n{section.text}")
        print(section.text, flush=True)
        if options.write:
            write(name, section)


def write(group: str, section: Section) -> None:
    """Put a group's section in its place on the page, below what people wrote, and its plots beside the page."""
    sections = dict.fromkeys(GROUPS, "")
    intro, *pieces = PAGE.read_text().split("<!-- group ")
    for piece in pieces:
        name, _, body = piece.partition(" -->\n")
        if name in GROUPS:
            sections[name] = body
    sections[group] = f"{section.text.rstrip()}\n\n"
    parts = (f"<!-- group {name} -->\n{body}" for name, body in sections.items() if body)
    PAGE.write_text(f"{intro}{''.join(parts).rstrip()}\n")
    for name, svg in section.plots.items():
        PLOTS.mkdir(exist_ok=True)
        (PLOTS / name).write_text(svg)


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
