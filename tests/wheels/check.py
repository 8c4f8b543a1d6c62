"""Build every wheel and try them in clean environments: the core alone, then the core with each plugin.

    python tests/wheels/check.py [--whole] [plugin ...]       all of plugins/ unless some are named

Every wheel must be what an index accepts: twine, check-wheel-contents, a license, a description. Each environment must
list exactly what is installed in it, open a sample of its own format and pass the plugin's tests marked `alone`; with
--whole, all of the plugin's tests. As many are tried at once as there are cores, and the longest first. The compiled
library is that of this environment, where it has one.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
PINNED = ("-c", ROOT / "constraints.txt")
RELEASED_TOGETHER = ("squish-core", "squish-convert", "squish-core-cli", "squish-testing")
LIBRARY = "squish_cpu/*squish_cpu.*"
"""The compiled library in a folder of packages."""
INSTALLED = "not typed_errors_only and not resident_cost"
"""Of the tests marked `alone`, those that what is installed may change: not long runs of damaged files and memory."""


TABLE: dict[str, Any] = json.loads((ROOT / "squish_core" / "plugins" / "catalog.json").read_text("utf-8"))
KINDS = [kind for kind in TABLE if kind != "distributions"]
"""What each distribution adds to the registry: kind -> id -> facts with its distribution."""
SAMPLES = {
    "squish-onnx": "sample.onnx", "squish-gguf": "sample.gguf", "squish-safetensors": "sample.safetensors",
    "squish-uqff": "sample.uqff", "squish-squizd": "sample.squizd", "squish-npydir": "sample.npydir",
    "squish-ztensor": "sample.zt",
}  # fmt: skip
"""A sample in tests/data for each distribution that needs no other one to open it."""
REFINING = {facts["dist"] for facts in TABLE["container"].values() if "refines" in facts}
"""Distributions without which their samples are plain files of another format."""

LOOK = """
import json, sys, squish_core as squish
kinds, samples = json.loads(sys.argv[1])
print(json.dumps({kind: [entry.id for entry in squish.registry().find(kind)] for kind in kinds}))
for sample, absent in samples:
    try:
        with squish.open(sample) as file:
            for name in file:
                file[name].numpy()
    except squish.SquishError as error:
        assert absent and absent in str(error), f"{sample}: {error}"
    else:
        assert not absent, f"{sample} opens without {absent}"
"""
"""Prints what is installed and opens samples; the error for a sample of an absent distribution must name it."""


# What squish-core and a format do without squish-convert and the command line.
MINIMAL = """
import sys, squish_core as squish
registry = squish.registry()
assert "gguf" in registry.containers and "numpy" not in sys.modules, "listing plugins imports NumPy"
assert squish.verify(sys.argv[1]).ok
with squish.open(sys.argv[1]) as file:
    file.plan()
    name = next(name for name in file if file[name].ndim == 2)
    weight = file[name].load()
    assert weight.linear(file[name][:1]).shape == (1, file[name].shape[0])
for name, package in (("convert", "squish-convert"), ("save", "squish-convert"), ("diff", "squish-convert"),
                      ("as_format", "squish-convert"), ("diagnose", "squish-core-cli")):
    try:
        getattr(squish, name)
    except squish.MissingPluginError as error:
        assert package in str(error), error
    else:
        raise AssertionError(f"squish.{name} is there without {package}")
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
    compiled = [f"-Ccmake.define.COMPILED={path}" for path in Path(sysconfig.get_path("purelib")).glob(LIBRARY)]

    def one(name: str) -> Path:
        settings = compiled if is_compiled(sources[name]) else []
        pinned = ROOT / "constraints.txt"
        uv("build", "--quiet", "--wheel", "--no-sources", "-b", pinned, *settings, "-o", wheels, sources[name])
        (built,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
        return built

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(sources, pool.map(one, sources)))


def check_files(wheels: dict[str, Path]) -> None:
    """Every wheel has what an index shows, the license, and code, except for squish-all."""
    uv("tool", "run", "--quiet", *PINNED, "twine", "check", "--strict", *wheels.values())
    contents = ROOT / "pyproject.toml"
    uv("tool", "run", "--quiet", *PINNED, "check-wheel-contents", "--config", contents, *wheels.values())
    for name, wheel in wheels.items():
        with ZipFile(wheel) as archive:
            members = archive.namelist()
            (metadata,) = (archive.read(each).decode() for each in members if each.endswith(".dist-info/METADATA"))
        description = metadata.partition("\n\n")[2]
        if not any(each.endswith(".dist-info/licenses/LICENSE") for each in members):
            raise CheckError(f"{name}: the wheel has no license")
        if "Description-Content-Type: text/markdown" not in metadata or len(description) < 200:
            raise CheckError(f"{name}: the wheel has no description")
        if name != "squish-all" and not any(each.endswith("/__init__.py") for each in members):
            raise CheckError(f"{name}: the wheel has no code")


def environment(folder: Path, names: list[str], wheels: dict[str, Path]) -> Path:
    """The Python of a new environment with these distributions and what they declare, and nothing else."""
    python = folder / "bin" / "python"
    uv("venv", "--quiet", "--python", sys.executable, folder)
    # as constraints, our wheels win over distributions of the same name in an index
    ours = folder / "ours.txt"
    ours.write_text("".join(f"{name} @ {wheel.as_uri()}\n" for name, wheel in wheels.items()))
    pins = ("-c", ours, "-c", ROOT / "constraints.txt")
    uv("pip", "install", "--quiet", "--python", python, *pins, "--overrides", ROOT / "without-torch.txt", *names)
    return python


