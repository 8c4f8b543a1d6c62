"""The action and the hooks for repositories with weights: a damaged file fails, and its tensor is named."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import squish_core as squish

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "action" / "check.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a file that is fine, and one whose last tensor is cut off."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name in ("good", "bad"):
        tensors = {f"blk.{layer}.up": np.ones((8, 32), np.float32) for layer in range(3)}
        squish.save(tmp_path / f"{name}.gguf", tensors)
    data = (tmp_path / "bad.gguf").read_bytes()
    (tmp_path / "bad.gguf").write_bytes(data[:-100])
    return tmp_path


def check(repository: Path, **inputs: str) -> tuple[int, str, str]:
    summary = repository / "summary.md"
    environment = {**os.environ, **inputs, "GITHUB_STEP_SUMMARY": str(summary)}
    done = subprocess.run([sys.executable, ACTION], cwd=repository, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, summary.read_text() if summary.exists() else ""


def test_a_damaged_file_fails_with_its_tensor(repository: Path) -> None:
    code, printed, summary = check(repository, FILES="*.gguf", STRICT="true")
    assert code == 1
    (annotation,) = (line for line in printed.splitlines() if line.startswith("::error"))
    assert annotation.startswith("::error file=bad.gguf::")
    assert "blk.2.up" in annotation
    assert "| `good.gguf` | ok |" in summary
    assert "| `bad.gguf` | **faulty** |" in summary
    assert "blk.2.up" in summary


def test_files_without_faults_pass(repository: Path) -> None:
    code, printed, summary = check(repository, FILES="good.gguf")
    assert (code, "error" in printed) == (0, False)
    assert "**" not in summary


def test_an_engine_that_would_not_load_a_file_fails(repository: Path) -> None:
    code, printed, summary = check(repository, FILES="good.gguf", ENGINE="llama.cpp")
    assert code == 1
    assert "::error file=good.gguf::" in printed
    assert "| file | verify | llama.cpp |" in summary


def test_what_both_checks_find_is_said_once(repository: Path) -> None:
    _, printed, summary = check(repository, FILES="bad.gguf", ENGINE="llama.cpp")
    (annotation,) = (line for line in printed.splitlines() if line.startswith("::error"))
    assert "blk.2.up" in annotation
    assert summary.count("blk.2.up") == 1
    assert "| `bad.gguf` | **faulty** | **faulty** |" in summary


@pytest.mark.parametrize("inputs", [{"FILES": " "}, {"FILES": "none.gguf"}, {"FILES": "good.gguf", "STRICT": "yes"}])
def test_inputs_that_check_nothing_fail(inputs: dict[str, str], repository: Path) -> None:
    assert check(repository, **inputs)[0] == 1


def test_the_action_runs_the_script_with_its_inputs() -> None:
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert list(action["inputs"]) == ["files", "engine", "strict"]
    install, run = (step for step in action["runs"]["steps"] if "run" in step)
    assert {"FILES", "ENGINE", "STRICT"} <= run["env"].keys()
    folders = install["run"].partition("{")[2].partition("}")[0].split(",")
    assert [name for name in folders if not (ROOT / "plugins" / name / "pyproject.toml").is_file()] == []


def test_the_hooks_fail_with_the_tensor(repository: Path) -> None:
    hooks: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    for hook in hooks:
        assert [
            name for name in hook["additional_dependencies"] if not (ROOT / name / "pyproject.toml").is_file()
        ] == []
        command = [sys.executable, *shlex.split(hook["entry"])[1:], "good.gguf", "bad.gguf"]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
        assert done.returncode == 1
        assert "blk.2.up" in done.stdout + done.stderr
        assert subprocess.run(command[:-1], cwd=repository, capture_output=True).returncode == 0
