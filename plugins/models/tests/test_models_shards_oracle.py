"""llama.cpp loads split sets, and computes what it computes from the joined file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("options", ["max_shard_tensors=5", "max_shard_size=100KB,empty_first_shard=yes,alignment=64"])
def test_llama_cpp_runs_a_split_set(options: str, tmp_path: Path) -> None:
    source = families.make("llama", tmp_path / "model")
    squish.convert(source, tmp_path / "whole.gguf")
    report = squish.convert(tmp_path / "whole.gguf", tmp_path / "m.gguf", f"gguf:{options}")
    whole = engines.ask("llama.cpp", tmp_path / "whole.gguf", tokens=1)
    split = engines.ask("llama.cpp", Path(report.target), whole.ids, tokens=1)
    assert np.array_equal(whole.logprobs, split.logprobs)
