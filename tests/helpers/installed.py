"""Installed distributions in little, for tests that run a plugin as its users would."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path


def run_own_tests(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a plugin's folder, with its package and entry points installed in `site` and nowhere else."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["squish"]
    (package,) = (path for path in (folder / "src").iterdir() if path.suffix != ".egg-info")
    (site / package.name).symlink_to(package)
    info = site / f"{package.name}-{project['version']}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata)
    entries = "".join(f"{name} = {module}\n" for name, module in points.items())
    (info / "entry_points.txt").write_text(f"[squish]\n{entries}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not fuzz", "-c", "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
