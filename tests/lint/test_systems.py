"""Holds what lets the packages run on Windows: outside `squish_core/io` nothing that it lacks, and UTF-8 everywhere.

What Windows lacks is read from mypy's stubs of the standard library, which say what each system has.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "squish_core", *sorted(path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py"))]
MODULES = ("os", "signal", "mmap", "time", "select", "shutil", "threading")
ABSENT = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "posix", "syslog", "curses", "readline"}
"""Modules that Windows lacks."""
WHOLE_TEXTS = {"read_text": 0, "write_text": 1}
"""Method of a path -> place of its encoding."""
PROCESSES = ("run", "Popen", "check_output")


def names_of(body: list[ast.stmt], windows: bool) -> Iterator[str]:
    """Names that a stub defines on Windows, or elsewhere."""
    for node in body:
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            is_about = "sys.platform" in test
            on_windows = "== 'win32'" in test or not is_about
            yield from names_of(node.body, windows) if on_windows == windows or not is_about else ()
            yield from names_of(node.orelse, windows) if on_windows != windows or not is_about else ()
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@cache
def missing_names() -> dict[str, frozenset[str]]:
    """Module -> its names that other systems have and Windows lacks."""
    stubs = Path(str(find_spec("mypy").origin)).parent / "typeshed" / "stdlib"  # type: ignore[union-attr]
    missing = {}
    for module in MODULES:
        path = stubs / module / "__init__.pyi"
        body = ast.parse((path if path.exists() else stubs / f"{module}.pyi").read_text(encoding="utf-8")).body
        missing[module] = frozenset(names_of(body, windows=False)) - frozenset(names_of(body, windows=True))
    return missing


def sources(*, with_io: bool) -> list[Path]:
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    return [path for path in paths if with_io or not path.is_relative_to(ROOT / "squish_core" / "io")]


def posix_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of what Windows lacks, also where the code asks whether the system has it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in ABSENT)
        elif isinstance(node, ast.ImportFrom):
            missing = missing_names().get(node.module or "", frozenset())
            names = [alias.name for alias in node.names if alias.name in missing or node.module in ABSENT]
            yield from ((node.lineno, f"{node.module}.{name}") for name in names if not node.level)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in missing_names().get(node.value.id, ()):
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr") and len(node.args) > 1:
            module, name = ast.unparse(node.args[0]), getattr(node.args[1], "value", None)
            if name in missing_names().get(module, ()):
                yield node.lineno, f"{module}.{name}"


def without_encoding(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, call) of what reads or writes text in the encoding of the system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name in WHOLE_TEXTS and owner and not owner.startswith("distribution("):
            if len(node.args) <= WHOLE_TEXTS[name]:
                yield node.lineno, name
        elif name == "fdopen" or (name == "open" and not owner):
            modes = [word.value for word in node.keywords if word.arg == "mode"] + node.args[1:2]
            if not any("b" in str(getattr(mode, "value", mode)) for mode in modes):
                yield node.lineno, name
        elif owner == "subprocess" and name in PROCESSES and any(word.arg == "text" for word in node.keywords):
            yield node.lineno, f"subprocess.{name}"


def test_the_stubs_say_what_windows_lacks() -> None:
    missing = missing_names()
    assert {"pread", "pwrite", "preadv", "O_CLOEXEC", "sched_getaffinity", "posix_fadvise", "fork", "getuid", "uname",
            "sysconf", "killpg", "fchown", "copy_file_range"} <= missing["os"]  # fmt: skip
    assert {"SIGKILL", "SIGALRM", "SIGHUP", "SIGPIPE"} <= missing["signal"]
    assert {"MAP_SHARED", "PROT_READ", "MADV_DONTNEED"} <= missing["mmap"]
    assert not {"open", "replace", "environ", "O_RDONLY", "ftruncate", "getpid"} & missing["os"]
    assert not {"SIGTERM", "SIGINT"} & missing["signal"]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import fcntl", ["fcntl"]),
        ("from resource import getrusage", ["resource.getrusage"]),
        ("from os import pread, open", ["os.pread"]),
        ("os.sysconf('X')", ["os.sysconf"]),
        ("hasattr(os, 'pwrite') and getattr(os, 'O_NONBLOCK', 0)", ["os.pwrite", "os.O_NONBLOCK"]),
        ("os.kill(1, signal.SIGKILL)", ["signal.SIGKILL"]),
        ("os.replace('a', 'b'); signal.SIGTERM; self.pread(1)", []),
    ],
)
def test_what_windows_lacks_is_found(code: str, names: list[str]) -> None:
    assert sorted(name for _, name in posix_uses(ast.parse(code))) == sorted(names)


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("open('x'); Path('x').read_text(); p.write_text('a'); os.fdopen(3)", 4),
        ("open('x', 'rb'); open('x', mode='wb'); p.read_text('utf-8'); p.write_text('a', 'utf-8')", 0),
        ("subprocess.run(['a'], text=True); subprocess.run(['a'])", 1),
        ("subprocess.run(['a'], text=True, encoding='utf-8'); squish.open('x'); open(p, encoding='ascii')", 0),
    ],
)
def test_text_without_an_encoding_is_found(code: str, count: int) -> None:
    assert len(list(without_encoding(ast.parse(code)))) == count


def test_only_io_uses_what_windows_lacks() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sources(with_io=False)
        for line, name in posix_uses(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_text_is_utf_8_everywhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sources(with_io=True)
        for line, name in without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_make_runs_the_tests_as_python_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(python) -m tests\n" in makefile
    assert "$(python) -m tests --requirements $(left_out)" in makefile


def test_the_requirements_are_every_plugin_that_is_not_left_out() -> None:
    command = [sys.executable, "-m", "tests", "--requirements", "cpu_backend"]
    lines = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    folders = {
        line.removeprefix("-e ./plugins/").partition("[")[0] for line in lines if line.startswith("-e ./plugins/")
    }
    assert folders == {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")} - {"cpu_backend"}
    assert "-e ." in lines
