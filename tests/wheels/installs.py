"""Try each way to install Squish from a folder of wheels, where no compiler is: the CPU backend must run at once.

    python tests/wheels/installs.py FOLDER

Prints the seconds of each way, and those of the processor, which depend less on what else runs. What Squish requires
comes from a package index, or from pip's and uv's caches.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_SECONDS = 10
PLUGINS = ("squish-cpu", "squish-gguf", "squish-mlx")
SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample.gguf"
TOOLS = ("uv", "uvx", "pipx")


class InstallError(Exception):
    """What went wrong, with the output of the command that showed it."""


def ways(wheels: Path) -> dict[str, tuple[list[list[str]], list[str]]]:
    """Way -> its commands, and `squish`."""
    links, plugins = f"--find-links={wheels}", list(PLUGINS)
    with_plugins = [f"--with={name}" for name in plugins]
    main = "squish-core[cli]"
    return {
        "uv tool install": ([["uv", "tool", "install", "-q", links, main, *with_plugins]], ["tools/bin/squish"]),
        "uvx --from": ([], ["uvx", "-q", links, "--from", main, *with_plugins, "squish"]),
        "uv pip": (
            [["uv", "venv", "-q", "env"], ["uv", "pip", "install", "-q", "--python", "env", links, main, *plugins]],
            ["env/bin/squish"],
        ),
        "pip": (
            [[sys.executable, "-m", "venv", "env"], ["env/bin/pip", "install", "-q", links, main, *plugins]],
            ["env/bin/squish"],
        ),
        "pipx install, inject": (
            [
                ["pipx", "install", f"--pip-args={links}", main],
                ["pipx", "inject", f"--pip-args={links}", "squish-core", *plugins],
            ],
            ["tools/bin/squish"],
        ),
        "pip, squish-all": (
            [[sys.executable, "-m", "venv", "env"], ["env/bin/pip", "install", "-q", links, "squish-all"]],
            ["env/bin/squish"],
        ),
    }


def variables(folder: Path) -> dict[str, str]:
    """The environment of a way: a path with the tools, Python and what shells need, and no compiler."""
    path = folder / "path"
    path.mkdir()
    for name in (*TOOLS, "sh", "env", "uname", "dirname", "readlink", "realpath", "ldd", "getconf"):
        if found := shutil.which(name):
            (path / name).symlink_to(found)
    (path / "python3").symlink_to(sys.executable)
    places = {name: str(folder / "tools") for name in ("UV_TOOL_DIR", "PIPX_HOME")}
    commands = {name: str(folder / "tools" / "bin") for name in ("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR")}
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("CC", "CXX", "PYTHON", "VIRTUAL"))
    }
    return {**kept, **places, **commands, "PATH": str(path), "UV_PYTHON": sys.executable}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Standard output of a command that must succeed."""
    program = command[0] if "/" not in command[0] or os.path.isabs(command[0]) else str(folder / command[0])
    found = shutil.which(program, path=environment["PATH"])
    if found is None:
        raise InstallError(f"{program} is missing")
    done = subprocess.run([found, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def processor_seconds() -> float:
    """The time of the processor that finished commands took."""
    times = os.times()
    return times.children_user + times.children_system


def attempt(name: str, commands: list[list[str]], squish: list[str]) -> tuple[float, float]:
    """Install in one way, and let Squish work; return its seconds and the processor's.

    They end when `squish doctor` has answered.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = variables(folder)
        start, processor = time.perf_counter(), processor_seconds()
        for command in commands:
            run(command, folder, environment)
        report = json.loads(run([*squish, "doctor", "--json"], folder, environment))
        seconds = time.perf_counter() - start, processor_seconds() - processor
        backends = {backend["id"]: backend for backend in report["backends"]}
        if not report["ok"] or not backends.get("cpu", {}).get("ok"):
            raise InstallError(f"{name}: {json.dumps(backends.get('cpu'))}")
        run([*squish, "info", str(SAMPLE)], folder, environment)
        return seconds


def main(wheels: Path) -> int:
    """Try all ways; 1 if one fails, or if the quickest is slow."""
    times: dict[str, tuple[float, float]] = {}
    failed = False
    for name, (commands, squish) in ways(wheels).items():
        try:
            times[name] = attempt(name, commands, squish)
        except InstallError as error:
            print(f"{name}: {error}")
            failed = True
        else:
            print(f"{name}: {times[name][0]:.1f} s ({times[name][1]:.1f} s of the processor), cpu ok", flush=True)
    return int(failed or min(times.values())[0] > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
