"""Encoders that are like decoders: tensors and keys of llama.cpp's converter, and the vectors of both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import converter, embeddings, modern_encoders
from oracles.engines import PROMPTS
from squish_models.api import check_model

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

BOUND = 1e-4
OURS = ("general.name", "rope.dimension_count", "attention.key_length", "attention.value_length")
"""Ends of the keys that only one of the files has: see the table in docs/models.md."""


@pytest.fixture(scope="module", params=modern_encoders.ENCODERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the model as `source`, and as `m.gguf`."""
    folder = tmp_path_factory.mktemp(request.param)
    modern_encoders.make(request.param, folder / "source")
    squish.convert(folder / "source", folder / "m.gguf", encode="f32")
    return folder


def keys_of(file: squish.File) -> dict[str, Any]:
    values = {key: np.asarray(getattr(value, "value", value)).tolist() for key, value in file.index.meta.items()}
    return {key: value for key, value in values.items() if not key.startswith("squish.") and not key.endswith(OURS)}


def test_tensors_and_keys_are_those_of_the_converter(model: Path) -> None:
    name = model.name.rstrip("0123456789")
    pre = modern_encoders.ENCODERS[name].get("pre", "default")
    theirs = converter.convert({"theirs": model / "source"}, model, {"theirs": pre})["theirs"]
    with squish.open(model / "m.gguf") as one, squish.open(theirs) as other:
        assert {*one} == {*other}
        for tensor in one:
            np.testing.assert_array_equal(one[tensor].numpy(), other[tensor].numpy(), tensor)
        assert keys_of(one) == keys_of(other)
    assert check_model(theirs, "llama.cpp").loads


def test_vectors_are_the_same_in_both_engines(model: Path) -> None:
    squish.convert(model / "m.gguf", model / "kept", "hf")
    with squish.open(model / "m.gguf") as file:
        own = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        squish.save(model / "other.gguf", {name: file[name].numpy() for name in file}, metadata=own)
    squish.convert(model / "other.gguf", model / "back", "hf")
    with squish.open(model / "source") as one, squish.open(model / "back") as other:
        assert {*one} == {*other}
    texts = [*PROMPTS]
    ids, expected = embeddings.vectors("torch", model / "source", texts)
    for engine, name in (("llama.cpp", "m.gguf"), ("torch", "kept"), ("torch", "back")):
        other, result = embeddings.vectors(engine, model / name, texts)
        assert other == ids
        assert np.abs(result - expected).max() < BOUND
