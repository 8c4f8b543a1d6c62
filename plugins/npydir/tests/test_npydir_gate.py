"""Gates of tiers: their grammar, and what is missing without squish-torch. The measurement is tested with torch."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from npydir_samples import source
from squish_cli import main
from squish_npydir.gate import Gate
from squish_npydir.write.replace import delete_tier

import squish_core as squish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = source(tmp_path / "s.safetensors", up__weight=np.ones((8, 128), np.float32))
    squish.convert(path, tmp_path / "m", "npydir", "int8")
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a.txt", ("a.txt", "kl", 0.05)),
        ("a.txt:kl=0.1", ("a.txt", "kl", 0.1)),
        ("c:/a:top1=0.97", ("c:/a", "top1", 0.97)),
        ("a:kl=x", ("a:kl=x", "kl", 0.05)),
    ],
)
def test_a_gate_has_a_text_and_a_bound(value: str, expected: tuple[str, str, float]) -> None:
    gate = Gate.parse(value)
    assert (str(gate.text), gate.metric, gate.bound) == expected


@pytest.mark.parametrize("value", ["a:kl=-1", "a:top1=1.5", "a:kl=1e", "a:kl=--2"])
def test_an_impossible_bound_is_an_error(value: str) -> None:
    with pytest.raises(squish.UsageError) as caught:
        Gate.parse(value)
    assert caught.value.code == "usage"


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed here")
@pytest.mark.parametrize("tier", ["finalized", "mlx", "int4", "int4a"])
def test_a_gate_without_torch_is_an_error_and_leaves_no_tier(
    folder: Path, tier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert main(["cache", "build", str(folder), "--tier", tier, "--gate", "text.txt", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "not-installed"
    assert sorted(folder.rglob("*")) == before


def test_only_arrays_beside_int8_ones_are_removed(tmp_path: Path) -> None:
    path = source(tmp_path / "s.safetensors", up__weight=np.ones((8, 128), np.float32))
    squish.convert(path, tmp_path / "m", "npydir", "int4")
    before = sorted((tmp_path / "m").rglob("*"))
    delete_tier(tmp_path / "m", "int4", "")
    assert sorted((tmp_path / "m").rglob("*")) == before
