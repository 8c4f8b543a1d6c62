"""`squish cache build --gate`: a tier whose model is too far from its source is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import squish_torch
from squish_cli import main
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gate")
    (root / "text.txt").write_text(TEXT * 4)
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257, num_hidden_layers=1))
    squish.convert(root / "hf", root / "m", "npydir", encode=["int8", "*norm*=keep"])
    return root / "m"


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    shutil.copy(model.parent / "text.txt", tmp_path)
    return Path(shutil.copytree(model, tmp_path / "m"))


def build(folder: Path, tier: str, bound: str) -> int:
    gate = f"{folder.parent / 'text.txt'}:{bound}"
    return main(["cache", "build", str(folder), "--tier", tier, "--gate", gate, "--json", "--quiet"])


@pytest.mark.parametrize(
    ("tier", "label", "bound"), [("4bit", "squish_4bit", "kl=1e-4"), ("int4a", "int4", "top1=0.999")]
)
def test_a_tier_that_fails_leaves_nothing(
    folder: Path, tier: str, label: str, bound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert build(folder, tier, bound) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "gate"
    assert {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()} == before
    assert build(folder, tier, "kl=5") == 0
    gate = json.loads(capsys.readouterr().out)["gate"]
    metric, _, value = bound.partition("=")
    assert gate[metric] > float(value) if metric == "kl" else gate[metric] < float(value)
    with squish.open(folder) as file:
        assert label in {encoding.label for spec in file.index.tensors.values() for encoding in spec.encodings}


def test_a_gate_measures_the_tier_against_the_own_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(folder, "finalized", "kl=0.01") == 0
    gate = json.loads(capsys.readouterr().out)["gate"]
    assert 0 < gate["kl"] < 1e-3
    with squish.open(folder) as file:
        result = squish_torch.evaluate(file, text=folder.parent / "text.txt", against=file.without_caches())
    assert result.to_dict()["kl"]["mean"] == pytest.approx(gate["kl"], rel=1e-6)
    assert build(folder, "finalized", "kl=1e-12") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "gate"
    assert (folder / "finalized" / ".ready").exists()  # it was there before
