"""Notes of a conversion: files of a model folder that are links to somewhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import squish_core as squish


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint in a folder beside which other files lie."""
    folder = tmp_path / "model"
    folder.mkdir()
    raw = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"w")
    (folder / "config.json").write_text("{}")
    (tmp_path / "outside.json").write_text('{"outside": true}')
    return folder


def notes(source: Path, target: Path, to: str, **options: object) -> list[str]:
    return [note for note in squish.convert(source, target, to, **options).notes if "link" in note]  # type: ignore[arg-type]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_conversion_notes_assets_that_are_links_out_of_the_folder(model: Path, dry_run: bool, tmp_path: Path) -> None:
    (model / "tokenizer.json").symlink_to(tmp_path / "outside.json")
    (model / "vocab.json").symlink_to(Path("..") / "outside.json")
    (note,) = notes(model, tmp_path / "out.zt", "ztensor", dry_run=dry_run)
    assert "tokenizer.json" in note
    assert "vocab.json" in note
    assert str(tmp_path / "outside.json") in note
    assert "config.json" not in note


def test_links_inside_the_folder_and_a_linked_folder_are_not_noted(model: Path, tmp_path: Path) -> None:
    (model / "real.json").write_text("{}")
    (model / "tokenizer.json").symlink_to(model / "real.json")
    (tmp_path / "alias").symlink_to(model)
    assert not notes(tmp_path / "alias", tmp_path / "out.zt", "ztensor")


def test_links_that_the_target_does_not_carry_are_not_noted(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").symlink_to(tmp_path / "outside.json")
    assert not notes(model, tmp_path / "out.safetensors", "safetensors")


def test_a_link_in_a_folder_of_assets_is_noted(model: Path, tmp_path: Path) -> None:
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "tokenizer.json").symlink_to(tmp_path / "outside.json")
    assert notes(model, tmp_path / "out.zt", "ztensor", assets=lent)


def test_a_model_file_that_is_a_link_is_not_an_asset(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    assert not notes(model, tmp_path / "out.zt", "ztensor")
