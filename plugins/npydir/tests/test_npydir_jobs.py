"""Tiers that are built in other processes: the files that one process writes, also after an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from npydir_samples import source
from squish_cli import main
from squish_npydir.tiers import cache

import squish_core as squish
from squish_core.api import UsageError

RANDOM = np.random.default_rng(7)
TASK = squish.Job("local:1", task_bytes=3000)
"""A few tensors a task."""


def directory(tmp_path: Path, encode: str = "int8", **more: np.ndarray) -> Path:
    weights = {f"layers__{number}__up__weight": RANDOM.normal(size=(8, 128)).astype(np.float32) for number in range(6)}
    path = source(tmp_path / "s.safetensors", **weights, norm__weight=np.ones(128, np.float16), **more)
    squish.convert(path, tmp_path / "m", "npydir", encode)
    return tmp_path / "m"


BUILT = [("int8", "finalized"), ("int8", "int4"), ("int8", "3bit"), ("int4", "panels")]
INTERRUPTED = [
    (tier, resume)
    for tier in ("finalized", "int4", "int4a", "mlx", "4bit")
    for resume in (True, "verify")
    if (tier, resume) not in (("finalized", True), ("mlx", "verify"))
]
"""Tiers of the long runs; a few of each are in all."""


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents by name; seals are left out, which have modification times."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "squish_seals.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("encode", "tier"),
    [("int8", "mlx"), ("int4", "4bit"), *(pytest.param(*each, marks=pytest.mark.fuzz) for each in BUILT)],
)
def test_processes_build_the_files_of_one_process(tmp_path: Path, encode: str, tier: str) -> None:
    folder = directory(tmp_path, encode)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')  # a family that tolerates three bits
    copytree(folder, tmp_path / "serial")
    serial = cache.build(tmp_path / "serial", tier)
    assert cache.build(folder, tier, job=squish.Job("local:2", task_bytes=3000)) == serial
    assert files_of(folder) == files_of(tmp_path / "serial")
    assert squish.verify(folder, deep=True).clean
    assert cache.build(folder, tier, job=TASK).built == 0


def test_values_beyond_float16_are_built_by_a_second_job(tmp_path: Path) -> None:
    folder = directory(tmp_path, large__weight=np.full((2, 30), 1e38, np.float32))
    copytree(folder, tmp_path / "serial")
    for tier in ("finalized", "4bit"):
        cache.build(tmp_path / "serial", tier)
        cache.build(folder, tier, job=TASK)
    assert files_of(folder) == files_of(tmp_path / "serial")


class Killed(BaseException):
    """Ends a build between two tasks."""


def interrupt(folder: Path, tier: str) -> None:
    """Start a build that ends after two tasks."""
    calls: list[Any] = []

    def stop(*call: Any) -> None:
        calls.append(call)
        if len(calls) == 2:
            raise Killed

    with pytest.raises(Killed):
        cache.build(folder, tier, stop, job=TASK)


@pytest.mark.parametrize(
    ("tier", "resume"),
    [("finalized", True), ("mlx", "verify"), *(pytest.param(*each, marks=pytest.mark.fuzz) for each in INTERRUPTED)],
)
def test_an_interrupted_job_goes_on(tmp_path: Path, tier: str, resume: bool | str) -> None:
    folder = directory(tmp_path)
    copytree(folder, tmp_path / "serial")
    cache.build(tmp_path / "serial", tier)
    interrupt(folder, tier)
    assert not (folder / cache.BUILDERS[tier][0]).exists()
    (journal,) = folder.rglob("*.squish-journal")
    before = journal.read_bytes()
    assert before.count(b"\n") >= 2
    with pytest.raises(UsageError) as caught:
        cache.build(folder, tier, job=TASK)
    assert (caught.value.code, journal.read_bytes()) == ("journal", before)
    cache.build(folder, tier, job=evolve(TASK, resume=resume))
    assert files_of(folder) == files_of(tmp_path / "serial")


def test_a_build_in_one_process_replaces_an_unfinished_job(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    copytree(folder, tmp_path / "serial")
    interrupt(folder, "finalized")
    for each in (folder, tmp_path / "serial"):
        cache.build(each, "finalized")
    assert files_of(folder) == files_of(tmp_path / "serial")


def test_a_job_that_ended_while_arrays_were_moved_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path)
    copytree(folder, tmp_path / "serial")
    cache.build(tmp_path / "serial", "finalized")
    moves: list[Any] = []
    replace = os.replace

    def kill(old: Any, new: Any) -> None:
        moves.extend([new] if Path(new).parent.name == "finalized" else [])
        if len(moves) == 3:
            raise Killed
        replace(old, new)

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Killed):
        cache.build(folder, "finalized", job=TASK)
    monkeypatch.undo()
    built = cache.build(folder, "finalized", job=evolve(TASK, resume=True))
    assert (built.built, built.reused) == (5, 2)
    assert files_of(folder) == files_of(tmp_path / "serial")


@pytest.mark.parametrize("job", ["cluster", "local:0"])
def test_an_invalid_job_is_a_usage_error(tmp_path: Path, job: str) -> None:
    folder = directory(tmp_path)
    before = files_of(folder)
    with pytest.raises(UsageError) as caught:
        cache.build(folder, "finalized", job=job)
    assert caught.value.code == "usage"
    assert files_of(folder) == before


@pytest.mark.parametrize("words", [["--resume"], ["--task-bytes", "1MiB"], ["--scheduler", "local", "--resume=yes"]])
def test_an_invalid_option_is_a_usage_error(tmp_path: Path, words: list[str]) -> None:
    folder = directory(tmp_path)
    before = files_of(folder)
    assert main(["cache", "build", str(folder), "--tier", "finalized", *words]) == 2
    assert files_of(folder) == before


def test_the_command_takes_a_scheduler(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    words = ["cache", "build", str(folder), "--tier", "finalized", "--quiet"]
    assert main([*words, "--resume"]) == 2
    assert main([*words, "--scheduler", "local:1", "--task-bytes", "3KB", "--resume"]) == 0
    assert (folder / "finalized" / ".ready").exists()
