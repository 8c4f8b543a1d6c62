"""`squish config`, the user's file, and where a setting's value comes from."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")

from squish_cli import config, main, settings
from squish_cli.diagnosis import diagnose

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "tests" / "data" / "sample.safetensors")
Run = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, which does not exist yet; no setting is in the environment."""
    for name in list(os.environ):
        if name.startswith("SQUISH_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path / "settings" / "squish" / "config.toml"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; gives code, out, err."""

    def squish(*words: str) -> Any:
        code = main(words)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return squish


def origin_of(run: Run, name: str) -> tuple[str | None, str]:
    data = json.loads(run("config", "get", name, "--json").out)
    return data["value"], data["origin"]


def test_a_setting_is_written_read_and_removed(file: Path, run: Run) -> None:
    assert origin_of(run, "threads") == (None, "default")
    assert run("config", "set", "threads", "3").code == 0
    assert tomllib.loads(file.read_text()) == {"threads": 3}
    assert origin_of(run, "SQUISH_THREADS") == ("3", "file")
    assert run("config", "get", "threads").out == "3\n"
    assert run("config", "set", "threads", "4").code == 0
    assert origin_of(run, "threads") == ("4", "file")
    assert run("config", "unset", "threads").code == 0
    assert (file.read_text(), origin_of(run, "threads")) == ("", (None, "default"))
    assert run("config", "get", "cache_size").out == "17179869184\n"


def test_the_environment_wins_over_the_file(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("config", "set", "threads", "3")
    monkeypatch.setenv("SQUISH_THREADS", "5")
    assert origin_of(run, "threads") == ("5", "env")
    assert "wins" in run("config", "set", "threads", "2").out
    monkeypatch.setenv("SQUISH_THREADS", "")  # the default
    assert origin_of(run, "threads") == (None, "default")


def test_a_command_sees_the_settings_of_the_file_and_leaves_none(file: Path, run: Run) -> None:
    run("config", "set", "limits", "tensors=1")
    ran = run("ls", MODEL)
    assert (ran.code, "SQUISH_LIMITS" in os.environ) == (2, False)
    run("config", "set", "limits", "tensors=10")
    assert run("ls", MODEL).code == 0


def test_a_variable_names_another_file(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("config", "set", "threads", "3")
    monkeypatch.setenv("SQUISH_CONFIG", str(tmp_path / "other.toml"))
    assert run("ls", MODEL).code == 2  # there is no such file
    assert (run("doctor").code, "names no file" in run("doctor").out) == (1, True)
    assert run("config", "set", "threads", "7").code == 0
    assert origin_of(run, "threads") == ("7", "file")
    assert tomllib.loads(file.read_text()) == {"threads": 3}
    assert run("ls", MODEL).code == 0


def test_no_file_of_the_current_folder_is_read(
    file: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("config.toml", "squish.toml", ".squish.toml", "squish/config.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("threads = 9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")  # the convention ignores relative paths
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert origin_of(run, "threads") == (None, "default")


def test_paths_are_relative_to_the_file(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('families = "a.toml:sub/b.toml"\ncache = "~/c"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    assert origin_of(run, "families") == (f"{file.parent}/a.toml:{file.parent}/sub/b.toml", "file")
    assert origin_of(run, "cache") == (f"{tmp_path}/c", "file")
    monkeypatch.chdir(tmp_path)
    run("config", "set", "cache", "here")
    assert tomllib.loads(file.read_text())["cache"] == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("platform", "environment", "place"),
    [
        ("linux", {"XDG_CONFIG_HOME": "/x"}, "/x/squish/config.toml"),
        ("linux", {"XDG_CONFIG_HOME": ""}, "/home/me/.config/squish/config.toml"),
        ("darwin", {}, "/home/me/Library/Application Support/squish/config.toml"),
        ("win32", {"APPDATA": "/roaming"}, "/roaming/squish/config.toml"),
    ],
)
def test_the_file_is_where_the_system_keeps_settings(
    file: Path, monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], place: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    assert settings.config_file() == Path(place)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", "0"), ("threads", "many"), ("cache_size", "1GB"), ("limits", "tensors"), ("limits", "tensor=1"),
        ("source", "x"), ("tiers", "all"), ("cpu_threads", "1025"), ("cpu_instructions", "sse"), ("metal", "gpu"),
        ("threads", ""), ("nothing", "1"), ("config", "x"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused(file: Path, run: Run, name: str, value: str) -> None:
    ran = run("config", "set", name, value)
    assert (ran.code, ran.err.endswith("[usage]\n"), file.exists()) == (2, True, False)


@pytest.mark.parametrize(
    "text",
    [
        "threads = 0",
        "threads = [1]",
        "threads = true",
        "threads = ",
        "limits = 'x'",
        "\xff\xfe",
        "threads = 1\nthreads = 2",
    ],
)
def test_an_invalid_file_stops_commands_but_not_those_that_show_it(file: Path, run: Run, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))
    ran = run("ls", MODEL)
    assert (ran.code, str(file) in ran.err) == (2, True)
    assert run("config").code == 0
    assert run("config", "unset", "threads").code in (0, 2)
    assert run("doctor").code in (0, 1)


def test_a_name_that_is_not_a_setting_is_a_warning(file: Path, run: Run) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("thread = 1\n[section]\nthreads = 2\n")
    ran = run("formats")
    assert (ran.code, ran.err.count("warning: ")) == (0, 2)
    assert run("config", "set", "threads", "3").code == 0
    assert tomllib.loads(file.read_text()) == {"thread": 1, "threads": 3, "section": {"threads": 2}}


def test_comments_and_other_lines_stay(file: Path, run: Run) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("# mine\nthreads = 1  # few\n\ncache_size = 5\n")
    run("config", "set", "threads", "2")
    assert file.read_text() == "# mine\nthreads = 2\n\ncache_size = 5\n"


def test_the_list_says_where_each_value_comes_from(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("config", "set", "threads", "3")
    monkeypatch.setenv("SQUISH_METAL", "cpu")
    data = json.loads(run("config", "--json").out)
    assert json.loads(run("config", "list", "--json").out)["settings"] == data["settings"]
    origins = {each["name"]: each["origin"] for each in data["settings"]}
    assert [name for name, origin in origins.items() if origin != "default"] == ["threads", "metal"]
    assert (origins["threads"], origins["metal"], data["file"]) == ("file", "env", str(file))
    shown = run("doctor").out
    assert f"SQUISH_THREADS=3 (from {file})" in shown
    assert "SQUISH_METAL=cpu (from env)" in shown


def test_a_diagnosis_in_python_has_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUISH_THREADS", "2")
    states = {each.name: each.origin for each in diagnose().configuration.settings}
    assert (states["threads"], states["cache"]) == ("env", "default")


def test_every_variable_of_the_source_is_a_setting() -> None:
    """Variables of the kit and of completion are none of the user's; one that runs code has its place in no file."""
    names = set()
    for path in (*ROOT.glob("squish_core/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(r"SQUISH_[A-Z_]+", str(node.value)):
                names.add(node.value)
    variables = {setting.variable for setting in settings.SETTINGS}
    assert names - variables == {"SQUISH_CONFIG", "SQUISH_API", "SQUISH_MUTANTS", "SQUISH_PLUGIN_FILES"}
    assert variables <= names


def test_the_schema_accepts_what_set_writes() -> None:
    schema = settings.schema()
    assert schema["properties"].keys() == settings.BY_NAME.keys()
    assert all(each["description"] for each in schema["properties"].values())
    assert re.search(schema["properties"]["cpu_instructions"]["pattern"], "avx2")


def test_config_needs_no_plugins(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from squish_core.plugins import registry

    monkeypatch.setattr(registry, "registry", None)
    assert run("config", "list").code == 0
    assert config.config_group().registered_commands
