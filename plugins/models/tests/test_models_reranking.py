"""Rerankers that are causal models: two rows of the head are GGUF's classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_testing import write_model
from test_models_gguf_keys import QWEN3, TOKENIZER

import squish_core as squish
from squish_core.errors import FormatError
from squish_core.model import Typed

KIND = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
MODULES = [{"idx": 1, "name": "1", "path": "1_LogitScore", "type": KIND}]
LABELS = "qwen3.classifier.output_labels"


def reranker(folder: Path, score: dict[str, Any], **files: Any) -> Path:
    """Convert a folder like Qwen3-Reranker to a GGUF."""
    own = {"modules.json": MODULES, "1_LogitScore/config.json": score, **files}
    source = write_model(
        folder / "hf", "qwen3", QWEN3, files=TOKENIZER | {name: json.dumps(each).encode() for name, each in own.items()}
    )
    squish.convert(source, folder / "m.gguf")
    return folder / "m.gguf"


def changed(path: Path, arrays: dict[str, np.ndarray], keys: dict[str, Typed | None]) -> Path:
    """Write a GGUF of others with other tensors and keys."""
    with squish.open(path) as file:
        own = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        meta = {key: value for key, value in {**own, **keys}.items() if value is not None}
        tensors = {name: file[name].numpy() for name in file} | arrays
        squish.save(path.with_name("other.gguf"), tensors, metadata=meta)
    return path.with_name("other.gguf")


def test_the_classifier_is_two_rows_of_the_head(tmp_path: Path) -> None:
    template = {"chat_template": [{"name": "default", "template": "a"}, {"name": "reranker", "template": "b"}]}
    options = {"tokenizer_config.json": json.loads(TOKENIZER["tokenizer_config.json"]) | template}
    path = reranker(tmp_path, {"true_token_id": 2, "false_token_id": 0}, **options)
    with squish.open(path) as file:
        assert file.meta["qwen3.pooling_type"] == 4
        assert file.meta[LABELS] == ["ab", "a"]
        head = file["token_embd.weight" if "output.weight" not in file else "output.weight"].numpy()
        np.testing.assert_array_equal(file["cls.output.weight"].numpy(), head[[2, 0]])
        assert file.meta["tokenizer.chat_templates"] == ["reranker", "rerank"]
        assert "{query}" in file.meta["tokenizer.chat_template.rerank"]
    squish.convert(path, tmp_path / "back", "hf")
    for name in ("modules.json", "1_LogitScore/config.json", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes()


@pytest.mark.parametrize(
    "ids", [{"true_token_id": 2, "false_token_id": None}, {"true_token_id": 99, "false_token_id": 1}]
)
def test_a_score_of_other_than_two_tokens_is_refused(ids: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        reranker(tmp_path, ids)
    assert (caught.value.code, caught.value.part) == ("config", "1_LogitScore/config.json")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("quantized", [False, True])
def test_the_ids_come_back_from_the_labels_of_a_gguf_of_others(quantized: bool, tmp_path: Path) -> None:
    path = changed(reranker(tmp_path, {"true_token_id": 2, "false_token_id": 0}), {}, {})
    if quantized:
        squish.convert(path, tmp_path / "q.gguf", encode="q8_0")
        path = tmp_path / "q.gguf"
    squish.convert(path, tmp_path / "back", "hf", encode="bf16" if quantized else None)
    stated = json.loads((tmp_path / "back" / "1_LogitScore" / "config.json").read_text())
    assert stated == {"true_token_id": 2, "false_token_id": 0}
    squish.convert(tmp_path / "back", tmp_path / "again.gguf")
    with squish.open(tmp_path / "again.gguf") as file:
        assert file.meta[LABELS] == ["ab", "a"]


@pytest.mark.parametrize(
    ("arrays", "keys"),
    [
        ({"cls.output.weight": np.ones((2, 32), np.float32)}, {}),
        ({"cls.output.weight": np.ones((3, 32), np.float32)}, {}),
        ({}, {LABELS: None}),
        ({}, {LABELS: Typed("array:str", ["ab", "missing"])}),
        ({}, {LABELS: Typed("array:str", ["a", "ab"])}),
    ],
)
@pytest.mark.parametrize("to", ["hf", "mlx"])
def test_another_classifier_is_refused(to: str, arrays: dict[str, Any], keys: dict[str, Any], tmp_path: Path) -> None:
    path = changed(reranker(tmp_path, {"true_token_id": 2, "false_token_id": 0}), arrays, keys)
    with pytest.raises(FormatError) as caught:
        squish.convert(path, tmp_path / "back", to)
    assert (caught.value.code, caught.value.tensor) == ("unmapped", "cls.output.weight")
