"""Models that no installed family has: what an engine will refuse is not written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli.app import run

import squish_core as squish

UP = "model.layers.0.mlp.up_proj.weight"
ONE = {UP: np.ones((64, 64), np.float32)}
EXPERTS = {f"model.layers.0.mlp.experts.{expert}.up_proj.weight": np.ones((64, 64), np.float32) for expert in range(2)}
CONSOLIDATED = {f"layers.0.attention.w{kind}.weight": np.ones((64, 64), np.float32) for kind in "qkvo"}
NEW_SPELLING = {
    "model_type": "telechat3", "dtype": "float32", "num_local_experts": 2,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
}  # fmt: skip


def folder(place: Path, config: Mapping[str, Any] | None, tensors: Mapping[str, np.ndarray]) -> Path:
    place.mkdir()
    if config is not None:
        (place / "config.json").write_text(json.dumps(config))
    squish.save(place / "model.safetensors", tensors)
    return place


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    squish.save(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": ONE[UP]}, metadata={"general.architecture": "strange"})
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("config", "tensors", "to", "encode", "code"),
    [
        ({"model_type": "strange"}, ONE, "gguf", None, "family"),
        ({"model_type": "telechat3"}, ONE, "gguf", None, "family"),
        ({"architectures": ["StrangeForCausalLM"]}, ONE, "gguf", None, "family"),
        ({"model_type": "strange"}, ONE, "mlx", None, "engine"),
        ({"architectures": ["StrangeForCausalLM"]}, ONE, "mlx", None, "engine"),
        ({"model_type": "strange"}, ONE, "uqff", None, "engine"),
        ({"model_type": "bailing_moe_v3"}, EXPERTS, "mlx", "q4", "engine"),
        ({"model_type": "strange"}, {"model.layers.0.mlp.switch_mlp.up_proj.weight": ONE[UP]}, "hf", None, "engine"),
        *(({"model_type": "mistral"}, CONSOLIDATED, to, None, "engine") for to in ("hf", "mlx", "gguf", "uqff")),
        (None, CONSOLIDATED, "safetensors:max_shard_size=1GB", None, "engine"),
        ({"model_type": "strange"}, ONE, "hf:method=fp8", None, "engine"),
        (None, ONE, "hf:method=gptq", None, "engine"),
    ],
)  # fmt: skip
def test_what_an_engine_will_refuse_is_not_written(
    config: Mapping[str, Any] | None,
    tensors: Mapping[str, np.ndarray],
    to: str,
    encode: str | None,
    code: str,
    dry_run: bool,
    tmp_path: Path,
) -> None:
    source = folder(tmp_path / "m", config, tensors)
    with pytest.raises(squish.UsageError) as caught:
        squish.convert(source, tmp_path / "out", to, encode, dry_run=dry_run)
    assert caught.value.code == code
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("to", "code"), [("hf", "family"), ("mlx", "family"), ("uqff", "engine")])
def test_the_message_about_a_gguf_of_an_unknown_architecture(gguf: Path, to: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(squish.UsageError) as caught:
        squish.convert(gguf, tmp_path / "out", to)
    assert (caught.value.code, "strange" in str(caught.value)) == (code, True)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("lama", "(llama"),
        ("gpt_neo", "(gpt_neox"),
        ("falconn", "(falcon"),
        ("qwen3_next_moe", "qwen3_next"),
        ("zzz", "similar name"),
    ],
)
@pytest.mark.parametrize(
    ("to", "names"),
    [("gguf", None), ("gguf", "gguf"), ("mlx", None), ("uqff", None), ("gguf hf", None), ("gguf mlx", None)],
)
def test_the_message_about_an_unknown_family_names_the_nearest(
    name: str, near: str, to: str, names: str | None, tmp_path: Path
) -> None:
    source, target = folder(tmp_path / "m", {"model_type": name}, ONE), to.rpartition(" ")[2]
    if to.startswith("gguf "):
        source = tmp_path / "m.gguf"
        squish.save(source, {"blk.0.ffn_up.weight": ONE[UP]}, metadata={"general.architecture": name})
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, tmp_path / "out", target, rename=names)
    assert near in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "out").exists()


def test_a_gguf_of_an_unknown_family_is_encoded_compared_and_verified(tmp_path: Path) -> None:
    tensors = {
        "blk.0.ffn_up.weight": np.ones((64, 256), np.float32), "blk.0.ssm_a": np.ones(64, np.float32),
        "blk.0.ssm_conv1d.weight": np.ones((64, 4), np.float32),
    }  # fmt: skip
    squish.save(tmp_path / "m.gguf", tensors, metadata={"general.architecture": "strange"})
    report = squish.convert(tmp_path / "m.gguf", tmp_path / "q.gguf", encode="q4_k_m")
    assert [step.action for step in report.steps] == ["encode", "copy", "copy"]
    states = {item.name: item.state for item in squish.diff(tmp_path / "m.gguf", tmp_path / "q.gguf").tensors}
    assert states["blk.0.ssm_a"] == states["blk.0.ssm_conv1d.weight"] == "bytes"
    assert squish.verify(tmp_path / "q.gguf").ok


def test_the_message_about_experts_one_by_one_in_a_gguf(tmp_path: Path) -> None:
    tensors = {f"blk.0.ffn_up.{expert}.weight": ONE[UP] for expert in range(2)}
    squish.save(tmp_path / "m.gguf", tensors, metadata={"general.architecture": "qwen3moe", "qwen3moe.expert_count": 2})
    with pytest.raises(squish.UsageError, match=r"blk\.0\.ffn_up\.0\.weight is not a tensor of the family") as caught:
        squish.convert(tmp_path / "m.gguf", tmp_path / "out", "hf")
    assert caught.value.code == "engine"


@pytest.mark.parametrize(
    ("config", "to", "rename"),
    [
        ({"model_type": "strange"}, "gguf", "keep"),
        ({"model_type": "strange"}, "mlx", "keep"),
        (None, "gguf", None),
        (None, "mlx", None),
        ({"model_type": "strange"}, "hf", None),
        ({"model_type": "strange"}, "ztensor", None),
        ({"model_type": "strange"}, "npydir", None),
        ({"model_type": "llama"}, "gguf", None),  # a part
    ],
)
def test_other_targets_and_names_that_are_kept_work(
    config: Mapping[str, Any] | None, to: str, rename: str | None, tmp_path: Path
) -> None:
    if to == "npydir":
        pytest.importorskip("squish_npydir")
    report = squish.convert(folder(tmp_path / "m", config, ONE), tmp_path / "out", to, rename=rename)
    assert [step.name for step in report.steps] == [UP]


def test_a_gguf_of_an_unknown_architecture_stays_one(gguf: Path, tmp_path: Path) -> None:
    assert squish.convert(gguf, tmp_path / "out.gguf", encode="q8_0").steps[0].target == "ggml.q8_0"


def test_a_model_of_mlx_lm_is_carried_over_with_both_spellings(tmp_path: Path) -> None:
    source = folder(tmp_path / "m", {**NEW_SPELLING, "text_config": {"rope_parameters": {"rope_theta": 7.0}}}, ONE)
    report = squish.convert(source, tmp_path / "out", "mlx", "q8")
    assert "telechat3 is carried over, not checked" in report.notes
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.items() >= NEW_SPELLING.items()
    assert config["rope_theta"] == 5e5
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert (config["torch_dtype"], config["num_experts"]) == ("float32", 2)
    assert config["text_config"]["rope_theta"] == 7.0
    assert config["quantization"] == {"group_size": 64, "bits": 8, "mode": "affine"}


def test_experts_that_mlx_lm_stacks_as_floats_are_carried_over(tmp_path: Path) -> None:
    source = folder(tmp_path / "m", {"model_type": "bailing_moe_v3"}, {**EXPERTS, **ONE})
    report = squish.convert(source, tmp_path / "out", "mlx", ["q4", "*experts*=keep"])
    assert [step.action for step in report.steps] == ["copy", "copy", "encode"]


def test_the_command_ends_with_2_and_names_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "m", {"model_type": "strange"}, ONE)
    for more in ([], ["--dry-run"]):
        assert run(["convert", str(source), str(tmp_path / "m.gguf"), *more]) == 2
        assert "--names keep" in capsys.readouterr().err
    assert run(["convert", str(source), str(tmp_path / "m.gguf"), "--names", "keep", "-q"]) == 0


@pytest.mark.parametrize(
    ("config", "spelled"),
    [
        ({"model_type": "apertus"}, {"mlp_bias": False, "post_norm": False, "qk_norm": True}),
        ({"model_type": "apertus", "qk_norm": False}, {"qk_norm": False}),
        ({"model_type": "exaone4", "hidden_size": 64, "num_attention_heads": 4, "sliding_window_pattern": 4},
         {"head_dim": 16, "sliding_window_pattern": "LLLG"}),
        ({"model_type": "gpt_neox", "rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.25}},
         {"rotary_emb_base": 5e3, "rotary_pct": 0.25}),
        ({"model_type": "mistral3", "tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}},
         {"text_config": {"tie_word_embeddings": True}}),
        ({"model_type": "seed_oss", "rope_theta": 6e6, "rope_parameters": {"rope_theta": 5e3}}, {"rope_theta": 5e3}),
        ({"model_type": "gpt_neox", "rope_parameters": 7}, {"rope_parameters": 7}),
        ({"model_type": "exaone4", "hidden_size": 64, "num_attention_heads": 0}, {"num_attention_heads": 0}),
        ({"model_type": "gemma4", "text_config": 3}, {"text_config": 3}),
        ({"model_type": "gemma4_text", "per_layer_config": {"1": 3}}, {"per_layer_config": {"1": 3}}),
    ],
)  # fmt: skip
def test_settings_are_spelled_as_mlx_lm_reads_them(config: Mapping[str, Any], spelled: Mapping[str, Any]) -> None:
    pytest.importorskip("squish_models")
    from squish_models.config.mlx_models import mlx_config

    assert mlx_config(config).items() >= spelled.items()


@pytest.mark.parametrize(
    ("config", "tensors", "reason"),
    [
        ({"model_type": "minimax", "num_local_experts": 4}, ONE, "it needs shared_intermediate_size, rotary_dim"),
        ({"model_type": "glm", "rope_parameters": {"partial_rotary_factor": 0.5}}, ONE, "partial_rotary_factor of 1.0"),
        ({"model_type": "nanochat"}, {"model.embed_tokens.weight": ONE[UP]}, "has no model.embed_tokens.weight"),
        ({"model_type": "bitnet"}, ONE, "needs tensors like"),
    ],
)  # fmt: skip
def test_what_mlx_lm_computes_otherwise_is_refused_with_its_reason(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], reason: str, tmp_path: Path
) -> None:
    source = folder(tmp_path / "m", config, tensors)
    with pytest.raises(squish.UsageError, match=reason) as caught:
        squish.convert(source, tmp_path / "out", "mlx")
    assert caught.value.code == "engine"
    squish.convert(source, tmp_path / "out", "mlx", rename="keep")
