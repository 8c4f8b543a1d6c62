"""Notes of a conversion: files of a model folder that are links to somewhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from squish_testing import expect_error

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


def cache_of(model: Path, root: Path, *revisions: str) -> Path:
    """A Hugging Face cache of a model: its snapshots are links to blobs, and refs/main names the first."""
    folder = root / "models--acme--tiny"
    for name in ("blobs", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "refs" / "main").write_text(revisions[0])
    for path in model.iterdir():
        (folder / "blobs" / f"sha-{path.name}").write_bytes(path.read_bytes())
    for revision in revisions:
        snapshot = folder / "snapshots" / revision
        snapshot.mkdir(parents=True)
        for path in model.iterdir():
            (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"sha-{path.name}")
    return folder


def test_a_cache_folder_is_its_main_snapshot(model: Path, tmp_path: Path) -> None:
    folder = cache_of(model, tmp_path, "abc", "def")
    with squish.open(folder) as file, squish.open(folder / "snapshots" / "abc") as snapshot:
        assert (file.name, dict(file.index.tensors)) == (snapshot.name, dict(snapshot.index.tensors))
        assert bytes(file.assets["config.json"].raw) == b"{}"
    (folder / "refs" / "main").unlink()
    with expect_error(squish.FormatError, code="folder", found="abc, def"):
        squish.open(folder)
    for link in (folder / "snapshots" / "def").iterdir():
        link.unlink()
    (folder / "snapshots" / "def").rmdir()
    assert squish.open(folder).name.endswith("abc")


def test_an_older_snapshot_does_not_stand_for_a_missing_main_one(model: Path, tmp_path: Path) -> None:
    folder = cache_of(model, tmp_path, "abc")
    (folder / "refs" / "main").write_text("def")
    with expect_error(squish.FormatError, code="folder", expected="def", found="abc"):
        squish.open(folder)


def test_a_cache_folder_without_snapshots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models--acme--tiny" / "snapshots").mkdir(parents=True)
    with expect_error(squish.FormatError, code="folder"):
        squish.open(tmp_path / "models--acme--tiny")
