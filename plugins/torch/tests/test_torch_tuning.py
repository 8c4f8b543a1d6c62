"""Policies by measured divergence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(("target", "code"), [("bpw=4", "budget"), ("bpw=x", "usage"), ("4.5", "usage")])
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
        tuning.allocate([cheap, dear], 4.0)
    assert (caught.value.code, caught.value.expected) == ("budget", "5.000 or more")
