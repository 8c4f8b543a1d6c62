"""`SQUISH_PLUGIN_FILES`: files with hooks that are plugins without a package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import squish_core as squish
from squish_core.plugins.entry_points import FILES

SOURCE = """
from squish_core.api import CodecInfo, hookimpl

class Rows:
    pass

@hookimpl
def squish_codecs():
    return [CodecInfo(id="acme.ID", title="rows", factory=f"{__name__}:Rows")]
"""


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Forget the modules of the files."""
    before = {*sys.modules}
    yield
    for name in sys.modules.keys() - before:
        if name.startswith("plugin_file_"):
            del sys.modules[name]


def write(folder: Path, name: str, text: str = SOURCE) -> Path:
    path = folder / f"plugin_file_{name}.py"
    path.write_text(text.replace("ID", name))
    return path


def test_files_are_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "one")
    two = write(tmp_path, "two")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FILES, os.pathsep.join(("./plugin_file_one.py", "", str(two))))
    registry = squish.Registry()
    assert [registry.codecs[name].dist for name in ("acme.one", "acme.two")] == ["./plugin_file_one.py", str(two)]
    assert type(registry.instance("codec", registry.codecs["acme.one"])).__name__ == "Rows"
    assert "acme.one" in squish.Registry().codecs, "a second registry has it, too"


def test_the_settings_hold_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILES, str(write(tmp_path, "blocked")))
    assert "acme.blocked" not in squish.Registry("-plugin_file_blocked").codecs


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("plugin_file_wrong.py", "raise RuntimeError('boom')", "boom"),
        ("plugin_file_syntax.py", "def", "syntax"),
        ("plugin_file_gone.py", None, "No such file"),
        ("json.py", SOURCE, "another module"),
        ("plugin_file_text.toml", "a = 1", ""),
    ],
)
def test_a_file_that_fails_is_broken_with_its_reason(
    name: str, text: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(FILES, str(path))
    for _ in range(2):
        (broken,) = squish.Registry().broken
        assert broken.dist == str(path)
        assert reason in broken.reason


def test_no_file_of_the_folder_sets_the_variable(tmp_path: Path) -> None:
    path = write(tmp_path, "sneaky")
    for name, text in {
        ".env": f"{FILES}={path}",
        "squish.toml": f'plugin_files = "{path}"',
        "config.toml": f'plugin_files = "{path}"',
        "pyproject.toml": f'[tool.squish]\nplugin_files = "{path}"',
        "settings/squish/config.toml": f'plugin_files = "{path}"',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    inherited = {name: value for name, value in os.environ.items() if name not in ("SQUISH_CONFIG", FILES)}
    command = [sys.executable, "-m", "squish_core", "plugins"]
    environment = {**inherited, "XDG_CONFIG_HOME": str(tmp_path / "settings")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "sneaky" not in done.stdout
    assert "plugin_files" in done.stderr, "an unknown name in the user's file is named"


def test_commands_list_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "listed")
    environment = {**os.environ, FILES: str(path)}
    for command in ("plugins", "doctor"):
        line = [sys.executable, "-m", "squish_core", command]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert path.name in done.stdout.replace("\n", "")
