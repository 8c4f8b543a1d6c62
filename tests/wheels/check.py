"""Build every wheel and try them in clean environments: the core alone, then the core with each plugin.

    python tests/wheels/check.py [plugin ...]       all of plugins/ unless some are named

Each environment must list exactly what is installed in it and open a sample of its own format.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"


class Expected(NamedTuple):
    """What a plugin's environment must offer, its dependencies' part included; `sample` is in tests/data."""

    containers: frozenset[str] = frozenset()
    sample: str = ""


# A plugin that is not here must install and be listed, and adds no container.
EXPECTED = {
    "gguf": Expected(frozenset({"gguf"}), "sample.gguf"),
    "safetensors": Expected(frozenset({"safetensors"}), "sample.safetensors"),
    "ztensor": Expected(frozenset({"ztensor"}), "sample.zt"),
}

LIST = """
import json, squish_core as squish
reg = squish.registry()
found = {"containers": reg.containers, "codecs": reg.codecs, "backends": reg.backends}
print(json.dumps({kind: sorted(ids) for kind, ids in found.items()}))
"""

OPEN = """
import sys, squish_core as squish
with squish.open(sys.argv[1]) as file:
    for name in file:
        file[name].numpy()
"""

# The hint names the distribution to install; a file of an absent plugin must be told apart from a broken one.
HINT = """
import sys, squish_core as squish
try:
    squish.open(sys.argv[1])
except squish.SquishError as error:
    assert sys.argv[2] in str(error), f"no word of {sys.argv[2]} in: {error}"
else:
    raise AssertionError(f"{sys.argv[1]} opens without {sys.argv[2]}")
"""


class CheckError(Exception):
    """What went wrong, with the output of the command that showed it."""


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed, run outside the tree: nothing is imported from it."""
    done = subprocess.run(command, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def uv(*arguments: str | Path) -> str:
    """Standard output of the uv beside this Python; what it builds with is pinned, too."""
    return run(Path(sys.executable).with_name("uv"), *arguments)


def build(sources: dict[str, Path], wheels: Path) -> dict[str, Path]:
    """Build the wheel of every distribution: its name -> the file."""
    built = {}
    for name, source in sources.items():
        pinned = ROOT / "constraints.txt"
        uv("build", "--quiet", "--wheel", "--no-sources", "-b", pinned, "-o", wheels, source)
        (built[name],) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
    return built


def environment(folder: Path, names: list[str], wheels: dict[str, Path]) -> Path:
    """The Python of a new environment with these distributions and what they declare, and nothing else."""
    python = folder / "bin" / "python"
    uv("venv", "--quiet", "--python", sys.executable, folder)
    # as constraints, our wheels win over distributions of the same name in an index
    ours = folder / "ours.txt"
    ours.write_text("".join(f"{name} @ {wheel.as_uri()}\n" for name, wheel in wheels.items()))
    pins = ("-c", ours, "-c", ROOT / "constraints.txt")
    uv("pip", "install", "--quiet", "--python", python, *pins, *names)
    return python


def check(python: Path, plugin: str) -> None:
    """An environment lists what is installed, opens its own samples, says what to install for others."""
    listed = json.loads(run(python, "-c", LIST))
    installed = run(
        python, "-c", "import importlib.metadata as m; print(*[d.name for d in m.distributions()])"
    )
    offered = {p for p in EXPECTED if f"squish-{p}" in installed.split()}
    wanted = set().union(*(EXPECTED[p].containers for p in offered))
    if set(listed["containers"]) != wanted:
        raise CheckError(f"{plugin}: containers {listed['containers']}, expected {sorted(wanted)}")
    for name, expected in EXPECTED.items():
        sample = DATA / expected.sample
        if name in offered:
            run(python, "-c", OPEN, sample)
        else:
            run(python, "-c", HINT, sample, f"squish-{name}")


def main(plugins: list[str]) -> None:
    every = sorted(each.parent.name for each in ROOT.glob("plugins/*/pyproject.toml"))
    folders = {each: ROOT / "plugins" / each for each in plugins or every}
    names = {
        each: tomllib.loads((at / "pyproject.toml").read_text())["project"]["name"]
        for each, at in folders.items()
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        wheels = build(
            {"squish-core": ROOT, **{names[each]: at for each, at in folders.items()}}, work / "wheels"
        )
        print(f"built {len(wheels)} wheels", flush=True)
        for each in ["", *folders]:
            alone = ["squish-core"] + ([names[each]] if each else [])
            check(environment(work / f"env-{each or 'core'}", alone, wheels), each or "core alone")
            print(f"{' + '.join(alone)}: fine", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CheckError as error:
        sys.exit(f"wheels: {error}")
