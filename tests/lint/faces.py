"""Writes the stubs (`.pyi`) of modules whose names are loaded on first use: `python tests/lint/faces.py [--check]`.

Type checkers read the stub, Python reads the table `_NAMES` in the module; so the stub is generated from the table.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERFACES = [f"{path.parent.name}.api" for path in sorted(ROOT.glob("plugins/*/src/*/api.py"))]
FACES = ("squish_core", "squish_core.api", "squish_core.testing", *INTERFACES)


def stub(face: str) -> tuple[Path, str]:
    """Path and text of the stub of a module."""
    module = importlib.import_module(face)
    lines = ["# Generated from the table of the module: python tests/lint/faces.py"]
    for home, names in sorted(module._NAMES.items()):
        lines += [f"from {home} import {name} as {name}" for name in sorted(names)]
    return Path(str(module.__file__)).with_suffix(".pyi"), "\n".join([*lines, ""])


def main() -> int:
    """Write each stub that differs; with `--check` only list them, and exit with 1 if there are any."""
    check = "--check" in sys.argv
    stale = [(path, text) for path, text in map(stub, FACES) if not path.exists() or path.read_text() != text]
    for path, text in stale:
        print(path)
        if not check:
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
