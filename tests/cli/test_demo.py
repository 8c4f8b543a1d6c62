"""The demo fails when one of its commands does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("typer")
DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_a_command_that_fails_fails_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    demo = module.Demo(tmp_path / "a", tmp_path)
    demo.command("formats")
    assert not demo.failed
    demo.command("ls", tmp_path / "gone.gguf")
    assert demo.failed == [f"squish ls {tmp_path / 'gone.gguf'} ended with 2"]
    capsys.readouterr()
