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
    "llama", "llama-linear", "llama-yarn", "llama-dynamic", "mistral", "mixtral", "qwen2", "qwen2_5_vl", "qwen3",
    "qwen3_moe", "gemma2", "gemma3_text", "phi3", "phi3-longrope", "phi-4", "phi-4-mini", "granite", "olmo2", "glm4",
    "starcoder2", "lfm2",
]  # fmt: skip
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


WIDE = {"hidden_size": 256, "intermediate_size": 256}
"""Sizes that blocks of 256 divide."""


@pytest.mark.parametrize("encoding", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_stored_codes_run_as_their_values(folder, encoding, tmp_path):
    source = folder / "codes"
    if not source.exists():
        families.make("llama", source, **WIDE)
    squish.convert(source, tmp_path / "model.gguf", encode=encoding)
    report = squish.convert(tmp_path / "model.gguf", tmp_path / "model.onnx")
    assert {step.exactness.kind for step in report.steps} <= {"bytes", "values"}
    squish.convert(tmp_path / "model.gguf", tmp_path / "values", "hf", encode="f32")
    assert engines.difference(*answers(tmp_path / "values", tmp_path / "model.onnx"), BOUND) == ""


@pytest.mark.peers
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_with_zero_points_run_as_their_values(folder, bits, tmp_path):
    source = folder / "codes"
    if not source.exists():
        families.make("llama", source, **WIDE)
    codes = f"affine:bits={bits},group_size=64,axis=flat,offset=zero_point,offset_dtype=packed,scale_dtype=f16"
    squish.convert(source, tmp_path / "model.onnx", encode=codes)
    squish.convert(tmp_path / "model.onnx", tmp_path / "values", "hf", encode="f32")
    assert engines.difference(*answers(tmp_path / "values", tmp_path / "model.onnx"), BOUND) == ""


@pytest.mark.parametrize("family", ["mixtral", "lfm2"])
def test_codes_of_experts_and_convolutions_run_as_their_values(folder, family, tmp_path):
    source = families.make(family, folder / f"{family}-codes")
    squish.convert(source, tmp_path / "model.gguf", encode="q4_1")
    squish.convert(tmp_path / "model.gguf", tmp_path / "model.onnx")
    squish.convert(tmp_path / "model.onnx", tmp_path / "back.gguf")
    assert squish.diff(tmp_path / "model.gguf", tmp_path / "back.gguf").same
    squish.convert(tmp_path / "model.gguf", tmp_path / "values", "hf", encode="f32")
    assert engines.difference(*answers(tmp_path / "values", tmp_path / "model.onnx"), BOUND) == ""


def checked(path):
    import onnx

    onnx.checker.check_model(path, full_check=True)
    return [input_.name for input_ in onnx.load(path, load_external_data=False).graph.input]


def test_a_model_passes_onnx_own_checks(source, tmp_path):
    squish.convert(source, tmp_path / "model.onnx")
    inputs = oracles.peer("onnxruntime").run(checked, path=str(tmp_path / "model.onnx"))
    first = "past.0.conv" if source.name == "lfm2" else "past_key_values.0.key"
    assert inputs[:4] == ["input_ids", "attention_mask", "position_ids", first]


def test_a_base_that_grows_with_the_text_grows_as_in_transformers(folder, tmp_path):
    """Every prompt is longer than 16 tokens."""
    source = families.make("llama-dynamic", folder / "short", max_position_embeddings=16)
    squish.convert(source, tmp_path / "model.onnx")
    assert engines.difference(*answers(source, tmp_path / "model.onnx"), BOUND) == ""


def test_what_was_written_is_read_again(folder, source, tmp_path):
    squish.convert(source, tmp_path / "model.onnx")
    with squish.open(tmp_path / "model.onnx") as target, squish.open(source) as original:
        for name in original:
            if not name.startswith("visual."):
                assert np.array_equal(target[name].numpy(), original[name].numpy()), name
