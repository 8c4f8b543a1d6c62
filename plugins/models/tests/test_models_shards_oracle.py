"""Engines load models in shards, and compute what they compute from the joined ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles import engines, families
from squish_convert.editing.changes import Changes
from squish_convert.editing.edit import edit

import squish_core as squish

pytestmark = pytest.mark.oracle
SIZE = families.SIZE["vocab_size"]


@pytest.mark.parametrize("options", ["max_shard_tensors=5", "max_shard_size=100KB,empty_first_shard=yes,alignment=64"])
def test_llama_cpp_runs_a_split_set(options: str, tmp_path: Path) -> None:
    source = families.make("llama", tmp_path / "model")
    squish.convert(source, tmp_path / "whole.gguf")
    report = squish.convert(tmp_path / "whole.gguf", tmp_path / "m.gguf", f"gguf:{options}")
    whole = engines.ask("llama.cpp", tmp_path / "whole.gguf", tokens=1)
    split = engines.ask("llama.cpp", Path(report.target), whole.ids, tokens=1)
    assert np.array_equal(whole.logprobs, split.logprobs)


@pytest.mark.parametrize(
    ("engine", "to", "encode"),
    [
        ("transformers", "safetensors:max_shard_size={}", None),
        ("mlx", "mlx:max_shard_size={}", "q4"),
        ("mistralrs", "uqff:max_shard_size={}", "q8_0"),
    ],
)
def test_engine_runs_a_model_that_was_cut_joined_and_cut_again(
    engine: str, to: str, encode: str | None, tmp_path: Path
) -> None:
    source = families.make("llama", tmp_path / "source")
    squish.convert(source, tmp_path / "whole", to.format("1GB"), encode)
    for old, new, size in (("whole", "cut", "100KB"), ("cut", "joined", "1GB"), ("joined", "again", "20KB")):
        squish.convert(tmp_path / old, tmp_path / new, to.format(size))
    assert len([*(tmp_path / "again").iterdir()]) > len([*(tmp_path / "whole").iterdir()]) + 3
    whole = engines.ask(engine, tmp_path / "whole", tokens=1, vocabulary=SIZE)
    again = engines.ask(engine, tmp_path / "again", whole.ids, tokens=1, vocabulary=SIZE)
    assert np.array_equal(whole.logprobs, again.logprobs)


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_engine_runs_a_set_that_was_edited_in_place(engine: str, tmp_path: Path) -> None:
    source = families.make("llama", tmp_path / "source")
    to, name = {"llama.cpp": ("gguf:max_shard_tensors=5", "m.gguf")}.get(
        engine, ("safetensors:max_shard_size=100KB", "m")
    )
    path = Path(squish.convert(source, tmp_path / "model" / name, to).target)
    path = path if engine == "llama.cpp" else path.parent / name
    before = engines.ask(engine, path, tokens=1)
    with squish.open(path) as file:
        norm = next(name for name in file if name.endswith("output_norm.weight") or name == "model.norm.weight")
        squish.save(tmp_path / "norm.safetensors", {norm: 2 * file[norm].numpy()})
    with squish.open(tmp_path / "norm.safetensors") as replace:
        assert edit(path, Changes(put={"license": "MIT"}, replace=replace)).how == "rewritten"
    after = engines.ask(engine, path, before.ids, tokens=1)
    assert not np.array_equal(before.logprobs, after.logprobs)
    assert squish.verify(path, deep=True).clean
