"""The example plugin passes its own tests, and the guide shows its code as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "acme_format"
BLOCKS = re.findall(r"```\w+\n# (\S+)\n(.*?)```", (ROOT / "docs" / "writing-a-plugin.md").read_text(), re.DOTALL)


def test_the_guide_marks_every_block_with_its_file() -> None:
    assert (ROOT / "docs" / "writing-a-plugin.md").read_text().count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_guide_shows_the_example_as_it_is(number: int) -> None:
    name, shown = BLOCKS[number]
    assert shown in (ROOT / name).read_text() + "\n", f"docs/writing-a-plugin.md shows other code than {name}"


def test_the_example_passes_the_kit(tmp_path: Path) -> None:
    # An installed distribution in little: the package and the entry point that its pyproject.toml declares.
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["squish"]
    entry = "".join(f"{name} = {module}\n" for name, module in points.items())
    (tmp_path / "acme_format").symlink_to(EXAMPLE / "src" / "acme_format")
    info = tmp_path / "acme_format-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-format\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[squish]\n{entry}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not fuzz", "-c", "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
