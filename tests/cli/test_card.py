"""`squish card` describes a file for its model card, and huggingface_hub reads it."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import peer
from squish_cli import main

import squish_core as squish

RANDOM = np.random.default_rng(3)
TENSORS = {
    **{f"layers.{layer}.up.weight": RANDOM.standard_normal((64, 256)).astype(np.float32) for layer in range(3)},
    **{f"layers.{layer}.down.weight": RANDOM.standard_normal((32, 256)).astype(np.float32) for layer in range(3)},
    "norm": np.ones(64, np.float32),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with base.safetensors."""
    monkeypatch.chdir(tmp_path)
    squish.save("base.safetensors", TENSORS)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "to", "rules"),
    [
        ("q.gguf", None, ["q4_0"]),
        ("q.gguf", None, ["q4_0", "*down*=q8_0"]),
        ("mixed.gguf", None, ["q8_0", "layers.1.down.weight=f16"]),
        ("out", "mlx", ["int4"]),
        ("copy.safetensors", None, ["keep"]),
    ],
)
def test_the_command_makes_a_file_with_the_same_types(
    target: str, to: str | None, rules: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    squish.convert("base.safetensors", target, to, rules, rename="keep")
    assert main(["card", target, "--base", "base.safetensors", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["command"]
    words = shlex.split(command.replace(f" {target}", f" again-{target}"))
    assert words[:2] == ["squish", "convert"]
    assert main([*words[1:], "--quiet"]) == 0
    with squish.open(target) as first, squish.open(f"again-{target}") as second:
        assert {name: str(first[name].codec) for name in first} == {name: str(second[name].codec) for name in second}


def test_errors_and_digests_are_those_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squish.convert("base.safetensors", "q.gguf", None, ["q4_0", "*down*=q8_0"], rename="keep")
    assert main(["card", "q.gguf", "--base", "base.safetensors", "--json"]) == 0
    card: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert card["files"][0]["sha256"] == hashlib.sha256(Path("q.gguf").read_bytes()).hexdigest()
    difference = squish.diff("base.safetensors", "q.gguf")
    worst = {row["stored_as"]: row["worst_nmse"] for row in card["errors"]}
    for kind in ("ggml.q4_0", "ggml.q8_0"):
        errors = [item.nmse for item in difference.tensors if item.b.startswith(kind) and item.nmse is not None]
        assert worst[kind] == max(errors)
    assert "Tensors with equal values: 1." in card["markdown"]


def test_without_a_base_a_stated_command_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", "base.safetensors", "--command", "make weights"]) == 0
    printed = capsys.readouterr().out
    assert "make weights" in printed
    assert "Errors" not in printed


def test_names_do_not_leave_their_cells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a`b|c.safetensors"
    Path("base.safetensors").rename(name)
    assert main(["card", name]) == 0
    assert "`a'b/c.safetensors`" in capsys.readouterr().out


def read_card(path):  # type: ignore[no-untyped-def]
    import warnings

    from huggingface_hub import ModelCard

    warnings.simplefilter("error")
    card = ModelCard.load(path)
    return card.data.to_dict(), card.text


@pytest.mark.oracle
def test_huggingface_hub_reads_the_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squish.convert("base.safetensors", "q.gguf", None, ["q4_0"], rename="keep")
    assert main(["card", "q.gguf", "--base", "base.safetensors"]) == 0
    Path("README.md").write_text(capsys.readouterr().out)
    data, text = peer("torch").run(read_card, path=str(folder / "README.md"))
    assert data == {"tags": ["gguf", "squish"]}
    assert "## Files (gguf 3)" in text
    assert "squish convert base.safetensors q.gguf" in text
