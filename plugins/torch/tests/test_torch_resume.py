"""Evaluations that continue after they were interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import squish_torch
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish

WINDOW = 64


class Killed(Exception):  # noqa: N818 - stands for a signal
    """Raised by a progress function."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("resume")
    (root / "text.txt").write_text(TEXT[:260])
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257, num_hidden_layers=1))
    squish.convert(root / "hf", root / "q4.zt", encode=["q4_0", "*norm*=keep", "*embed*=q8_0"])
    return root


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"text": folder / "text.txt", "window": WINDOW, "against": folder / "hf", **more}


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    return squish_torch.evaluate(folder / "q4.zt", **options(folder, by="tensor")).to_dict()


@pytest.mark.parametrize("stop", [4, 15])
def test_a_run_that_was_killed_ends_with_the_same_numbers(
    folder: Path, tmp_path: Path, whole: dict[str, Any], stop: int
) -> None:
    """Calls 1 to 5 are of the whole models, then come 8 matrices for each window."""
    calls: list[tuple[str, int, int]] = []

    def progress(*call: Any) -> None:
        calls.append(call)
        if len(calls) == stop:
            raise Killed

    state = tmp_path / "state.json"
    with pytest.raises(Killed):
        squish_torch.evaluate(folder / "q4.zt", **options(folder, by="tensor", resume=state, progress=progress))
    data = squish_torch.evaluate(
        folder / "q4.zt", **options(folder, by="tensor", resume=state, progress=lambda *call: calls.append(call))
    ).to_dict()
    assert data == whole
    windows = [call[1:] for call in calls if call[0] == str(folder / "q4.zt")]
    assert {done for done, _ in windows} == {number * WINDOW for number in range(5)}
    assert len(windows) <= 5 + 2  # each run states where it starts; no window runs twice


def test_a_larger_limit_continues(folder: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    state = tmp_path / "state.json"
    for limit in (1, None):
        data = squish_torch.evaluate(folder / "q4.zt", **options(folder, limit=limit, resume=state)).to_dict()
    assert data == whole | {"per_tensor": None, "exchange": None}
    with pytest.raises(squish.UsageError) as caught:
        squish_torch.evaluate(folder / "q4.zt", **options(folder, limit=1, resume=state))
    assert caught.value.code == "resume"


def test_the_state_of_another_evaluation_is_refused(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    squish_torch.evaluate(folder / "q4.zt", **options(folder, limit=1, resume=state))
    before = state.read_bytes()
    for change in ({"window": 32}, {"against": None}, {"definition": "lm-eval"}):
        with pytest.raises(squish.UsageError) as caught:
            squish_torch.evaluate(folder / "q4.zt", **options(folder, limit=1, resume=state) | change)
        assert caught.value.code == "resume"
    assert state.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"squish_eval": 1, "identity": {}}'])
def test_a_file_that_is_no_state_is_refused(folder: Path, tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(content)
    with pytest.raises(squish.SquishError) as caught:
        squish_torch.evaluate(folder / "q4.zt", **options(folder, limit=1, resume=state))
    assert caught.value.code == "resume"
    assert state.read_bytes() == content
