"""Runs the tests that need nothing else, on every system: `python -m tests [WORDS FOR PYTEST...]`.

`make test` is the same. The root of the repository is the current folder; what the tests need is installed by
`python -m tests --requirements > needed.txt` and `uv pip install -c constraints.txt --overrides without-torch.txt -r
needed.txt`. A name of a plugin's folder after `--requirements` leaves it out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SELECTION = "not oracle and not fuzz and not system"
TOOLS = (
    "jsonschema", "matplotlib", "model-signing", "mypy", "pandas", "polars", "pyopenssl", "pytest-textual-snapshot",
    "pytest-xdist", "pyyaml", "ruff", "sybil", "textual",
)  # fmt: skip
COMPILED = {"cpu_backend": "squish_cpu"}
"""Folder of a plugin that is compiled when it is installed -> its import package."""


def requirements(left_out: list[str]) -> list[str]:
    """Lines of a requirements file: the core, every plugin with what its tests need, and the tools."""
    plugins = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml") if path.parent.name not in left_out)
    extras = {True: "[testing]", False: ""}
    return ["-e .", *(f"-e ./plugins/{each.name}{extras[(each / 'tests').is_dir()]}" for each in plugins), *TOOLS]


def command(words: list[str]) -> list[str]:
    """The command line of pytest, in as many processes as there are cores."""
    absent = [folder for folder, package in COMPILED.items() if find_spec(package) is None]
    for folder in absent:
        print(f"plugins/{folder} is not installed, so its tests are left out", file=sys.stderr)
    parallel = ["-n", "auto", "--dist", "loadfile"] if find_spec("xdist") else []
    ignored = [f"--ignore=plugins/{folder}" for folder in absent]
    return [sys.executable, "-m", "pytest", *parallel, *ignored, "-m", SELECTION, *words]


def main(words: list[str]) -> int:
    """Run the tests, or print the requirements."""
    if words[:1] == ["--requirements"]:
        print("\n".join(requirements(words[1:])))
        return 0
    # Tests read and write text without naming its encoding; the packages name it.
    return subprocess.run(command(words), cwd=ROOT, env={**os.environ, "PYTHONUTF8": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
