"""`verify --deep` and `diff` in other processes: the same findings, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli.app import run

import squish_core as squish
from squish_core.api import UsageError
from squish_core.checking import maps

RANDOM = np.random.default_rng(9)
ARRAYS = {
    f"model.layers.{number}.mlp.up_proj.weight": RANDOM.standard_normal((96, 256), np.float32) for number in range(6)
}
NAMES = list(ARRAYS)


@pytest.fixture(autouse=True)
def _small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "SPAN_BYTES", 150_000)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A file with two wrong digests."""
    squish.save(tmp_path / "in.safetensors", ARRAYS)
    squish.convert(tmp_path / "in.safetensors", tmp_path / "in.zt", "ztensor:digest=sha256", "q8_0")
    data = bytearray((tmp_path / "in.zt").read_bytes())
    with squish.open(tmp_path / "in.zt") as file:
        for name in (NAMES[1], NAMES[4]):
            data[next(iter(file[name].spec.encodings[0].parts.values())).segments[0].offset + 5] ^= 1
    (tmp_path / "in.zt").write_bytes(data)
    return tmp_path / "in.zt"


def test_verify_reports_the_same_findings(damaged: Path) -> None:
    serial = squish.verify(damaged, deep=True)
    seen: list[int] = []
    mapped = squish.verify(
        damaged, deep=True, scheduler="local:2", progress=lambda name, done, total: seen.append(done)
    )
    assert mapped == serial
    assert {problem.code for problem in serial.problems} == {"digest"}
    assert (len(serial.problems), seen[-1]) == (2, 6 * 96 * 8 * 34)


def test_diff_reports_the_same_differences(damaged: Path, tmp_path: Path) -> None:
    squish.convert(tmp_path / "in.safetensors", tmp_path / "small.gguf", encode="q4_0")
    for arguments in ({}, {"only": NAMES[:3]}, {"rename": "keep"}):
        files: Any = (tmp_path / "in.safetensors", tmp_path / "small.gguf")
        assert squish.diff(*files, **arguments, scheduler="local:2") == squish.diff(*files, **arguments)


def test_the_command_line_takes_a_scheduler(damaged: Path, tmp_path: Path) -> None:
    assert run(["verify", str(damaged), "--deep", "--scheduler", "local:1"]) == 1
    assert run(["diff", str(damaged), str(damaged), "--scheduler", "local:1"]) == 0
    assert run(["verify", str(damaged), "--scheduler", "local:1"]) == 2


def test_what_no_other_process_can_open_is_refused(damaged: Path) -> None:
    with pytest.raises(UsageError):
        squish.verify(damaged.read_bytes(), deep=True, scheduler="local:1")
