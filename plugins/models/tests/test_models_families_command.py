"""`squish families`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import squish_models
from squish_cli import main
from squish_models.engines.requirements import ENGINES
from squish_models.overview import runs


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["families", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["families"]


def test_every_family_is_listed_with_engines_and_components(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {each["id"]: each for each in answer(capsys)}
    assert listed.keys() >= squish_models.FAMILIES.keys()
    assert listed["llama"]["engines"] == {"llama.cpp": "ok", "transformers": "ok", "mlx": "ok", "mistralrs": "part"}
    assert listed["cohere"]["engines"]["mistralrs"] == "no"
    assert listed["qwen3moe"]["components"] == {
        "text": "mapped", "experts": "mapped", "adapters": "mapped",
    }  # fmt: skip
    assert listed["gemma3"]["components"]["vision"] == "mapped"
    assert listed["llama4"]["components"]["images and audio"] == "left out"
    assert listed["nemotron_h"]["components"]["prediction layers"] == "left out"
    assert listed["mlx-lm"]["layouts"] == ["mlx"]


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3_moe", "QWEN3_MOE"])
def test_a_family_is_shown_by_its_id_or_its_type(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    [family] = answer(capsys, name)
    tensors = {each["hf"]: each for each in family["tensors"]}
    assert tensors["model.layers.{n}.mlp.experts.{e}.up_proj.weight"] == {
        "hf": "model.layers.{n}.mlp.experts.{e}.up_proj.weight", "gguf": "blk.{n}.ffn_up_exps.weight",
        "mlx": "model.layers.{n}.mlp.switch_mlp.up_proj.weight",
        "uqff": "model.layers.{n}.mlp.experts.up_proj.weight", "shape": ["moe_intermediate_size", "hidden_size"],
        "required": True, "changes": ["experts stacked"],
    }  # fmt: skip
    assert {"config": "num_experts", "gguf": "expert_count", "type": "u32", "required": True} in family["settings"]
    assert family["fixed"]["norm_topk_prob"] is True
    assert family["runs"]["qwen3_moe"]["GGUF"] == "ok"


def test_every_family_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for each in answer(capsys):
        assert main(["families", each["id"]]) == 0
        assert each["title"] in " ".join(capsys.readouterr().out.split())


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "lama", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["found"]) == ("usage", "'lama'")
    assert "llama" in error["hint"]


def test_mistral_rs_is_not_said_to_lack_a_model_that_it_ran() -> None:
    ran = {
        model.partition("-")[0] for models in runs().values() for model in models if models[model].get("UQFF") == "ok"
    }
    assert len(ran) > 20
    assert ran.isdisjoint(ENGINES["mistralrs"].unsupported)
