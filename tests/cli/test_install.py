"""`squish install`: prints the command for this environment, asks, and runs it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from squish_cli import install, main

from squish_core import environment


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that run instead of an installer; they all succeed."""
    commands: list[list[str]] = []

    class Done:
        returncode = 0

    def run(command: list[str], **options: Any) -> Done:
        commands.append(command)
        return Done()

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/bin/{name}")
    return commands


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_dry_run_prints_the_command_alone(ran: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "squish-core", "squish-remote[fsspec]", "--dry-run"]) == 0
    assert capsys.readouterr() == ("pip install squish-core 'squish-remote[fsspec]'\n", "")
    assert not ran


def test_without_a_terminal_yes_is_needed(
    ran: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["install", "squish-gguf"]) == 2
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "pip install squish-gguf"
    assert "--yes" in printed
    assert not ran
    assert main(["install", "squish-gguf", "--yes"]) == 0
    assert ran == [["/bin/pip", "install", "squish-gguf"]]


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 0), ("n\n", 2)])
def test_on_a_terminal_it_asks(
    typed: str, code: int, ran: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert main(["install", "squish-gguf", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["executed"] is (code == 0)
    assert len(ran) == (code == 0)


def test_wheels_of_a_folder_are_found_from_any_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "squish_gguf-0.1.0-py3-none-any.whl").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["install", "Squish_GGUF", "--find-links", "dist", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"pip install --find-links={tmp_path}/dist squish-gguf\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-r requirements.txt"],
        ["./folder"],
        ["git+https://example.org/x"],
        ["squish-nothing"],
        ["squish-gguf==9"],
        ["a b"],
        ["squish-gguf", "--find-links", "no-such-folder"],
        ["squish-gguf", "--find-links", "."],
    ],
    ids=" ".join,
)
def test_what_is_not_a_package_is_refused(
    arguments: list[str], ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["install", *arguments, "--yes"]) == 2
    assert not ran


@pytest.mark.parametrize("command", [["no-such-installer"], [sys.executable, "-c", "raise SystemExit(3)"]])
def test_an_installer_that_fails_is_an_error(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "installer", lambda: ([command], ()))
    assert main(["install", "squish-gguf", "--yes"]) == 2
    assert command[0] in capsys.readouterr().err


def test_the_directory_is_searched_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--available", "MLX", "--json"]) == 0
    rows = {row["package"]: row for row in json.loads(capsys.readouterr().out)["available"]}
    assert rows["squish-mlx"]["provides"] == ["format mlx"]
    assert {row["state"] for row in rows.values()} <= {"installed", "available"}
    assert main(["plugins", "--available", "no such word"]) == 1


def test_a_plugin_that_is_not_installed_comes_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_PLUGINS", "-squish-onnx")
    monkeypatch.setattr("squish_core.plugins.registry._default", None)
    assert main(["plugins", "--available", "onnx"]) == 0
    assert "squish install squish-onnx" in capsys.readouterr().out
