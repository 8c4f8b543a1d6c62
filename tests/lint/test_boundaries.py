"""Checks imports against docs/architecture.md: who may import whom, and which libraries a distribution declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"squish_core": ROOT} | {
    path.parent.name: path.parents[2] for path in sorted(ROOT.glob("plugins/*/src/*/__init__.py"))
}
"""Import package -> the folder of its distribution."""
FORMATS = ("gguf", "hf", "mlx", "npydir", "onnx", "safetensors", "squizd", "uqff", "ztensor")
BACKENDS = ("ane", "cpu", "cuda", "metal")
CORE = (
    "text", "version", "log", "codes", "environment", "errors", "display", "shown", "dtypes", "limits", "guard",
    "model", "specs", "io.system", "concurrency", "io", "codecs", "formats", "schedulers", "backends", "plugins",
    "tensor", "summary", "file", "layers", "detect", "opening", "checking",
)  # fmt: skip
"""Packages and modules of the core, in order: each imports only those before it."""


def place(module: str) -> int:
    """Place in CORE of a module: its own, else that of its package."""
    own = ".".join(module.split(".")[1:3])
    return CORE.index(own if own in CORE else module.split(".")[1])


FACES = ("squish_core", "squish_core.api", "squish_core.testing", "squish_core.__main__")
"""Modules of the core that name what they offer in strings."""
RELEASED = ("squish_convert", "squish_cli", "squish_testing")
"""Import packages that are released with squish_core, in order: each may import any module of those before it."""

MOST_LINES = 600
MOST_ROOT_MODULES = 24

DISTRIBUTIONS = {
    "astc_encoder": "astc-encoder-py", "ggml": "ggml-python", "Metal": "pyobjc-framework-Metal", "objc": "pyobjc-core",
    "squish_cli": "squish-core-cli",
}  # fmt: skip
"""Import name -> distribution, where they differ in more than `_` and case."""


def sources(package: str) -> list[Path]:
    """Modules of an import package."""
    home = ROOT / package if package == "squish_core" else next(ROOT.glob(f"plugins/*/src/{package}"))
    return sorted(home.rglob("*.py"))


def module_name(path: Path, package: str) -> str:
    """Dotted name of a source file."""
    parts = list(path.with_suffix("").parts)
    parts = parts[len(parts) - parts[::-1].index(package) - 1 :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path, package: str) -> tuple[tuple[str, str, int], ...]:
    """(module, name, line) of every import, relative ones resolved."""
    name, found = module_name(path, package), list[tuple[str, str, int]]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "", node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*around[: len(around) - node.level + 1], *([node.module] if node.module else [])])
            found += [(base, alias.name, node.lineno) for alias in node.names]
    return tuple(found)


def arrows_of(package: str) -> dict[str, set[str]]:
    """Module of a package -> its modules that it imports, for type checkers or for real."""
    modules = {module_name(path, package): path for path in sources(package)}
    arrows: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for base, member, _ in imports(path, package):
            if base.split(".")[0] == package:
                target = f"{base}.{member}" if f"{base}.{member}" in modules else base
                if target not in (name, package):
                    arrows[name].add(target)
    return arrows


def test_the_core_names_other_packages_in_strings_alone() -> None:
    violations = [
        f"{path}:{line} {base}"
        for path in sources("squish_core")
        for base, _, line in imports(path, "squish_core")
        if base.startswith("squish_") and base.split(".")[0] != "squish_core"
    ]
    assert not violations


def is_declared(module: str, package: str) -> bool:
    """Whether a package may import a module of another package."""
    top = module.split(".")[0]
    if package in RELEASED and top in ("squish_core", *RELEASED[: RELEASED.index(package)]):
        return True
    return module == f"{top}.api" or module.startswith(("squish_core.testing", "squish_testing"))


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "squish_core"])
def test_a_package_imports_declared_interfaces_alone(package: str) -> None:
    """Of another package its `api`; the kit in tests; packages of one release also the modules of those below."""
    violations = []
    for path in sources(package):
        for base, name, line in imports(path, package):
            top = base.split(".")[0]
            target = f"{base}.{name}" if base == top else base
            if top in PACKAGES and top != package and not is_declared(target, package):
                violations.append(f"{path.relative_to(ROOT)}:{line} {target}")
    assert not violations


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_imports_no_format(backend: str) -> None:
    formats = {f"squish_{name}" for name in FORMATS}
    package = f"squish_{backend}"
    violations = [
        f"{path.name}:{line} {base}"
        for path in sources(package)
        for base, _, line in imports(path, package)
        if base.split(".")[0] in formats
    ]
    assert not violations


def test_packages_of_the_core_import_those_before_them_alone() -> None:
    """Imports for type checkers and inside functions count, too."""
    violations = []
    for name, targets in arrows_of("squish_core").items():
        if name not in FACES:
            violations += [f"{name} -> {to}" for to in targets if place(to) > place(name)]
    assert not sorted(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_an_import_cycle(package: str) -> None:
    """Not even through imports inside functions or for type checkers."""
    arrows = arrows_of(package)
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in sorted(arrows.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(arrows):
        visit(name, ())


EXTRAS = {
    "cli": {"squish-core-cli", "squish-convert"}, "convert": {"squish-convert"},
    "testing": {"squish-testing", "squish-convert"},
}  # fmt: skip
"""Extra of squish-core -> the distributions of this repository that it installs."""


def requirements(texts: Iterable[str]) -> set[str]:
    """Names of the distributions in a list of requirements, those that the extras of squish-core install included."""
    names = set[str]()
    for text in texts:
        name, extras = re.fullmatch(r"([\w.-]+)(?:\[([\w,-]+)\])?.*", text).groups()  # type: ignore[union-attr]
        names |= {name.lower().replace("_", "-")}
        if name == "squish-core":
            names |= set().union(*(EXTRAS.get(extra, set()) for extra in (extras or "").split(",")))
    return names


def imported_distributions(package: str) -> dict[str, str]:
    """Distributions that an import package imports, each with a place."""
    places = {}
    for path in sources(package):
        for base, _, line in imports(path, package):
            top = base.split(".")[0]
            if top not in sys.stdlib_module_names and top not in (package, "__future__"):
                places[DISTRIBUTIONS.get(top, top.replace("_", "-")).lower()] = f"{path.relative_to(ROOT)}:{line}"
    return places


@pytest.mark.parametrize("package", PACKAGES)
def test_every_library_is_declared_by_the_distribution_that_imports_it(package: str) -> None:
    project = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    declared = requirements([*project.get("dependencies", ()), *(text for extra in extras for text in extra)])
    declared |= {str(project["name"]), package.replace("_", "-")}
    assert not {name: place for name, place in imported_distributions(package).items() if name not in declared}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_required_library_is_imported(package: str) -> None:
    project = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not requirements(project.get("dependencies", ())) - set(imported_distributions(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_too_long_to_read_at_once(package: str) -> None:
    too_long = {
        str(path.relative_to(ROOT)): n
        for path in sources(package)
        if (n := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert not too_long


def test_few_modules_lie_directly_in_the_core() -> None:
    assert len(list((ROOT / "squish_core").glob("*.py"))) <= MOST_ROOT_MODULES
