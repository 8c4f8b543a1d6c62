"""The examples in docstrings of the core and the installed plugins run as they stand.

Examples have `squish` (squish_core) and `np` (NumPy), and run in a folder that holds `model.gguf` and
`model.safetensors`: a vocabulary of 8, 32 features and one layer, whose matrix is stored as q8_0 in GGUF.
"""

from __future__ import annotations

import doctest
import importlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, *(folder for folder in ROOT.glob("plugins/*/src") if find_spec(next(folder.glob("squish_*")).name))]
MODULES = [
    ".".join(path.relative_to(folder).with_suffix("").parts)
    for folder in FOLDERS
    for path in sorted(folder.glob("squish_*/**/*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.fixture
def example_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "token_embd.weight": rng.standard_normal((8, 32), np.float32),
        "blk.0.ffn_up.weight": rng.standard_normal((64, 32), np.float32),
        "blk.0.ffn_norm.weight": np.ones(32, np.float32),
    }
    metadata = {"general.architecture": "llama"}
    squish.save(tmp_path / "model.gguf", tensors, encode={"blk.0.ffn_up.*": "q8_0"}, metadata=metadata)
    squish.save(tmp_path / "model.safetensors", tensors)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("example_folder")
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    if module.startswith("squish_torch."):
        pytest.importorskip("torch")
    results = doctest.testmod(
        importlib.import_module(module), extraglobs={"squish": squish, "np": np}, optionflags=doctest.ELLIPSIS
    )
    # examples that need the tokenizer of a model or a key are skipped
    assert results.attempted or module.startswith(("squish_torch.", "squish_convert.signing"))
    assert not results.failed