def check(python: Path, name: str) -> None:
    """An environment lists exactly what is installed, opens its own samples, says what to install for others."""
    installed = run(python, "-c", "import importlib.metadata as m; print(*[d.name for d in m.distributions()])").split()
    samples = [
        (str(DATA / sample), "" if dist in installed else dist)
        for dist, sample in SAMPLES.items()
        if dist in installed or dist not in REFINING
    ]
    listed = json.loads(run(python, "-c", LOOK, json.dumps((KINDS, samples))))
    for kind, ids in listed.items():
        expected = sorted(each for each, facts in TABLE[kind].items() if facts["dist"] in installed)
        if ids != expected:
            raise CheckError(f"{name}: {kind} {ids}, expected {expected}")


def pytest(python: Path, folder: Path, *arguments: str | Path) -> None:
    """Run tests with an environment's own pytest: nothing of the tree is on its path."""
    command = [python.with_name("pytest"), "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-2000:]}")


def is_compiled(source: Path) -> bool:
    """Whether a plugin is compiled."""
    return (source / "CMakeLists.txt").exists()


def size_of_tests(source: Path) -> int:
    """About how long a plugin's tests take: the size of their files."""
    return sum(path.stat().st_size for path in source.glob("tests/*.py"))


def attempt(shown: str, function: Callable[..., None], *arguments: Any) -> str:
    """What fails, so that the others are tried all the same; nothing if all is fine."""
    try:
        function(*arguments)
    except CheckError as error:
        return f"{shown}: {error}"
    print(f"{shown}: fine", flush=True)
    return ""


def check_alone(
    names: list[str], tests: Path | None, folder: Path, wheels: dict[str, Path], chosen: Sequence[str]
) -> None:
    """Install these distributions alone; `tests`: the folder of those to run there."""
    python = environment(folder, names, wheels)
    check(python, " + ".join(names))
    if tests and tests.exists():
        pytest(python, ROOT, *chosen, tests)


def check_minimal(work: Path, wheels: dict[str, Path]) -> None:
    """The core with GGUF alone opens, verifies, plans and runs; `squish` says how to install the command line."""
    python = environment(work / "env-minimal", ["squish-core", "squish-codecs", "squish-ggml", "squish-gguf"], wheels)
    run(python, "-c", MINIMAL, DATA / "sample.gguf")
    commands: list[list[str | Path]] = [[python.with_name("squish"), "formats"], [python, "-m", "squish_core"]]
    for command in commands:
        done = subprocess.run(command, cwd=tempfile.gettempdir(), capture_output=True, text=True)
        if done.returncode != 2 or "squish-core-cli" not in done.stderr:
            raise CheckError(f"{command}: {done.returncode} {done.stderr}")


def check_example(work: Path, wheels: dict[str, Path]) -> None:
    """A third-party plugin: its wheel beside the core's and its companions' alone, and the conformance kit on it."""
    folder = ROOT / "examples" / "acme_format"
    wheels = {name: wheels[name] for name in RELEASED_TOGETHER} | build({"acme-format": folder}, work / "example")
    python = environment(work / "env-example", ["acme-format[test]"], wheels)
    pytest(python, folder, "-m", "not fuzz", "-c", "pyproject.toml")


def check_new_plugin(work: Path, wheels: dict[str, Path]) -> None:
    """A plugin that `squish new-plugin` wrote: its wheel, and the conformance kit on it."""
    wheels = {name: wheels[name] for name in RELEASED_TOGETHER}
    python = environment(work / "env-new-plugin", ["squish-core[cli]"], wheels)
    run(python.with_name("squish"), "new-plugin", "zeta-format", "-o", work)
    folder = work / "zeta-format"
    wheels |= build({"zeta-format": folder}, work / "new-plugin")
    python = environment(work / "env-zeta", ["zeta-format[test]"], wheels)
    pytest(python, folder, "-m", "not fuzz", "-c", "pyproject.toml")


def main(plugins: list[str], *, whole: bool) -> None:
    every = {each.parent.name: each.parent for each in ROOT.glob("plugins/*/pyproject.toml")}
    projects = {each: tomllib.loads((at / "pyproject.toml").read_text())["project"] for each, at in every.items()}
    plugins = sorted(plugins or every, key=lambda each: size_of_tests(every[each]), reverse=True)
    marked = f"{'' if whole else 'alone and '}not oracle and not fuzz and not system"
    chosen = ("-m", marked, *(() if whole else ("-k", INSTALLED)))
    core = "squish-core[testing]"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        sources = {projects[each]["name"]: at for each, at in every.items() if each in plugins or not is_compiled(at)}
        wheels = build({"squish-core": ROOT, **sources}, work / "wheels")
        print(f"built {len(wheels)} wheels", flush=True)
        check_files(wheels)

        tried: list[tuple[Any, ...]] = []  # what is shown, the check, its arguments
        for each in plugins:
            extra = "[testing]" if "testing" in projects[each].get("optional-dependencies", {}) else ""
            names = [core, projects[each]["name"] + extra]
            arguments = names, every[each] / "tests", work / f"env-{each}", wheels, chosen
            tried.append((" + ".join(names), check_alone, *arguments))
        tried += [
            (core, check_alone, [core], None, work / "env-core", wheels, chosen),
            ("squish-core + codecs, ggml and gguf", check_minimal, work, wheels),
            ("squish-core + acme-format", check_example, work, wheels),
            ("squish-core + a plugin that it wrote", check_new_plugin, work, wheels),
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = list(filter(None, pool.map(lambda each: attempt(*each), tried)))
        if failed:
            raise CheckError("\n".join(failed))


if __name__ == "__main__":
    named = sys.argv[1:]
    try:
        main([each for each in named if each != "--whole"], whole="--whole" in named)
    except CheckError as error:
        sys.exit(f"wheels: {error}")
