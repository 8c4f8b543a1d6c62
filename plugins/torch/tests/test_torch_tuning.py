"""Policies by measured divergence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import squish_torch
from squish_cli import main
from squish_torch.evaluation import tuning
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tuning")
    (root / "text.txt").write_text(TEXT[:260])
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257, num_hidden_layers=1))
    return root


def words(folder: Path, target: str, *more: str) -> list[str]:
    return ["tune", str(folder / "hf"), "--target", target, "--text", str(folder / "text.txt"), "--window", "64", *more]


def test_a_policy_keeps_its_budget_and_converts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, target = tmp_path / "policy.toml", tmp_path / "out.zt"
    options = ["--encode", "q8_0", "--encode", "q4_0", "-o", str(policy), "--html", str(tmp_path / "page.html")]
    assert main(words(folder, "bpw=6", *options, "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<tr><td>all others</td><td>keep</td></tr>" in page
    assert page.count("<td>q8_0</td>") + page.count("<td>q4_0</td>") == len(data["rules"]) - 1
    assert data["bits"] <= 6
    steps = data["frontier"]
    assert len(steps) > 1
    assert [step["kl"] for step in steps] == sorted((step["kl"] for step in steps), reverse=True)
    assert [step["bits"] for step in steps] == sorted(step["bits"] for step in steps)
    assert steps[0]["bits"] == 4.5
    assert main(["convert", str(folder / "hf"), str(target), "--recipe", str(policy)]) == 0
    with squish.open(target) as file:
        matrices = [tensor for tensor in file.values() if len(tensor.shape) == 2]
        bits = sum(8 * tensor.bound.encoding.stored for tensor in matrices)
        assert bits / sum(tensor.spec.elements for tensor in matrices) == pytest.approx(data["bits"])
        assert {tensor.codec for tensor in matrices} == {"ggml.q8_0", "ggml.q4_0"}
        assert all(tensor.codec == "dense" for tensor in file.values() if len(tensor.shape) == 1)


def test_a_recipe_keeps_the_size_of_the_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encodings = ("--encode", "q8_0", "--encode", "q4_0")
    state = ("--state", str(tmp_path / "state.json"))
    sizes = []
    for size in (60_000, 90_000):
        recipe, target = tmp_path / f"{size}.toml", tmp_path / f"{size}.zt"
        assert main(words(folder, f"size={size}", *encodings, *state, "-o", str(recipe), "--json")) == 0
        planned = json.loads(capsys.readouterr().out)["size"]
        assert main(["convert", str(folder / "hf"), str(target), "--recipe", str(recipe)]) == 0
        capsys.readouterr()
        sizes.append(target.stat().st_size)
        assert planned == sizes[-1] <= size
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("bpw=4", "budget"), ("size=1kB", "budget"), ("bpw=x", "usage"), ("size=big", "usage"), ("4.5", "usage"),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_met_is_an_error(
    folder: Path,
    tmp_path: Path,
    target: str,
    code: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tmp_path / "policy.toml"
    monkeypatch.setattr(tuning, "measure_tensors", None)  # refused before a model runs
    assert main(words(folder, target, "--encode", "q4_0", "-o", str(policy), "--json")) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not policy.exists()


def test_a_budget_that_only_some_matrices_meet_is_an_error() -> None:
    cheap = tuning.Matrix(("a",), 64, (tuning.Option("int2", 16, 1.0), tuning.Option("keep", 256, 0.0)))
    dear = tuning.Matrix(("b",), 64, (tuning.Option("int8", 64, 1.0), tuning.Option("keep", 256, 0.0)))
    with pytest.raises(squish.UsageError) as caught:
        tuning.Goal(None, "ztensor", Path(), bpw=4.0).allocate([cheap, dear])
    assert (caught.value.code, caught.value.expected) == ("budget", "5.000 or more")


KILLED = """
import os, signal, sys
import squish_torch

calls = []

def progress(*call):
    calls.append(call)
    if len(calls) == 12:
        os.kill(os.getpid(), signal.SIGKILL)

squish_torch.tune(sys.argv[1], bpw=6, text=sys.argv[2], window=64, candidates=("q8_0", "q4_0"), resume=sys.argv[3],
                  progress=progress)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_run_that_was_killed_continues_and_other_inputs_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, text = tmp_path / "state.json", folder / "text.txt"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder / "hf"), str(text), str(state)])
    assert done.returncode == -signal.SIGKILL
    calls: list[tuple[str, int, int]] = []
    announced: list[tuple[float, int]] = []
    settings = {"text": text, "window": 64, "candidates": ("q8_0", "q4_0")}
    saved = state.read_bytes()
    for change in ({"window": 32}, {"candidates": ("q4_0",)}, {"to": "gguf"}):
        with pytest.raises(squish.UsageError) as refused:
            squish_torch.tune(folder / "hf", bpw=6, resume=state, **settings | change)
        assert refused.value.code == "resume"
    assert state.read_bytes() == saved
    continued = squish_torch.tune(
        folder / "hf",
        bpw=6,
        resume=state,
        progress=lambda *call: calls.append(call),
        announce=lambda seconds: announced.append((seconds, len(calls))),
        **settings,
    )
    assert continued == squish_torch.tune(folder / "hf", bpw=6, **settings)
    (seconds, before), runs = announced[0], 2 * 8 * 4  # two candidates of eight matrices on four windows
    assert len(calls) == runs - 11
    assert (len(announced), before) == (1, 0)
    assert seconds > 0
    monkeypatch.setattr(tuning, "measure_tensors", None)  # another budget takes no further runs
    assert squish_torch.tune(folder / "hf", bpw=9, resume=state, **settings).bpw <= 9


def test_the_time_is_stated_and_the_state_is_gone_with_the_recipe_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    assert main(words(folder, "bpw=6", "--encode", "q4_0", "-o", str(recipe))) == 0
    assert "measuring takes about" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [recipe]
