"""Split sets that are written: names, contents, limits and alignment as in gguf-split, joining, and bad options."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish
from squish_core.errors import UsageError

RANDOM = np.random.default_rng(5)
WEIGHTS = {f"blk.{n}.up.weight": RANDOM.standard_normal((32, 256), np.float32) for n in range(7)}
SIZE = 32 * 256 // 32 * 18
"""Bytes of one tensor as q4_0."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    squish.save(path, WEIGHTS, encode="q4_0", metadata={"general.name": "tiny"})
    return path


def written(model: Path, options: str) -> list[Path]:
    report = squish.convert(model, model.with_name("m.gguf"), f"gguf:{options}")
    files = sorted(path for path in model.parent.iterdir() if path != model)
    assert report.target == str(files[0])
    assert report.size == sum(path.stat().st_size for path in files)
    return files


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ("max_shard_tensors=3", [3, 3, 1]),
        ("max_shard_tensors=7", [7]),
        (f"max_shard_size={2 * SIZE}", [2, 2, 2, 1]),
        (f"max_shard_size={2 * SIZE - 1}", [1] * 7),
        ("max_shard_size=1", [1] * 7),
        ("max_shard_size=1G", [7]),
        (f"max_shard_size={3 * SIZE},max_shard_tensors=2", [2, 2, 2, 1]),
        ("empty_first_shard=yes", [0, 7]),
        ("max_shard_tensors=4,empty_first_shard=yes", [0, 4, 3]),
        ("max_shard_tensors=4,alignment=256", [4, 3]),
    ],
)
def test_model_is_cut_as_gguf_split_does(model: Path, options: str, counts: list[int]) -> None:
    files = written(model, options)
    assert [path.name for path in files] == [f"m-{n:05}-of-{len(counts):05}.gguf" for n in range(1, len(counts) + 1)]
    assert [int.from_bytes(path.read_bytes()[8:16], "little") for path in files] == counts
    assert [b"general.name" in path.read_bytes() for path in files] == [True, *[False] * (len(counts) - 1)]
    assert squish.diff(model, files[-1]).tensors == squish.diff(model, model).tensors
    assert squish.verify(files[0], deep=True).clean


@pytest.mark.parametrize("options", ["max_shard_tensors=2", "max_shard_size=10KB,empty_first_shard=yes"])
def test_set_is_joined_and_cut_again(model: Path, options: str, tmp_path: Path) -> None:
    files = written(model, options)
    squish.convert(files[1], tmp_path / "joined.gguf")
    assert (tmp_path / "joined.gguf").read_bytes() == model.read_bytes()
    squish.convert(files[0], tmp_path / "n.gguf", "gguf:max_shard_tensors=5")
    assert squish.diff(model, tmp_path / "n-00002-of-00002.gguf").same


def test_set_replaces_an_older_one(model: Path) -> None:
    first = [path.read_bytes() for path in written(model, "max_shard_tensors=4")]
    squish.save(model, {name: -array for name, array in WEIGHTS.items()}, encode="q4_0")
    second = [path.read_bytes() for path in written(model, "max_shard_tensors=4")]
    assert len(first) == len(second)
    assert all(one != other for one, other in zip(first, second))


def test_source_is_deleted_after_the_set_is_compared(model: Path) -> None:
    squish.convert(model, model.with_name("m.gguf"), "gguf:max_shard_tensors=4", delete_source=True)
    assert sorted(os.listdir(model.parent)) == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_alignment_is_of_every_tensor(model: Path) -> None:
    squish.convert(model, model.with_name("m.gguf"), "gguf:alignment=4096")
    with squish.open(model.with_name("m.gguf")) as file:
        parts = [spec.encodings[0].parts["data"] for spec in file.index.tensors.values()]
        assert {part.segments[0].offset % 4096 for part in parts} == {0}
        assert file.metadata["general.alignment"] == 4096


@pytest.mark.parametrize(
    "option",
    [
        *(f"max_shard_size={size}" for size in ("0", "x")),
        *(f"max_shard_tensors={count}" for count in ("0", "-1")),
        *(f"alignment={value}" for value in (0, 3, 4, 2097152)),
        "empty_first_shard=1",
    ],
)
def test_invalid_option_is_refused_before_anything_is_written(model: Path, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        squish.convert(model, model.with_name("m.gguf"), f"gguf:{option}")
    assert caught.value.code == "option"
    assert os.listdir(model.parent) == [model.name]
