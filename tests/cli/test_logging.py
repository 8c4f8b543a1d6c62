"""The logger `squish`, and `-v`, which shows it on stderr."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

from squish_cli import main

import squish_core as squish

DATA = Path(__file__).parents[1] / "data"
MODEL = str(DATA / "sample.safetensors")


@pytest.mark.parametrize(
    "line",
    ["-v ls {}", "ls -v {}", "ls {} --verbose", "ls {} --json -v", "-v {}"],
)
def test_a_verbose_command_shows_what_is_opened_words(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert main(line.format(MODEL).split()) == 0
    err = capsys.readouterr().err
    assert f"squish: reading {MODEL} as safetensors" in err
    assert f"squish: opened {MODEL} as safetensors, 2 tensors" in err


def test_it_shows_what_is_resolved_and_why_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["-v", "plan", MODEL, "weight"]) == 0
    err = capsys.readouterr().err
    assert "squish: resolved weight" in err
    assert "because" in err
    target = str(tmp_path / "m.safetensors")
    assert main(["convert", MODEL, target, "--encode", "f16", "-v", "--quiet"]) == 0
    err = capsys.readouterr().err
    assert "squish: converting norm: encode" in err
    assert "squish: decoding norm with dense" in err


def test_without_it_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["-v", "ls", MODEL])
    capsys.readouterr()
    assert main(["ls", MODEL]) == 0
    assert capsys.readouterr().err == ""
    assert logging.getLogger("squish").handlers == []


def test_a_program_reads_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "squish"), squish.open(MODEL) as file:
        file["weight"].load()
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events[:2] == ["reading", "opened"]
    assert "resolved" in events


def test_logging_is_imported_by_those_who_listen() -> None:
    script = f"import sys, squish_core; list(squish_core.open({MODEL!r})); print('logging' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_secrets_of_addresses_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    main(["-v", "ls", "https://me:secret@127.0.0.1:9/m.gguf?key=hidden"])
    err = capsys.readouterr().err
    assert "secret" not in err
    assert "hidden" not in err
