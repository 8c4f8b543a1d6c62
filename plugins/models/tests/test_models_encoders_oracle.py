"""Encoders in llama.cpp and Transformers after a way there and back, and beside llama.cpp's own converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from encoder_models import of_others
from oracles import converter, embeddings, encoders
from oracles.engines import PROMPTS

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

BOUND = 1e-4
SCORES = 2e-3
"""llama.cpp looks up GELU in a table of f16, and scores are no vectors of unit length."""
UNKNOWN = ("general.name", "general.size_label", "tokenizer.ggml.pre")
"""Keys that the converter takes from the folder's name, from its count of values, and from the oracle."""
POOLER = {"cls.weight", "cls.bias"}
"""What the converter leaves out of a BERT."""
RANKED = {"bert.pooling_type"}
"""What the converter does not write for a classifier: llama.cpp must be told by its user."""
SPACES = {"tokenizer.ggml.remove_extra_whitespaces"}
"""What the converter takes from a setting of another meaning, where the tokenizer is not a SentencePiece model."""


def keys_of(file: squish.File) -> dict[str, Any]:
    return {
        key: (value.type, np.asarray(value.value).tolist())
        for key, value in file.index.meta.items()
        if not key.startswith("squish.") and key not in UNKNOWN
    }


def check_beside_the_converter(source: Path, own: Path, more: set[str], keys: set[str]) -> None:
    """Compare a GGUF with that of llama.cpp's converter, which lacks the tensors `more` and has other `keys`."""
    theirs = converter.convert({"theirs": source}, own.parent, {"theirs": "roberta-bpe"})["theirs"]
    with squish.open(theirs) as one, squish.open(own) as other:
        assert {*other} - {*one} == more
        assert {*one} <= {*other}
        for name in one:
            np.testing.assert_array_equal(one[name].numpy(), other[name].numpy(), name)
        before, after = keys_of(one), keys_of(other)
        assert {key for key in {*before, *after} if before.get(key) != after.get(key)} <= keys


@pytest.mark.parametrize("pooling", ["cls_token", "mean_tokens"])
@pytest.mark.parametrize("name", encoders.MODELS)
def test_vectors_are_the_same_in_both_engines(name: str, pooling: str, tmp_path: Path) -> None:
    source, texts = encoders.make(name, tmp_path / "hf", pooling=pooling), [*PROMPTS]
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "kept", "hf")
    squish.convert(of_others(tmp_path / "m.gguf"), tmp_path / "back", "hf")
    ids, expected = embeddings.vectors("torch", source, texts)
    for folder in ("kept", "back"):
        other, result = embeddings.vectors("torch", tmp_path / folder, texts)
        assert other == ids
        assert np.abs(result - expected).max() < BOUND
    ids, expected = embeddings.vectors("torch", source, texts, table=True)
    other, result = embeddings.vectors("llama.cpp", tmp_path / "m.gguf", texts)
    assert other == ids
    assert np.abs(result - expected).max() < BOUND
    check_beside_the_converter(source, tmp_path / "m.gguf", POOLER, SPACES)


@pytest.mark.parametrize(("name", "labels"), [("bert", 1), ("bert", 3), ("roberta", 2), ("xlm-roberta", 1)])
def test_scores_are_the_same_in_both_engines(name: str, labels: int, tmp_path: Path) -> None:
    source, texts = encoders.make(name, tmp_path / "hf", labels=labels), [*PROMPTS]
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "kept", "hf")
    squish.convert(of_others(tmp_path / "m.gguf"), tmp_path / "back", "hf")
    expected = encoders.scores(source, texts)
    for folder in ("kept", "back"):
        assert np.abs(encoders.scores(tmp_path / folder, texts) - expected).max() < BOUND
    answer = oracles.peer("llama.cpp").run(embeddings.llama_cpp, path=str(tmp_path / "m.gguf"), texts=texts)
    assert answer["vectors"].shape == (len(texts), labels)
    assert np.abs(answer["vectors"] - expected).max() < SCORES
    if labels != 2:  # two classes without names: the converter takes the last layer for the first one
        more = POOLER if name == "bert" else set()
        check_beside_the_converter(source, tmp_path / "m.gguf", more, RANKED | SPACES)
