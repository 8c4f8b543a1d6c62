"""What `check_model` says about settings and codes, against the engines: refused, other results, or the same."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import oracles
import pytest
from oracles import engines, families
from squish_models.api import check_model

import squish_core as squish

pytestmark = pytest.mark.oracle
BOUND = 0.01
BLOCKS = 0.1
LINEAR = {"rope_parameters": {**families.ROPE, "rope_type": "linear"}}
EQUAL_HEADS = {"v_head_dim": 48}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("deepseek_v2", {"num_hidden_layers": 2, "q_lora_rank": 48}, "gguf", "error"),
    ("deepseek_v2", {"num_hidden_layers": 2, "q_lora_rank": 48}, "uqff", ""),
    ("deepseek_v3", {}, "uqff", "error"),
    ("deepseek_v3", EQUAL_HEADS, "uqff", "warning"),
    ("deepseek_v3", {**EQUAL_HEADS, "first_k_dense_replace": 2}, "uqff", ""),
    ("llama", {"head_dim": 32}, "uqff", "error"),
    ("qwen2", LINEAR, "uqff", "warning"),
    ("qwen2", LINEAR, "gguf", "error"),
    ("starcoder2", {}, "uqff", ""),
]


def outcome(source: Path, model: Path, engine: str) -> str:
    """ "error" if the engine refuses the model, "warning" if it computes otherwise than Transformers, "" if not."""
    expected = engines.ask("transformers", source, tokens=1)
    try:
        answer = engines.ask(engine, model, expected.ids, tokens=1, vocabulary=families.SIZE["vocab_size"], timeout=60)
    except oracles.OracleError:
        return "error"
    return "warning" if engines.difference(expected, answer, BOUND) else ""


def verdict(model: Path, engine: str) -> str:
    """The severity of the gravest problem that the check finds."""
    severities = {problem.severity for problem in check_model(model, engine).problems}
    return next((each for each in ("error", "warning") if each in severities), "")


@pytest.mark.parametrize(("family", "settings", "to", "expected"), CASES)
def test_the_check_says_what_mistral_rs_does(
    family: str, settings: dict[str, Any], to: str, expected: str, tmp_path: Path
) -> None:
    source, model = families.make(family, tmp_path / "model", **settings), tmp_path / f"out.{to}"
    squish.convert(source, model, to)
    assert (outcome(source, model, "mistralrs"), verdict(model, "mistralrs")) == (expected, expected)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("glm4", LINEAR, "warning"),
        ("gemma2", {}, "warning"),
        ("starcoder2", {}, ""),
        ("gpt2", {"n_inner": 128}, "error"),
    ],
)
def test_the_check_says_what_mlx_lm_does(family: str, settings: dict[str, Any], expected: str, tmp_path: Path) -> None:
    source, model = families.make(family, tmp_path / "model", **settings), tmp_path / "out"
    squish.convert(source, model, "mlx")
    assert (outcome(source, model, "mlx"), verdict(model, "mlx")) == (expected, expected)


LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
SCALINGS: list[tuple[dict[str, Any], str]] = [
    ({"rope_type": "acme", "factor": 2.0}, "acme"),
    ({"rope_type": "dynamic", "factor": 2.0}, ""),
    ({"rope_type": "dynamic"}, "factor"),
    ({"rope_type": "linear"}, "factor"),
    ({"rope_type": "yarn", "factor": 2.0}, ""),
    ({"rope_type": "yarn"}, "factor"),
    ({"rope_type": "llama3", "factor": 2.0}, "low_freq_factor"),
    ({"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}, "factor"),
    ({"rope_type": "longrope", "original_max_position_embeddings": 8}, "short_factor"),
    ({"rope_type": "longrope", "original_max_position_embeddings": 8, **LISTS}, ""),
]
"""A scaling, and what the engines name if they refuse it."""


@pytest.mark.parametrize(("scaling", "reason"), SCALINGS)
@pytest.mark.parametrize("engine", ["mlx", "transformers"])
def test_the_check_knows_which_rope_scalings_an_engine_runs(
    scaling: dict[str, Any], reason: str, engine: str, tmp_path: Path
) -> None:
    source, model = families.make("llama", tmp_path / "model"), tmp_path / "out"
    config = json.loads((source / "config.json").read_text())
    config |= {"rope_theta": 10000.0, "rope_scaling": scaling}
    del config["rope_parameters"]
    (source / "config.json").write_text(json.dumps(config))
    squish.convert(source, model, "mlx" if engine == "mlx" else "hf")
    with pytest.raises(oracles.PeerError, match=f"\\b{reason}\\b") if reason else nullcontext():
        engines.ask(engine, model, [[1, 2, 3]], tokens=1)
    assert verdict(model, engine) == ("error" if reason else "")


@pytest.mark.parametrize(("to", "expected"), [("gguf", "warning"), ("uqff", "warning")])
def test_mistral_rs_computes_mxfp4_experts_of_gpt_oss_otherwise(to: str, expected: str, tmp_path: Path) -> None:
    source, model = families.make("gpt_oss", tmp_path / "model"), tmp_path / "m.gguf"
    squish.convert(source, model, encode={"*_exps.weight": "mxfp4"})
    reference = engines.ask("llama.cpp", model, tokens=1)
    if to == "uqff":
        squish.convert(model, tmp_path / "uqff", "uqff")
        model = tmp_path / "uqff"
    answer = engines.ask("mistralrs", model, reference.ids, tokens=1, vocabulary=families.SIZE["vocab_size"])
    assert engines.difference(reference, answer, 1.25, exact=False)  # blocks agree within 1.25 elsewhere
    assert verdict(model, "mistralrs") == expected


def write_uqff(path: str, target: str, quant: str) -> None:
    """Runs in the peer: mistral.rs quantises a folder and writes it."""
    import os

    os.environ |= {"HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": "1"}
    from mistralrs import ModelDType, Runner, Which

    which = Which.Plain(model_id=path, dtype=ModelDType.F32, write_uqff=target)
    Runner(which=which, in_situ_quant=quant)


def uqff_of_mistral_rs(source: Path, target: Path, quant: str) -> Path:
    """The UQFF that mistral.rs writes of a folder, whose config.json it reads in the old spelling."""
    squish.convert(source, target / "spelled", "uqff")
    shutil.copytree(source, target / "source")
    shutil.copy(target / "spelled" / "config.json", target / "source")
    (target / "own").mkdir()
    arguments = {"path": str(target / "source"), "target": str(target / "own" / f"{quant}.uqff"), "quant": quant}
    for _ in range(2):
        try:
            oracles.peer("mistralrs").run(write_uqff, timeout=60, **arguments)
            break
        except oracles.PeerTimeout as error:  # its threads sometimes hang
            last = error
    else:
        raise last
    return target / "own"


def test_coded_experts_of_mixtral_run_in_mistral_rs_as_in_its_own_uqff(tmp_path: Path) -> None:
    source, model = families.make("mixtral", tmp_path / "model"), tmp_path / "out"
    squish.convert(source, model, "uqff", "q8_0")
    own = uqff_of_mistral_rs(source, tmp_path, "q8_0")
    with squish.open(own) as theirs, squish.open(model) as ours:
        assert set(theirs) == set(ours)
        for name in (name for name in ours if ".experts." in name):
            assert theirs[name].parts()["data"].numpy().tobytes() == ours[name].parts()["data"].numpy().tobytes(), name
    squish.convert(model, tmp_path / "floats", "hf", "f32")
    reference = engines.ask("transformers", tmp_path / "floats", tokens=1)
    answer = engines.ask("mistralrs", model, reference.ids, tokens=1, vocabulary=families.SIZE["vocab_size"])
    assert engines.difference(reference, answer, BLOCKS, exact=False) == ""
    assert verdict(model, "mistralrs") == ""


@pytest.mark.parametrize(
    ("quant", "reason"),
    [("afq4", "moe experts forward"), ("mxfp4", "not support stacked expert"), ("hqq4", "not support stacked expert")],
)
def test_mistral_rs_refuses_such_experts_in_its_own_uqff(quant: str, reason: str, tmp_path: Path) -> None:
    source, size = families.make("mixtral", tmp_path / "model"), families.SIZE["vocab_size"]
    with pytest.raises(oracles.PeerError, match=reason):
        engines.ask("mistralrs", uqff_of_mistral_rs(source, tmp_path, quant), tokens=1, vocabulary=size)
