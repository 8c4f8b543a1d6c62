"""`check_model` against the engines: it refuses what they refuse, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from oracles import engines, families
from squish_models.api import check_model

import squish_core as squish

pytestmark = pytest.mark.oracle
SKIPPED = ("squish.", "general.quantization_version")
FAMILIES = ("llama", "qwen3_moe", "gemma3_text")
TARGETS = {"mlx": "mlx", "mistralrs": "uqff", "transformers": "safetensors:max_shard_size=1GB"}


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.make(request.param, tmp_path_factory.mktemp("source") / request.param)


def refusal(engine: str, model: Path) -> str:
    """Why the engine does not load a model, or nothing."""
    load = {"mlx": load_mlx, "transformers": load_transformers}
    try:
        if engine in load:
            oracles.peer(engines.ENGINES[engine].peer).run(load[engine], path=str(model))
        else:
            engines.ask(engine, model, tokens=1, vocabulary=families.SIZE["vocab_size"], timeout=60)
    except oracles.OracleError as error:
        return str(error).splitlines()[0]
    return ""


def load_mlx(path: str) -> None:
    """Runs in the peer."""
    from pathlib import Path

    import mlx.core as mx
    from mlx_lm.utils import load_model, load_tokenizer

    mx.set_default_device(mx.cpu)
    load_model(Path(path))
    load_tokenizer(Path(path))


def load_transformers(path: str) -> None:
    """Runs in the peer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(path, local_files_only=True)
    model, loading = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, output_loading_info=True)
    if left := {kind: len(keys) for kind, keys in loading.items() if keys and kind.endswith("_keys")}:
        raise RuntimeError(f"Transformers leaves {left}")
    model(torch.tensor([[1, 2, 3]]))


STRICTER = ("config", "contradiction", "names", "tokenizer")
"""Codes of what the check refuses though an engine may load it: nothing then says what the model is."""


def disagreements(engine: str, models: dict[str, Callable[[], Path]]) -> dict[str, str]:
    """What the engine and the check say of each model, where they differ."""
    differing = {}
    for name, make in models.items():
        model = make()
        answer, problems = refusal(engine, model), check_model(model, engine).problems
        errors = [each for each in problems if each.severity == "error" and each.code not in STRICTER]
        if (answer and not problems) or (errors and not answer):
            differing[name] = f"{engine}: {answer or 'loads'}; check: {[each.where for each in problems] or 'loads'}"
    return differing


def test_the_check_says_what_llama_cpp_says(source: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    squish.convert(source, model)
    with squish.open(model) as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)

    def saved(left_out: str = "", dtype: Any = None) -> Path:
        kept = {name: array for name, array in arrays.items() if name != left_out}
        if dtype is not None:
            kept = {name: array.astype(dtype) for name, array in kept.items()}
        squish.save(tmp_path / "x.gguf", kept, metadata={key: value for key, value in meta.items() if key != left_out})
        return tmp_path / "x.gguf"

    keys = [key for key in meta if not key.startswith(SKIPPED)]
    tensors = [name for name in arrays if name.startswith("blk.0.") or "." not in name.removesuffix(".weight")]
    models: dict[str, Callable[[], Path]] = {name: partial(saved, name) for name in ("", *keys, *tensors)}
    models |= {"all f16": partial(saved, dtype=np.float16), "all f64": partial(saved, dtype=np.float64)}
    assert disagreements("llama.cpp", models) == {}


@pytest.mark.parametrize("engine", list(TARGETS))
def test_the_check_says_what_engines_of_folders_say(engine: str, source: Path, tmp_path: Path) -> None:
    model, copy = tmp_path / "model", tmp_path / "copy"
    squish.convert(source, model, TARGETS[engine])
    config = json.loads((model / "config.json").read_text())

    def copied(left_out: str = "") -> Path:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(model, copy)
        (copy / "config.json").write_text(json.dumps({key: config[key] for key in config if key != left_out}))
        (copy / left_out).unlink(missing_ok=True) if left_out.startswith("tokenizer") else None
        return copy

    names = ("", *config, "tokenizer.json", "tokenizer_config.json")
    assert disagreements(engine, {name: partial(copied, name) for name in names}) == {}
