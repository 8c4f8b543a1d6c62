"""Vectors of embedding models in llama.cpp and Transformers, after a way there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from converted_folders import template
from oracles import embeddings, families
from oracles.engines import PROMPTS

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

BOUND = 1e-4
POOLING = {"lasttoken": 3, "cls_token": 2, "mean_tokens": 1}


def save_base(source: str, target: str) -> None:
    """Save the base model of a causal one, whose names have no prefix; runs in the peer."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(source)
    model.save_pretrained(target)


def embedding_model(folder: Path, pooling: str, config: dict[str, Any]) -> Path:
    """A folder like Qwen3-Embedding: names without a prefix, no head, and the files of sentence-transformers."""
    whole = families.make("qwen3", folder / "whole", **config)
    template(whole, after="<|endoftext|>")
    target = folder / "source"
    oracles.peer("torch").run(save_base, source=str(whole), target=str(target))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((whole / name).read_bytes())
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (target / "modules.json").write_text(json.dumps(modules))
    (target / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in POOLING}
    stated = {"word_embedding_dimension": families.SIZE["hidden_size"], **modes}
    (target / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    return target


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("pooling", POOLING)
def test_vectors_are_the_same_in_both_engines(pooling: str, tied: bool, tmp_path: Path) -> None:
    source, texts = embedding_model(tmp_path, pooling, {"tie_word_embeddings": tied}), [*PROMPTS]
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.meta["qwen3.pooling_type"] == POOLING[pooling]
        assert "output.weight" not in file
        own = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        squish.save(tmp_path / "other.gguf", {name: file[name].numpy() for name in file}, metadata=own)
    squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    ids, expected = embeddings.vectors("torch", source, texts)
    for engine, model in (("llama.cpp", "m.gguf"), ("torch", "back")):
        other, result = embeddings.vectors(engine, tmp_path / model, texts)
        assert other == ids
        assert np.abs(result - expected).max() < BOUND


def score(folder: str, texts: list[str]) -> np.ndarray:
    """Probabilities of both tokens of a reranker; runs in the peer."""
    import json
    from pathlib import Path

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stated = json.loads(Path(folder, "1_LogitScore", "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    ids = [stated["true_token_id"], stated["false_token_id"]]
    with torch.inference_mode():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0, -1, ids] for text in texts]
    return torch.softmax(torch.stack(logits), -1).numpy()


def reranker(folder: Path, tied: bool) -> Path:
    """A folder like Qwen3-Reranker: a causal model, and the ids of two tokens."""
    source = families.make("qwen3", folder / "source", tie_word_embeddings=tied)
    ids = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    (source / "modules.json").write_text(json.dumps([{"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind}]))
    (source / "1_LogitScore").mkdir()
    stated = {"true_token_id": ids["y"], "false_token_id": ids["n"]}
    (source / "1_LogitScore" / "config.json").write_text(json.dumps(stated))
    return source


@pytest.mark.parametrize("tied", [True, False])
def test_scores_of_a_reranker_are_the_same_in_both_engines(tied: bool, tmp_path: Path) -> None:
    source, texts = reranker(tmp_path, tied), [*PROMPTS]
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert (file.meta["qwen3.pooling_type"], file.meta["qwen3.classifier.output_labels"]) == (4, ["y", "n"])
        own = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        squish.save(tmp_path / "other.gguf", {name: file[name].numpy() for name in file}, metadata=own)
    squish.convert(tmp_path / "m.gguf", tmp_path / "kept", "hf")
    squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    for name in ("modules.json", "1_LogitScore/config.json"):
        assert (tmp_path / "kept" / name).read_bytes() == (source / name).read_bytes()
    expected = oracles.peer("torch").run(score, folder=str(source), texts=texts)
    for name in ("kept", "back"):
        result = oracles.peer("torch").run(score, folder=str(tmp_path / name), texts=texts)
        assert np.abs(result - expected).max() < BOUND
    answer = oracles.peer("llama.cpp").run(embeddings.llama_cpp, path=str(tmp_path / "m.gguf"), texts=texts)
    assert np.abs(answer["vectors"] - expected).max() < BOUND
