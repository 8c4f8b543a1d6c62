"""onnxruntime says of a written model what transformers says of its source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracles
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = pytest.mark.oracle
FAMILIES = [
    "llama",
    "llama-linear",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi-4-mini",
    "granite",
    "olmo2",
]
BOUND = 1e-4
"""Of log-probabilities of models this small, in f32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A small seeded model of a family."""
    return families.make(request.param, folder / request.param)


def answers(source: Path, target: Path) -> tuple[engines.Answer, engines.Answer]:
    """What transformers says of the source, and onnxruntime of the target on the same tokens."""
    expected = engines.ask("transformers", source, tokens=16)
    return expected, engines.ask("onnxruntime", target, expected.ids, tokens=16)


def test_a_model_runs_as_its_source(source, tmp_path):
    squish.convert(source, tmp_path / "model.onnx")
    assert engines.difference(*answers(source, tmp_path / "model.onnx"), BOUND) == ""


@pytest.mark.parametrize("encoding", ["q8_0", "q4_0", "q4_1", "q5_0"])
def test_stored_codes_run_as_their_values(folder, encoding, tmp_path):
    source = families.make("llama", folder / "codes") if not (folder / "codes").exists() else folder / "codes"
    squish.convert(source, tmp_path / "model.gguf", encode=encoding)
    report = squish.convert(tmp_path / "model.gguf", tmp_path / "model.onnx")
    assert {step.exactness.kind for step in report.steps} <= {"bytes", "values"}
    squish.convert(tmp_path / "model.gguf", tmp_path / "values", "hf", encode="f32")
    assert engines.difference(*answers(tmp_path / "values", tmp_path / "model.onnx"), BOUND) == ""


def checked(path):
    import onnx

    onnx.checker.check_model(path, full_check=True)
    return [each.name for each in onnx.load(path, load_external_data=False).graph.input]


def test_a_model_passes_onnx_own_checks(source, tmp_path):
    squish.convert(source, tmp_path / "model.onnx")
    inputs = oracles.peer("onnxruntime").run(checked, path=str(tmp_path / "model.onnx"))
    assert inputs[:4] == ["input_ids", "attention_mask", "position_ids", "past_key_values.0.key"]


def test_what_was_written_is_read_again(folder, source, tmp_path):
    squish.convert(source, tmp_path / "model.onnx")
    with squish.open(tmp_path / "model.onnx") as target, squish.open(source) as original:
        for name in original:
            assert np.array_equal(target[name].numpy(), original[name].numpy()), name
