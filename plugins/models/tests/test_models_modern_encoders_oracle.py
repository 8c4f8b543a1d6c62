"""Encoders that are like decoders: tensors and keys of llama.cpp's converter, and the vectors of both engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from converted_folders import change
from oracles import converter, embeddings, modern_encoders
from oracles.engines import PROMPTS
from squish_models.api import check_model

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

BOUND = 1e-4
OTHERS = ("general.name", "rope.dimension_count", "tokenizer.ggml.pre", "eurobert.classifier.pooling_type")
"""Ends of the keys that differ, or that only one of the files has: see the table in docs/models.md."""


@pytest.fixture(scope="module", params=modern_encoders.ENCODERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the model as `source`, and as `m.gguf`."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "name.json").write_text(json.dumps(request.param))
    modern_encoders.make(request.param, folder / "source")
    squish.convert(folder / "source", folder / "m.gguf", encode="f32")
    return folder


def keys_of(file: squish.File, others: tuple[str, ...]) -> dict[str, Any]:
    values = {key: np.asarray(getattr(value, "value", value)).tolist() for key, value in file.index.meta.items()}
    own = {key: value for key, value in values.items() if not key.startswith("squish.")}
    return {key: value for key, value in own.items() if not key.endswith((*OTHERS, *others))}


def test_tensors_and_keys_are_those_of_the_converter(model: Path) -> None:
    name = json.loads((model / "name.json").read_text())
    entry = modern_encoders.ENCODERS[name]
    folder = shutil.copytree(model / "source", model / "theirs")
    change(folder / "config.json", **entry.get("converter", {}))
    theirs = converter.convert({"theirs": folder}, model, {"theirs": entry.get("pre", "default")})["theirs"]
    with squish.open(model / "m.gguf") as one, squish.open(theirs) as other:
        assert {*one} == {*other}
        for tensor in one:
            np.testing.assert_array_equal(one[tensor].numpy(), other[tensor].numpy(), tensor)
        others = entry.get("others", ())
        assert keys_of(one, others) == keys_of(other, others)
    assert check_model(theirs, "llama.cpp").loads


def test_vectors_are_the_same_in_both_engines(model: Path) -> None:
    name = json.loads((model / "name.json").read_text())
    squish.convert(model / "m.gguf", model / "kept", "hf")
    with squish.open(model / "m.gguf") as file:
        own = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        squish.save(model / "other.gguf", {name: file[name].numpy() for name in file}, metadata=own)
    squish.convert(model / "other.gguf", model / "back", "hf")
    with squish.open(model / "source") as one, squish.open(model / "back") as other:
        assert {*one} == {*other}
    texts = [*PROMPTS]
    ids, expected = embeddings.vectors("torch", modern_encoders.known(name, model / "source"), texts)
    kept = modern_encoders.known(name, model / "kept")
    for engine, path in (("llama.cpp", model / "m.gguf"), ("torch", kept), ("torch", model / "back")):
        other, result = embeddings.vectors(engine, path, texts)
        assert other == ids
        assert np.abs(result - expected).max() < BOUND


LABELS = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


@pytest.mark.parametrize("settings", [{"classifier_pooling": "mean"}, {"classifier_pooling": "cls", **LABELS}])
def test_scores_of_a_classifier_are_the_same_in_both_engines(settings: dict[str, Any], tmp_path: Path) -> None:
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, **settings}
    kind = {"architectures": ["ModernBertForSequenceClassification"]}
    source = modern_encoders.make("modernbert", tmp_path / "source", **kind, **labels)
    for path in ("modules.json", "1_Pooling/config.json"):
        (source / path).unlink()
    squish.convert(source, tmp_path / "m.gguf", encode="f32")
    theirs = converter.convert({"theirs": source}, tmp_path, {"theirs": "modern-bert"})["theirs"]
    with squish.open(tmp_path / "m.gguf") as one, squish.open(theirs) as other:
        assert {*one} == {*other}
        for tensor in one:
            np.testing.assert_array_equal(one[tensor].numpy(), other[tensor].numpy(), tensor)
        assert one.meta["modern-bert.pooling_type"] == 4
        keys = ("classifier.output_labels", "classifier.pooling_type", "classifier.activation")
        for key in (f"modern-bert.{name}" for name in keys):
            assert np.asarray(one.meta[key]).tolist() == np.asarray(other.meta[key]).tolist()
        own = {key: value for key, value in one.index.meta.items() if not key.startswith("squish.")}
        squish.save(tmp_path / "other.gguf", {name: one[name].numpy() for name in one}, metadata=own)
    squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    texts = [*PROMPTS]
    answers = [
        oracles.peer("torch").run(modern_encoders.scores, folder=str(folder), texts=texts)
        for folder in (source, tmp_path / "back")
    ]
    path = str(tmp_path / "m.gguf")
    answers.append(oracles.peer("llama.cpp").run(embeddings.llama_cpp, path=path, texts=texts)["vectors"])
    for answer in answers[1:]:
        assert np.abs(answer - answers[0]).max() < BOUND
