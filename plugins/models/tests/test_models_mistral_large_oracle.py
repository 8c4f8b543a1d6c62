"""The GGUF files of Mistral Large 3, of DeepSeek's architecture: llama.cpp runs them, and others what they become.

No engine here but llama.cpp has the model, so a small Mistral 4, which computes the same, stands for it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles import families
from oracles.engines import ask
from squish_models.api import check_model

import squish_core as squish
from squish_core.model import Typed

pytestmark = pytest.mark.oracle
BOUNDS = {"hf": ("transformers", 1e-4), "mlx": ("mlx", 1e-3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mistral 4, and beside it the GGUF of a Mistral Large 3."""
    source = families.make("mistral4", tmp_path_factory.mktemp("large") / "m")
    squish.convert(source, source.with_name("m.gguf"), "gguf:keep=no")
    with squish.open(source.with_name("m.gguf")) as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    large = {key.replace("mistral4.", "deepseek2.", 1): value for key, value in meta.items()}
    squish.save(
        source.with_name("large.gguf"), arrays, metadata={**large, "general.architecture": Typed("str", "deepseek2")}
    )
    return source


def test_llama_cpp_computes_the_same_under_either_architecture(folder: Path) -> None:
    one = ask("transformers", folder)
    other = ask("llama.cpp", folder.with_name("large.gguf"), one.ids)
    assert (np.abs(one.logprobs - other.logprobs).max() < 1e-4, one.greedy) == (True, other.greedy)
    assert not check_model(folder.with_name("large.gguf"), "llama.cpp").problems


@pytest.mark.parametrize("layout", BOUNDS)
def test_an_engine_of_folders_computes_the_same(layout: str, folder: Path, tmp_path: Path) -> None:
    engine, bound = BOUNDS[layout]
    squish.convert(folder.with_name("large.gguf"), tmp_path / layout, layout)
    one = ask("transformers", folder)
    other = ask(engine, tmp_path / layout, one.ids)
    assert (np.abs(one.logprobs - other.logprobs).max() < bound, one.greedy) == (True, other.greedy)
    assert not check_model(tmp_path / layout, engine).problems
