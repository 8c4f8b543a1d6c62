"""Models in shards: joined, cut and joined again, they are the same model, and indexes list what the shards have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_convert.content import hash_content
from toys import files_of

import squish_core as squish

RANDOM = np.random.default_rng(11)
WEIGHTS = {f"model.layers.{n}.mlp.up_proj.weight": RANDOM.standard_normal((32, 256), np.float32) for n in range(5)}
WEIGHTS |= {"model.norm.weight": np.ones(256, np.float32)}
FORMATS = {
    "gguf": ("gguf", "m.gguf", "q4_1"),
    "safetensors": ("safetensors:max_shard_size=1GB", "m", "f16"),
    "hf": ("hf", "m", "f16"),
    "mlx": ("mlx", "m", "q4_1"),
    "uqff": ("uqff", "m", "q4_1"),
}
"""Name -> the target in one file (UQFF: two), the name of the target, and the encoding."""


@pytest.mark.parametrize("name", FORMATS)
def test_model_is_joined_cut_and_joined_again(tmp_path: Path, name: str) -> None:
    whole, target, encoding = FORMATS[name]
    squish.save(tmp_path / "source.safetensors", WEIGHTS)
    rules = {"*_proj.weight": encoding}
    first = squish.convert(tmp_path / "source.safetensors", tmp_path / "one" / target, whole, rules, rename="keep")
    cut = f"{name}:max_shard_size="
    cuts = [first.target]
    for folder, to in (("cut", f"{cut}20KB"), ("again", f"{cut}7KB"), ("joined", whole)):
        report = squish.convert(cuts[-1], tmp_path / folder / target, to, rename="keep")
        assert {step.action for step in report.steps} == {"copy"}
        cuts.append(report.target)
    one, fewer, more, joined = (count_shards(tmp_path / folder) for folder in ("one", "cut", "again", "joined"))
    assert one == joined < fewer < more
    assert len({hash_content(path).content for path in cuts}) == 1
    assert all(squish.verify(path, deep=True).ok for path in cuts)
    assert files_of(tmp_path / "joined") == files_of(tmp_path / "one")
    for index in tmp_path.rglob("*.index.json"):
        listed = json.loads(index.read_text())
        stored = dict[str, str]()
        for shard in index.parent.glob("*.safetensors"):
            with squish.open(shard, "safetensors") as file:
                stored |= dict.fromkeys(file, shard.name)
        assert listed["weight_map"] == stored


def count_shards(folder: Path) -> int:
    """The files with tensors."""
    return sum(path.suffix in (".gguf", ".safetensors", ".uqff") for path in folder.rglob("*") if path.is_file())
