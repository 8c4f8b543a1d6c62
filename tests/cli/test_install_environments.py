"""In each kind of environment, the hint of a failed command makes the command work.

The environments are real ones of pip, uv and pipx, with Squish from this checkout and from wheels; they need a package
index for what Squish requires. That of conda is made up: its `conda` installs pip alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "data" / "sample.gguf"
UV = Path(sys.executable).with_name("uv")
FOLDERS = ("convert", "cli", "codecs", "ggml", "gguf")
CONDA = '#!/bin/sh\nexec "$4/bin/python" -m ensurepip\n'
"""Stands for `conda install --yes --prefix PREFIX pip`."""
pytestmark = [pytest.mark.system, pytest.mark.skipif(not UV.is_file(), reason="uv is not in this environment")]


class Place:
    """A folder with one environment; tools see nothing of the user's."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder, self.bin = folder, folder / "env" / "bin"
        self.commands = folder / "commands"
        self.commands.mkdir(parents=True)
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SQUISH_", "PIP_"))},
            **{name: str(folder / "tools") for name in ("UV_TOOL_DIR", "PIPX_HOME")},
            **{name: str(self.commands) for name in ("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR")},
            "PATH": os.pathsep.join(map(str, (self.commands, self.bin, UV.parent, tools / "bin", "/usr/bin", "/bin"))),
            "COLUMNS": "2000",
        }

    def run(self, *command: str | Path, **more: str) -> None:
        """Run a command that must succeed."""
        done = self.result(*command, **more)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def result(self, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command outside the checkout, which is found from anywhere."""
        variables: Mapping[str, str] = {**self.variables, **more}
        return subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True)


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pipx."""
    folder = tmp_path_factory.mktemp("tools") / "env"
    subprocess.run([UV, "venv", "--quiet", folder], check=True)
    command = [UV, "pip", "install", "--quiet", "--python", folder, "-c", ROOT / "constraints.txt", "pipx"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, *(ROOT / "plugins" / name for name in FOLDERS)):
        subprocess.run([UV, "build", "--quiet", "--wheel", "--no-sources", "-o", folder, source], check=True)
    return folder


def of_pip(place: Place, source: str, links: list[str]) -> None:
    """A plain environment with pip."""
    place.run(UV, "venv", "--quiet", "--seed", place.bin.parent)
    place.run("pip", "install", "--quiet", *links, *source.split())


def of_uv(place: Place, source: str, links: list[str]) -> None:
    """An environment of uv, without pip."""
    place.run(UV, "venv", "--quiet", place.bin.parent)
    place.run(UV, "pip", "install", "--quiet", "--python", place.bin / "python", *links, *source.split())


def of_conda(place: Place, source: str, links: list[str]) -> None:
    """What looks like an environment of conda, without pip."""
    of_uv(place, source, links)
    (place.bin.parent / "conda-meta").mkdir()
    (place.commands / "conda").write_text(CONDA)
    (place.commands / "conda").chmod(0o755)


def of_uv_tool(place: Place, source: str, links: list[str]) -> None:
    """A tool of uv."""
    main, *others = source.split()
    place.run(UV, "tool", "install", "--quiet", *links, main, *(f"--with={other}" for other in others))


def of_pipx(place: Place, source: str, links: list[str]) -> None:
    """An application of pipx. From folders it is the core alone, and the first hint installs the commands."""
    arguments = [f"--pip-args={' '.join(links)}"] if links else []
    place.run("pipx", "install", "--quiet", *arguments, source.split()[0].partition("[" if not links else "\0")[0])


KINDS = {"pip": of_pip, "uv": of_uv, "conda": of_conda, "uv tool": of_uv_tool, "pipx": of_pipx}


@pytest.mark.parametrize("origin", ["checkout", "wheels"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_hint_of_a_failed_command_makes_it_work(
    kind: str, origin: str, wheels: Path, tools: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path, tools)
    if origin == "checkout":
        links, source = [], f"{ROOT}[cli] {ROOT}/plugins/convert {ROOT}/plugins/cli"
    else:
        (core,) = wheels.glob("squish_core-*.whl")
        links, source = [f"--find-links={wheels}"], f"{core}[cli]"
    KINDS[kind](place, source, links)
    squish = place.commands / "squish" if kind in ("uv tool", "pipx") else place.bin / "squish"
    hints = []
    while (done := place.result(squish, "info", SAMPLE)).returncode:
        assert done.returncode == 2
        (hint,) = re.findall("`(.*)`", done.stderr)
        assert hint not in hints, done.stderr
        hints.append(hint)
        place.run("sh", "-c", hint)
    assert hints
    assert "2" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_install_takes_packages_from_a_folder_of_wheels(kind: str, wheels: Path, tools: Path, tmp_path: Path) -> None:
    """Where Squish was installed by name, nothing but the option says where packages are."""
    place = Place(tmp_path, tools)
    KINDS[kind](place, "squish-core[cli]", [f"--find-links={wheels}"])
    squish = place.commands / "squish" if kind in ("uv tool", "pipx") else place.bin / "squish"
    line = [squish, "install", "squish-gguf", "--find-links", os.path.relpath(wheels, tmp_path)]
    before = place.result(*line, "--dry-run")
    place.run(*line, "--yes")
    place.run(squish, "info", SAMPLE)
    assert place.result(*line, "--dry-run").stdout.count("squish-gguf") >= before.stdout.count("squish-gguf") == 1


def test_the_made_up_conda_is_asked_for_pip(wheels: Path, tools: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, tools)
    of_conda(place, "squish-core[cli]", [f"--find-links={wheels}"])
    shown = place.result(place.bin / "squish", "install", "scipy", "--dry-run").stdout
    assert re.match(r"conda install --yes --prefix \S+ pip && \S+ -m pip install scipy$", shown)
    assert shutil.which("pip", path=str(place.bin)) is None
