"""Families with layers that have a state space: kinds of layers in each spelling, numbers that weights are multiplied
by, and settings that contradict themselves or the tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_models.layer_kinds import LayerKinds
from squish_testing import write_model

import squish_core as squish
from squish_core.errors import SquishError

KINDS = LayerKinds(
    names={"mamba": ("M", "linear_attention"), "attention": ("*", "full_attention")},
    setting="pattern",
    lists=("layers_block_type",),
    numbers={"attn_layer_indices": "attention"},
    periods={"attention": ("attn_layer_period", "attn_layer_offset")},
    counts={"kv_heads": ("groups", "attention")},
)
HYBRID = ["mamba", "attention", "mamba", "attention"]


def model(folder: Path, name: str, dtype: str = "bf16", **settings: Any) -> Path:
    """A published model with other settings."""
    family, config = PUBLISHED[name]
    return write_model(folder / "m", family, {**config, **settings}, dtype=dtype, files=TOKENIZER)


@pytest.mark.parametrize(
    "settings",
    [
        {"pattern": "M*M*"},
        {"pattern": ["M", "*", "mamba", "full_attention"]},
        {"layers_block_type": ["linear_attention", "attention", "M", "*"]},
        {"pattern": "M*M*", "layers_block_type": HYBRID},
        {"attn_layer_indices": [1, 3]},
        {"attn_layer_period": 2, "attn_layer_offset": 1},
    ],
)
def test_kinds_of_layers_are_read_in_every_spelling(settings: dict[str, Any]) -> None:
    assert KINDS.of_config({"num_hidden_layers": 4, **settings}) == HYBRID


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "config"),
        ({"pattern": "M*M"}, "config"),
        ({"pattern": "M*MX"}, "config"),
        ({"pattern": ""}, "config"),
        ({"pattern": 4}, "config"),
        ({"pattern": [["M"], "*", "M", "*"]}, "config"),
        ({"attn_layer_indices": [1, 4]}, "config"),
        ({"attn_layer_indices": [True]}, "config"),
        ({"attn_layer_period": 2, "attn_layer_offset": 2}, "config"),
        ({"attn_layer_period": 0, "attn_layer_offset": 0}, "config"),
        ({"pattern": "M*M*", "layers_block_type": ["mamba"] * 4}, "contradiction"),
        ({"num_hidden_layers": 1 << 40, "attn_layer_period": 2, "attn_layer_offset": 1}, "config"),
    ],
)
def test_kinds_that_are_no_list_for_all_layers_are_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(SquishError) as caught:
        KINDS.of_config({"num_hidden_layers": 4, **settings})
    assert caught.value.code == code


def test_kinds_come_back_from_lists_of_sizes() -> None:
    settings = KINDS.spelled({"groups": 2}, HYBRID)
    assert settings == {"kv_heads": [0, 2, 0, 2], "pattern": "M*M*"}
    kinds, sizes = KINDS.of_keys({"num_hidden_layers": 4, **settings}, "acme")
    assert (kinds, sizes) == (HYBRID, {"groups": 2, "attn_layer_period": 2, "attn_layer_offset": 1})


@pytest.mark.parametrize("sizes", [[0, 2, 0], [0, 2, 0, 4], [0, 2, 2, 2, 0], [2, 0, 2, 2]])
def test_lists_of_sizes_that_no_settings_express_are_refused(sizes: list[int]) -> None:
    with pytest.raises(SquishError) as caught:
        KINDS.of_keys({"num_hidden_layers": 4, "kv_heads": sizes}, "acme")
    assert caught.value.code == "config"


@pytest.mark.parametrize(
    ("name", "changes", "family"),
    [
        ("granite-4.0-h-micro", {}, "granitehybrid"),
        ("granite-4.0-h-micro", {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, "granitehybrid"),
        ("granite-4.0-h-tiny", {}, "granitehybrid_moe"),
        ("granite-4.0-micro", {"layer_types": ["full_attention"] * 4}, "granite4"),
        ("NVIDIA-Nemotron-Nano-9B-v2", {"n_routed_experts": 8}, "nemotron_h"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {}, "nemotron_h_moe"),
    ],
)
def test_families_of_one_model_type_are_told_apart(
    name: str, changes: dict[str, Any], family: str, tmp_path: Path
) -> None:
    source = model(tmp_path, name, **changes)
    squish.convert(source, tmp_path / "m.gguf")
    report = squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert any(f"mapped as {family} " in note for note in report.notes)
    with squish.open(source) as file, squish.open(tmp_path / "back") as other:
        assert set(file) == set(other)


def test_architectures_are_those_of_the_converter(tmp_path: Path) -> None:
    names = {
        "granite-4.0-h-tiny": "granitehybrid", "granite-4.0-micro": "granite",
        "NVIDIA-Nemotron-Nano-9B-v2": "nemotron_h", "NVIDIA-Nemotron-3-Nano-30B-A3B": "nemotron_h_moe",
    }  # fmt: skip
    for name, architecture in names.items():
        squish.convert(model(tmp_path / name, name), tmp_path / f"{name}.gguf")
        with squish.open(tmp_path / f"{name}.gguf") as file:
            assert file.metadata["general.architecture"] == architecture


def test_states_have_the_values_of_llama_cpp(tmp_path: Path) -> None:
    source = model(tmp_path, "NVIDIA-Nemotron-Nano-9B-v2", "f32")
    squish.convert(source, tmp_path / "m.gguf")
    prefix = "backbone.layers.0.mixer."
    with squish.open(source) as file, squish.open(tmp_path / "m.gguf") as other:
        decays = -np.exp(file[f"{prefix}A_log"].numpy().astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(other["blk.0.ssm_a"].numpy(), decays[:, None])
        np.testing.assert_array_equal(other["blk.0.ssm_d"].numpy(), file[f"{prefix}D"].numpy()[:, None])
        np.testing.assert_array_equal(
            other["blk.0.ssm_norm.weight"].numpy().ravel(), file[f"{prefix}norm.weight"].numpy()
        )
        assert other["blk.0.ssm_norm.weight"].shape == (2, 32)
        taps = file[f"{prefix}conv1d.weight"].numpy()[:, 0]
        np.testing.assert_array_equal(other["blk.0.ssm_conv1d.weight"].numpy(), taps)
        np.testing.assert_array_equal(other["blk.0.ssm_conv1d.bias"].numpy(), file[f"{prefix}conv1d.bias"].numpy())


@pytest.mark.parametrize(("target", "suffix"), [("gguf", ".gguf"), ("mlx", "")])
def test_weights_are_multiplied_and_the_numbers_come_back_as_one(target: str, suffix: str, tmp_path: Path) -> None:
    source = model(tmp_path, "Falcon-H1-7B", "f32")
    path = tmp_path / f"t{suffix}"
    squish.convert(source, path, target)
    squish.convert(path, tmp_path / "back", "hf")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["key_multiplier"] == 1
    assert config["ssm_multipliers"] == [1.0] * 5
    with squish.open(source) as file, squish.open(tmp_path / "back") as other:
        keys, gates = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.mamba.in_proj.weight"
        np.testing.assert_allclose(other[keys].numpy(), file[keys].numpy() * 0.390625, rtol=1e-6)
        factors = np.repeat(
            [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738], [64, 64, 16, 16, 8]
        )
        expected = file[gates].numpy() * (1.25 * factors[:, None])
        np.testing.assert_allclose(other[gates].numpy(), expected, rtol=1e-6)
        assert other["model.layers.0.mamba.conv1d.weight"].shape == (96, 1, 4)


def test_codes_are_not_multiplied(tmp_path: Path) -> None:
    source = model(tmp_path, "Falcon-H1-7B", "f32", hidden_size=64, intermediate_size=64)
    squish.convert(source, tmp_path / "q8.gguf", encode={"*proj*": "q8_0"})
    squish.convert(tmp_path / "q8.gguf", tmp_path / "mlx", "mlx")
    with squish.open(tmp_path / "q8.gguf") as file, squish.open(tmp_path / "mlx") as other:
        name = "model.layers.0.feed_forward.gate_proj.weight"
        assert other[name].codec.startswith("affine")
        np.testing.assert_array_equal(other[name].numpy(), file["blk.0.ffn_gate.weight"].numpy())


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"ssm_multipliers": [1.0] * 4}, "config"),
        ({"ssm_multipliers": 1.0}, "config"),
        ({"mlp_multipliers": [1.0, "2"]}, "config"),
        ({"key_multiplier": 0}, "config"),
        ({"key_multiplier": "1"}, "config"),
        ({"lm_head_multiplier": float("nan")}, "config"),
        ({"tie_word_embeddings": True}, "contradiction"),
        ({"mamba_norm_before_gate": True}, "config"),
        ({"mamba_n_heads": 3}, "contradiction"),
        ({"mamba_n_groups": 0}, "config"),
        ({"mamba_d_state": None}, "config"),
        ({"mamba_d_state": 8}, "contradiction"),
        ({"mamba_proj_bias": True}, "config"),
        ({"time_step_limit": [0.001, 0.1]}, "config"),
    ],
)
def test_settings_that_llama_cpp_does_not_compute_are_refused(
    settings: dict[str, Any], code: str, tmp_path: Path
) -> None:
    source = model(tmp_path, "Falcon-H1-7B")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == code
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("granite-4.0-h-micro", {"layer_types": ["mamba"]}, "config"),
        ("granite-4.0-h-micro", {"layer_types": ["mamba"] * 4}, "contradiction"),
        ("granite-4.0-h-micro", {"layer_types": None}, "config"),
        ("granite-4.0-h-micro", {"num_local_experts": 4, "num_experts_per_tok": 2}, "unmapped"),
        ("granite-4.0-h-micro", {"shared_intermediate_size": "48"}, "config"),
        ("granite-4.0-h-micro", {"mamba_conv_bias": False}, "config"),
        ("granite-4.0-h-micro", {"mamba_n_heads": "8"}, "config"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"hybrid_override_pattern": "ME*-"}, "config"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"hybrid_override_pattern": "EM*E"}, "contradiction"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"hybrid_override_pattern": "ME*EM"}, "config"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"moe_latent_size": 16}, "contradiction"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"mlp_hidden_act": "silu"}, "config"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"n_routed_experts": 5}, "contradiction"),
        ("Mamba-Codestral-7B", {"num_heads": None}, "config"),
        ("Mamba-Codestral-7B", {"use_bias": True}, "config"),
        ("mamba-130m", {"intermediate_size": 32}, "contradiction"),
        ("mamba-130m", {"time_step_rank": "2"}, "config"),
        ("Jamba-v0.1", {"attn_layer_offset": 4}, "config"),
        ("Jamba-v0.1", {"attn_layer_offset": 1}, "contradiction"),
        ("Jamba-v0.1", {"expert_layer_offset": 0}, "contradiction"),
        ("Jamba-v0.1", {"expert_layer_period": "2"}, "config"),
        ("Jamba-v0.1", {"mamba_expand": 3}, "contradiction"),
    ],
)
def test_settings_that_contradict_themselves_or_the_tensors_are_refused(
    name: str, settings: dict[str, Any], code: str, tmp_path: Path
) -> None:
    source = model(tmp_path, name)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf", rename="gguf")
    assert caught.value.code == code


def test_presets_keep_the_states_as_floats(tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "mamba_n_heads": 32, "mamba_d_head": 16, "mamba_d_state": 128}
    source = model(tmp_path, "granite-4.0-h-tiny", **wide)
    squish.convert(source, tmp_path / "q4.gguf", encode="q4_k_m")
    with squish.open(tmp_path / "q4.gguf") as file:
        codecs = {name.partition("blk.0.")[2]: file[name].codec for name in file if name.startswith("blk.0.ssm")}
    assert codecs.pop("ssm_in.weight") == codecs.pop("ssm_out.weight") == "ggml.q4_k"
    assert set(codecs.values()) == {"dense"}
