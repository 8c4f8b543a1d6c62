"""Devices by name: one that is not there is refused before anything is loaded, with those that are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import squish_torch
import torch
from squish_cli.app import run
from squish_torch.devices import available_devices, device_named
from squish_torch.evaluation.activations import collect_activations
from squish_torch.evaluation.tasks import evaluate_tasks
from squish_torch.generation import Prompt, generate

import squish_core as squish
from squish_core.api import ErrorCode


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1", "meta", torch.device("cuda", 1)])
def test_devices_that_are_there(name: Any) -> None:
    assert device_named(name) == torch.device(name)
    assert available_devices()[:3] == ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize("name", ["cuda:2", "gpu", "", "xpu"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(squish.UsageError) as caught:
        device_named(name)
    assert (caught.value.code, caught.value.found) == (ErrorCode.USAGE, name)
    assert "cuda:1" in caught.value.expected


@pytest.mark.usefixtures("_no_gpu")
def test_every_call_refuses_a_device_before_it_opens_the_file(tmp_path: Path) -> None:
    prompt = Prompt("x", raw=True, greedy=True, seed=0, max_new_tokens=1)
    calls = (
        lambda path: squish_torch.from_pretrained(path, device="cuda"),
        lambda path: generate(path, prompt, write=None, explain=None, device="cuda"),
        lambda path: squish_torch.evaluate(path, text="text.txt", device="cuda"),
        lambda path: collect_activations(path, "out.gguf", text="text.txt", device="cuda"),
        lambda path: evaluate_tasks(path, ["task.yaml"], device="cuda"),
    )
    for call in calls:
        with pytest.raises(squish.UsageError) as caught:
            call(str(tmp_path / "absent.gguf"))
        assert (caught.value.found, caught.value.expected) == ("cuda", "cpu")


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "command",
    [
        ["run", "m.gguf", "--prompt", "x"],
        ["eval", "m.gguf", "--text", "t.txt"],
        ["activations", "m.gguf", "--text", "t.txt", "-o", "i.gguf"],
    ],
    ids=lambda words: words[0],
)
def test_commands_refuse_it_with_status_2_as_printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--device", "cuda"]) == 2
    assert "expected cpu" in capsys.readouterr().err
