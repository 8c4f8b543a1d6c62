"""Pictures of `squish browse` at 80 x 24: `pytest tests/cli/test_browse_pictures.py --snapshot-update` takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish

pytest.importorskip("textual")
pytest.importorskip("pytest_textual_snapshot")

from squish_cli.browser import Browser

SIZE = (80, 24)
VALUES = np.random.default_rng(0).standard_normal((64, 64), np.float32)
TENSORS = {f"model.layers.{n}.{kind}.weight": VALUES * (n + 1) for n in range(3) for kind in ("up_proj", "down_proj")}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[squish.File]:
    """Two files under names without a folder, which the pictures show."""
    monkeypatch.chdir(tmp_path)
    squish.save("model.safetensors", {**TENSORS, "[red]name[/red]": np.ones(4, np.float16)})
    squish.convert("model.safetensors", "small.gguf", encode=["q8_0", "*name*=keep"])
    return [squish.open("model.safetensors"), squish.open("small.gguf")]


def test_values_of_a_tensor(files: list[squish.File], snap_compare: Any) -> None:
    async def read(pilot: Any) -> None:
        await pilot.press("down", "enter", "down", "s")
        await pilot.app.workers.wait_for_complete()

    assert snap_compare(Browser(files[0]), terminal_size=SIZE, run_before=read)


def test_two_files_without_color(files: list[squish.File], snap_compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def compare(pilot: Any) -> None:
        await pilot.press("slash", *"0.up", "enter", "d")
        await pilot.app.workers.wait_for_complete()

    assert snap_compare(Browser(*files), terminal_size=SIZE, run_before=compare)
