"""Encoders in llama.cpp and Transformers after a way there and back, and beside llama.cpp's own converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from encoder_models import add_adapters, of_others, sentence_files
from oracles import converter, embeddings, encoders, encoders_by_hand
from oracles.engines import PROMPTS
from published_encoders import PUBLISHED
from squish_testing import write_model

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

BOUND = 1e-4
SCORES = 2e-3
"""llama.cpp looks up GELU in a table of f16, and scores are no vectors of unit length."""
UNKNOWN = ("general.name", "general.size_label", "tokenizer.ggml.pre")
"""Keys that the converter takes from the folder's name, from its count of values, and from the oracle."""
PLAIN = ("nomic_bert",)
"""Encoders without a pooler."""
HEADS = {f"nomic-bert{kind}.attention.{name}_length" for kind in ("", "-moe") for name in ("key", "value")}
"""What the converter writes if config.json states the size of a head, which published models do not."""
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
    check_beside_the_converter(source, tmp_path / "m.gguf", POOLER if name not in PLAIN else set(), SPACES | HEADS)


# through Transformers' NomicBertConfig, the converter reads other names, and less two positions
RESPELLED = {
    "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 4,
    "max_position_embeddings": 514, "layer_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 10000.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "kind", "run", "sizes", "respelled"),
    [
        (
            "nomic-embed-text-v2-moe",
            "pieces",
            encoders_by_hand.nomic_moe,
            {"n_embd": 64, "n_layer": 4},
            RESPELLED,
        ),
        ("jina-embeddings-v2-small-en", "words", encoders_by_hand.jina, {"hidden_size": 64}, {}),
        ("jina-embeddings-v3", "pieces", encoders_by_hand.jina3, {"hidden_size": 64}, {}),
    ],
)
def test_vectors_of_published_code_are_the_same_in_llama_cpp(
    model: str, kind: str, run: Any, sizes: dict[str, int], respelled: dict[str, Any], tmp_path: Path
) -> None:
    family, published = PUBLISHED[model]
    files = encoders.tokenizer(kind, tmp_path / "tokenizer")
    size = len(json.loads(files["tokenizer.json"])["model"]["vocab"])
    config = {**published, **sizes, "vocab_size": size, "torch_dtype": "float32"}
    source = write_model(tmp_path / "hf", family, config, dtype="f32", files=files | sentence_files())
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(of_others(tmp_path / "m.gguf"), tmp_path / "back", "hf")
    expected = encoders_by_hand.vectors(run, source, [*PROMPTS])
    again = encoders_by_hand.vectors(run, tmp_path / "back", [*PROMPTS])
    result = embeddings.vectors("llama.cpp", tmp_path / "m.gguf", [*PROMPTS])
    for ids, vectors in (again, result):
        assert ids == expected[0]
        assert np.abs(vectors - expected[1]).max() < BOUND
    if model == "jina-embeddings-v3":
        source = add_adapters(source, tmp_path / "adapted")
        squish.convert(source, tmp_path / "m.gguf", overwrite=True)
    config = {name: value for name, value in config.items() if name != "auto_map"}  # which would be downloaded
    (source / "config.json").write_text(json.dumps({**config, **respelled}))
    check_beside_the_converter(source, tmp_path / "m.gguf", set(), SPACES | HEADS)


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
