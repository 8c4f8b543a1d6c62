"""Checks imports against docs/architecture.md: who may import whom, and which libraries a distribution declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"squish_core": ROOT} | {
    path.parent.name: path.parents[2] for path in sorted(ROOT.glob("plugins/*/src/*/__init__.py"))
}
"""Import package -> the folder of its distribution."""
FORMATS = ("gguf", "hf", "mlx", "npydir", "onnx", "safetensors", "squizd", "uqff", "ztensor")
BACKENDS = ("ane", "cpu", "metal")
VOCABULARY = (
    "text", "codes", "errors", "dtypes", "limits", "model", "guard", "renamed", "statistics", "specs", "display",
    "concurrency",
)  # fmt: skip
INTERFACES = ("io", "codecs", "backends", "formats", "families", "schedulers")
ARROWS = {
    "display": ("text", "errors"),
    "io": VOCABULARY,
    "codecs": (*VOCABULARY, "io"),
    "formats": (*VOCABULARY, "io", "codecs"),
    "backends": (*VOCABULARY, "io", "codecs", "formats"),
    "families": (*VOCABULARY, "io", "codecs", "formats"),
    "schedulers": VOCABULARY,
    "plugins": (*VOCABULARY, *INTERFACES),
    "mapping": (*VOCABULARY, *INTERFACES, "plugins", "file", "tensor", "reader"),
    "analysis": (*VOCABULARY, *INTERFACES, "plugins", "detect", "opening", "file", "tensor", "reader", "mapping"),
    "conversion": (*VOCABULARY, *INTERFACES, "plugins", "opening", "file", "tensor", "reader", "mapping", "analysis"),
}
"""Package of the core -> what it may import of the core. `cli` and `testing` may import everything."""

MOST_LINES = 600
MOST_ROOT_MODULES = 20

DISTRIBUTIONS = {
    "astc_encoder": "astc-encoder-py", "ggml": "ggml-python", "Metal": "pyobjc-framework-Metal", "objc": "pyobjc-core",
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


def imports(path: Path, package: str) -> Iterator[tuple[str, str, int, bool]]:
    """(module, name, line, whether at the top level) of every import, relative ones resolved."""
    name = module_name(path, package)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(node) for function in ast.walk(tree) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
              for node in ast.walk(function)}  # fmt: skip
    for node in ast.walk(tree):
        top = id(node) not in inside
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*around[: len(around) - node.level + 1], *([node.module] if node.module else [])])
            yield from ((base, alias.name, node.lineno, top) for alias in node.names)


def arrows_of(package: str, *, inside_functions: bool = False) -> dict[str, set[str]]:
    """Module of a package -> its modules that it imports, for typing or for real, at its top level or anywhere."""
    modules = {module_name(path, package): path for path in sources(package)}
    arrows: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for base, member, _, top in imports(path, package):
            if (top or inside_functions) and base.split(".")[0] == package:
                target = f"{base}.{member}" if f"{base}.{member}" in modules else base
                if target not in (name, package):
                    arrows[name].add(target)
    return arrows


def test_the_core_imports_no_plugin() -> None:
    violations = [
        f"{path}:{line} {base}"
        for path in sources("squish_core")
        for base, _, line, _ in imports(path, "squish_core")
        if base.startswith("squish_") and base.split(".")[0] != "squish_core"
    ]
    assert not violations


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "squish_core"])
def test_a_plugin_imports_declared_interfaces_alone(package: str) -> None:
    """Of the core `api` and `testing`, of another plugin its `api`."""
    violations = []
    for path in sources(package):
        for base, name, line, _ in imports(path, package):
            top = base.split(".")[0]
            if top not in PACKAGES or top == package:
                continue
            target = f"{base}.{name}" if base == top else base
            interfaces = ("squish_core.api", "squish_testing") if top == "squish_core" else (f"{top}.api",)
            if target not in interfaces and not target.startswith("squish_testing."):
                violations.append(f"{path.relative_to(ROOT)}:{line} {target}")
    assert not violations


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_imports_no_format(backend: str) -> None:
    formats = {f"squish_{name}" for name in FORMATS}
    package = f"squish_{backend}"
    violations = [
        f"{path.name}:{line} {base}"
        for path in sources(package)
        for base, _, line, _ in imports(path, package)
        if base.split(".")[0] in formats
    ]
    assert not violations


def test_packages_of_the_core_import_each_other_as_drawn() -> None:
    violations = []
    for name, targets in arrows_of("squish_core").items():
        room = name.split(".")[1] if name.count(".") else ""
        if room not in ARROWS:
            continue
        for target in targets:
            other = target.split(".")[1]
            if other != room and other not in ARROWS[room]:
                violations.append(f"{name} -> {target}")
    assert not sorted(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_an_import_cycle(package: str) -> None:
    """In plugins not even through imports inside of functions."""
    arrows = arrows_of(package, inside_functions=package != "squish_core")
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in sorted(arrows.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(set(arrows) - {"squish_core", "squish_core.api"}):
        visit(name, ())


def requirements(texts: Iterable[str]) -> set[str]:
    """Names of the distributions in a list of requirements."""
    return {re.split(r"[\s<>=!~;\[]", text, maxsplit=1)[0].lower().replace("_", "-") for text in texts}


def imported_distributions(package: str) -> dict[str, str]:
    """Distributions that an import package imports, each with a place."""
    places = {}
    for path in sources(package):
        for base, _, line, _ in imports(path, package):
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
    too_long = {str(path.relative_to(ROOT)): n for path in sources(package)
                if (n := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES}  # fmt: skip
    assert not too_long


def test_few_modules_lie_directly_in_the_core() -> None:
    assert len(list((ROOT / "squish_core").glob("*.py"))) <= MOST_ROOT_MODULES
