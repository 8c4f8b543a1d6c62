"""LoRA adapters between PEFT and GGUF: what they add to a weight is the same through the map."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_models.api import check_model

import squish_core as squish
from squish_core.model import Typed

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rope_theta": 10000.0,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
SHAPES = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "mlp.down_proj": (32, 48)}
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "mlp.down_proj": "ffn_down",
}  # fmt: skip
RANK, ALPHA = 4, 6
ADAPTER: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "some/llama", "r": RANK,
    "lora_alpha": ALPHA, "lora_dropout": 0.1, "bias": "none", "target_modules": ["q_proj", "k_proj", "down_proj"],
}  # fmt: skip
FOLDER = "safetensors:max_shard_size=1GB"
Arrays = Mapping[str, np.ndarray]


def matrices(rank: int = RANK) -> dict[str, np.ndarray]:
    """Seeded matrices of an adapter, as PEFT names them."""
    generator, arrays = np.random.default_rng(7), {}
    for layer in range(2):
        for module, (rows, columns) in SHAPES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            arrays[f"{name}.lora_A.weight"] = generator.standard_normal((rank, columns), np.float32)
            arrays[f"{name}.lora_B.weight"] = generator.standard_normal((rows, rank), np.float32)
    return arrays


def peft(folder: Path, arrays: Arrays, config: Mapping[str, Any] = ADAPTER) -> Path:
    folder.mkdir()
    squish.save(folder / "adapter_model.safetensors", dict(arrays))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of the base model: its config is all that is needed."""
    return config_folder(tmp_path / "base", LLAMA)


def config_folder(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp orders them: of each head, one of the first half, then one of the second."""
    order = [
        head * len(rows) // heads + half * (len(rows) // heads // 2) + row
        for head in range(heads)
        for row in range(len(rows) // heads // 2)
        for half in range(2)
    ]
    return rows[order]


def deltas_of_peft(arrays: Arrays, scale: float) -> dict[str, np.ndarray]:
    """Module -> what the adapter adds, computed as PEFT does."""
    modules = [name.removesuffix(".lora_A.weight") for name in arrays if name.endswith(".lora_A.weight")]
    return {name: scale * arrays[f"{name}.lora_B.weight"] @ arrays[f"{name}.lora_A.weight"] for name in modules}


def test_an_adapter_is_not_checked_as_a_model(base: Path, tmp_path: Path) -> None:
    source = peft(tmp_path / "lora", matrices())
    squish.convert(source, tmp_path / "lora.gguf", assets=base)
    for path, engine in ((source, "transformers"), (tmp_path / "lora.gguf", "llama.cpp")):
        with pytest.raises(squish.FormatError) as caught:
            check_model(path, engine)
        assert caught.value.code == "adapter"


def test_an_adapter_adds_the_same_through_the_map(base: Path, tmp_path: Path) -> None:
    arrays = matrices()
    squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    with squish.open(tmp_path / "lora.gguf") as file:
        assert {key: value for key, value in file.meta.items() if not key.startswith("squish.")} == {
            "general.architecture": "llama",
            "general.type": "adapter",
            "adapter.type": "lora",
            "adapter.lora.alpha": float(ALPHA),
            **{key: file.meta[key] for key in ("general.file_type",) if key in file.meta},
        }
        expected = deltas_of_peft(arrays, ALPHA / RANK)
        assert len(file) == 12
        for layer in range(2):
            for module, heads in (("self_attn.q_proj", 4), ("self_attn.k_proj", 2), ("mlp.down_proj", 0)):
                name = f"blk.{layer}.{NAMES[module]}.weight"
                first, second = (file[f"{name}.{suffix}"].numpy() for suffix in ("lora_a", "lora_b"))
                delta = file.meta["adapter.lora.alpha"] / second.shape[1] * second @ first
                added = expected[f"base_model.model.model.layers.{layer}.{module}"]
                np.testing.assert_allclose(delta, interleaved(added, heads) if heads else added, rtol=1e-6, atol=1e-6)


def test_a_config_that_lies_beside_an_adapter_does_not_hide_that_of_the_base(base: Path, tmp_path: Path) -> None:
    squish.convert(peft(tmp_path / "lora", matrices()), tmp_path / "lora.gguf", assets=base)
    (tmp_path / "config.json").write_text("{}")
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", FOLDER, assets=base)
    assert (tmp_path / "back" / "adapter_config.json").read_bytes() == (
        tmp_path / "lora" / "adapter_config.json"
    ).read_bytes()


def test_an_adapter_comes_back_byte_for_byte(base: Path, tmp_path: Path) -> None:
    source = peft(tmp_path / "lora", matrices())
    squish.convert(source, tmp_path / "lora.gguf", assets=base)
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", FOLDER, assets=base)
    assert {path.name for path in (tmp_path / "back").iterdir()} == {"adapter_model.safetensors", "adapter_config.json"}
    assert (tmp_path / "back" / "adapter_config.json").read_bytes() == (source / "adapter_config.json").read_bytes()
    with squish.open(tmp_path / "back") as back:
        for name, array in matrices().items():
            np.testing.assert_array_equal(back[name].numpy(), array)


def test_an_adapter_of_llama_cpp_becomes_one_of_peft(base: Path, tmp_path: Path) -> None:
    source = peft(tmp_path / "lora", matrices())
    squish.convert(source, tmp_path / "lora.gguf", "gguf:keep=no", assets=base)
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", "hf", assets=base)
    assert {path.name for path in (tmp_path / "back").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    config = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    facts = {key: config[key] for key in ("peft_type", "r", "lora_alpha", "target_modules", "rank_pattern")}
    assert facts == {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["down_proj", "k_proj", "q_proj"],
        "rank_pattern": {},
    }


def test_ranks_that_differ_are_a_pattern(base: Path, tmp_path: Path) -> None:
    arrays = matrices()
    name = "base_model.model.model.layers.1.mlp.down_proj"
    generator = np.random.default_rng(0)
    arrays[f"{name}.lora_A.weight"] = generator.standard_normal((2, 48), np.float32)
    arrays[f"{name}.lora_B.weight"] = generator.standard_normal((32, 2), np.float32)
    config = {**ADAPTER, "rank_pattern": {"layers.1.mlp.down_proj": 2}}
    squish.convert(peft(tmp_path / "lora", arrays, config), tmp_path / "lora.gguf", "gguf:keep=no", assets=base)
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", "hf", assets=base)
    config = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"]) == (RANK, {"model.layers.1.mlp.down_proj": 2})


def test_a_scale_by_the_root_of_the_rank_is_another_alpha(base: Path, tmp_path: Path) -> None:
    source = peft(tmp_path / "lora", matrices(), {**ADAPTER, "use_rslora": True})
    squish.convert(source, tmp_path / "lora.gguf", assets=base)
    with squish.open(tmp_path / "lora.gguf") as file:
        assert file.meta["adapter.lora.alpha"] / RANK == ALPHA / RANK**0.5


def test_experts_are_stacked(tmp_path: Path) -> None:
    generator, arrays = np.random.default_rng(3), {}
    for layer in range(2):
        for expert in range(4):
            name = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w1"
            arrays[f"{name}.lora_A.weight"] = generator.standard_normal((RANK, 32), np.float32)
            arrays[f"{name}.lora_B.weight"] = generator.standard_normal((48, RANK), np.float32)
    base = config_folder(tmp_path / "base", MIXTRAL)
    squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    with squish.open(tmp_path / "lora.gguf") as file:
        first, second = (file[f"blk.1.ffn_gate_exps.weight.{suffix}"].numpy() for suffix in ("lora_a", "lora_b"))
        name = "base_model.model.model.layers.1.block_sparse_moe.experts.2.w1"
        np.testing.assert_array_equal(
            second[2] @ first[2], arrays[f"{name}.lora_B.weight"] @ arrays[f"{name}.lora_A.weight"]
        )
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", FOLDER, assets=base)
    with squish.open(tmp_path / "back") as back:
        assert set(back) == set(arrays)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        *(({key: value}, f"adapter_config.json {key}") for key, value in {
            "use_dora": True, "bias": "all", "lora_bias": True, "alpha_pattern": {"q_proj": 2}, "fan_in_fan_out": True,
            "modules_to_save": ["lm_head"], "trainable_token_indices": [1, 2], "target_parameters": ["mlp.up"],
            "layer_replication": [[0, 2], [1, 2]], "use_qalora": True, "use_bdlora": {"blocks": 2},
            "arrow_config": {"top_k": 2}, "kasa_config": {"r": 1}, "monteclora_config": {"samples": 8},
            "invocation_string": "<answer>", "alora_invocation_tokens": [1, -1], "some_new_setting": 1,
        }.items()),
        *(({"init_lora_weights": name}, "adapter_config.json init_lora_weights") for name in (
            "pissa", "pissa_niter_16", "olora", "loftq", "corda", "eva", "lora_ga", "of tomorrow")),
        ({"peft_type": "IA3"}, "adapter_config.json peft_type"),
        ({"lora_alpha": "16"}, "adapter_config.json lora_alpha"),
        ({"lora_alpha": 10**400}, "adapter_config.json lora_alpha"), ({"r": 0}, "adapter_config.json r"),
        ({"r": 8}, "adapter_config.json r"),
    ],
)  # fmt: skip
def test_what_gguf_has_no_form_for_is_refused(settings: dict[str, Any], part: str, base: Path, tmp_path: Path) -> None:
    source = peft(tmp_path / "lora", matrices(), {**ADAPTER, **settings})
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "lora.gguf", assets=base)
    assert caught.value.code in ("adapter", "contradiction")
    assert caught.value.part == part
    assert "rename" not in str(caught.value)  # without the map, llama.cpp would load even less
    assert not (tmp_path / "lora.gguf").exists()


def test_settings_that_change_nothing_are_no_obstacle(base: Path, tmp_path: Path) -> None:
    """What PEFT 0.21 writes for a LoRA of defaults, and how it may have been trained."""
    idle = {
        "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": {"unsloth": True},
        "bias": "none", "corda_config": {"corda_method": "ipm"}, "ensure_weight_tying": False, "eva_config": {"rho": 2},
        "exclude_modules": ["v_proj"], "fan_in_fan_out": False, "inference_mode": True, "layer_replication": None,
        "layers_pattern": "layers", "layers_to_transform": [0, 1], "loftq_config": {}, "lora_bias": False,
        "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "peft_version": "0.21.2",
        "qalora_group_size": 16, "rank_pattern": {}, "revision": "main", "target_parameters": None,
        "trainable_token_indices": None, "use_dora": False, "use_qalora": False, "use_rslora": False,
        "velora_config": {"groups": 4},
    }  # fmt: skip
    for number, start in enumerate((True, False, "gaussian", "orthogonal", "mica")):
        source = peft(tmp_path / f"lora{number}", matrices(), {**ADAPTER, **idle, "init_lora_weights": start})
        assert not squish.convert(source, tmp_path / f"lora{number}.gguf", assets=base).dropped


def renamed(change: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The matrices under names with other pieces."""
    names = {name: name for name in matrices()}
    for old, new in change.items():
        names = {name: new_name.replace(old, new) for name, new_name in names.items()}
    return {names[name]: array for name, array in matrices().items()}


def test_the_name_of_the_adapter_in_tensor_names_is_left_out(base: Path, tmp_path: Path) -> None:
    arrays = renamed({".lora_A.": ".lora_A.default.", ".lora_B.": ".lora_B.default."})
    squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    squish.convert(peft(tmp_path / "plain", matrices()), tmp_path / "plain.gguf", assets=base)
    assert squish.diff(tmp_path / "lora.gguf", tmp_path / "plain.gguf").same


GEMMA = {
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"hidden_size": 8},
    "text_config": {**LLAMA, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 64,
                    "query_pre_attn_scalar": 8, "tie_word_embeddings": True},
}  # fmt: skip


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model."])
def test_adapters_of_vision_language_models_adapt_the_text_model(prefix: str, tmp_path: Path) -> None:
    arrays = renamed({".model.model.": f".model.{prefix}"})
    module = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj"
    vision = {f"{module}.lora_A.weight": np.ones((RANK, 8), "f4"), f"{module}.lora_B.weight": np.ones((8, RANK), "f4")}
    base = config_folder(tmp_path / "base", GEMMA)
    report = squish.convert(peft(tmp_path / "lora", {**arrays, **vision}), tmp_path / "lora.gguf", assets=base)
    assert {dropped.name for dropped in report.dropped} == set(vision)
    with squish.open(tmp_path / "lora.gguf") as file:
        assert file.metadata["general.architecture"] == "gemma3"
        expected = {
            f"blk.{layer}.{name}.weight.lora_{side}" for layer in (0, 1) for name in NAMES.values() for side in "ab"
        }
        assert set(file) == expected


def test_the_bases_own_weights_are_left_out_and_listed(base: Path, tmp_path: Path) -> None:
    names = [f"base_model.model.lm_head.{name}.weight" for name in ("base_layer", "original_module")]
    arrays = {**matrices(), **dict.fromkeys(names, np.ones((64, 32), "f4"))}
    report = squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    assert [dropped.name for dropped in report.dropped] == names
    with squish.open(tmp_path / "lora.gguf") as file:
        assert len(file) == len(matrices())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lm_head.weight", "modules_to_save"), ("model.embed_tokens.weight", "embeddings"),
        ("score.weight", "modules_to_save"), ("lm_head.modules_to_save.default.weight", "modules_to_save"),
        ("model.embed_tokens.lora_embedding_A", "embeddings"),
        ("model.layers.0.input_layernorm.weight", "norm"), ("model.norm.weight", "norm"),
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", "use_dora"),
        ("model.layers.0.self_attn.q_proj.lora_B.bias", "lora_bias"),
        ("model.layers.0.mlp.experts.lora_A.weight", "fused experts"),
        ("model.layers.0.mlp.experts.base_layer.lora_A.weight", "fused experts"),
    ],
)  # fmt: skip
def test_the_message_names_what_an_adapter_in_gguf_cannot_have(
    name: str, reason: str, base: Path, tmp_path: Path
) -> None:
    source = peft(tmp_path / "lora", {**matrices(), f"base_model.model.{name}": np.ones((64, 32), "f4")})
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(source, tmp_path / "lora.gguf", assets=base)
    assert (caught.value.code, caught.value.tensor) == ("adapter", f"base_model.model.{name}")
    assert reason in str(caught.value)
    assert "Merge" in str(caught.value)
    assert not (tmp_path / "lora.gguf").exists()


@pytest.mark.parametrize("keep", ["yes", "no"])
def test_the_tokens_that_activate_an_adapter_are_carried_both_ways(keep: str, base: Path, tmp_path: Path) -> None:
    source = peft(tmp_path / "lora", matrices(), {**ADAPTER, "alora_invocation_tokens": [5, 4, 3]})
    squish.convert(source, tmp_path / "lora.gguf", f"gguf:keep={keep}", assets=base)
    with squish.open(tmp_path / "lora.gguf") as file:
        tokens = file.index.meta["adapter.alora.invocation_tokens"]
        assert (tokens.type, list(tokens.value)) == ("array:u32", [5, 4, 3])
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", "hf", assets=base)
    assert json.loads((tmp_path / "back" / "adapter_config.json").read_text())["alora_invocation_tokens"] == [5, 4, 3]


def test_keys_of_gguf_without_a_place_in_peft_are_listed(base: Path, tmp_path: Path) -> None:
    squish.convert(peft(tmp_path / "lora", matrices()), tmp_path / "lora.gguf", "gguf:keep=no", assets=base)
    names = ["adapter.lora.task_name", "adapter.lora.prompt_prefix", "general.author"]
    with squish.open(tmp_path / "lora.gguf") as file:
        meta = {**file.index.meta, **{name: Typed("str", "text") for name in names}}
        squish.save(tmp_path / "own.gguf", {name: file[name].numpy() for name in file}, metadata=meta)
    report = squish.convert(tmp_path / "own.gguf", tmp_path / "back", "hf", assets=base)
    assert {dropped.name for dropped in report.dropped if dropped.kind == "metadata"} == set(names)


GPT2 = {
    "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 64,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "model_type": "deepseek_v3", "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 32, "first_k_dense_replace": 1, "n_routed_experts": 2,
    "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 24, "n_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5,
}  # fmt: skip
SHAPES_OF = {
    "gpt2": {"transformer.h.{n}.attn.c_attn": (96, 32), "transformer.h.{n}.mlp.c_proj": (32, 128)},
    "deepseek": {"model.layers.{n}.self_attn.o_proj": (32, 128)},
    "experts": {f"model.layers.1.mlp.experts.{expert}.gate_proj": (24, 32) for expert in range(2)},
}  # fmt: skip
"""Rows and columns of the weights as a layer multiplies them."""


@pytest.mark.parametrize("keep", ["yes", "no"])
@pytest.mark.parametrize(
    ("shapes", "config", "stated"),
    [("gpt2", GPT2, True), ("gpt2", GPT2, False), ("deepseek", DEEPSEEK, False), ("experts", DEEPSEEK, False)],
)
def test_adapters_of_transposed_and_latent_models_come_back(
    shapes: str, config: dict[str, Any], stated: bool, keep: str, tmp_path: Path
) -> None:
    generator, arrays = np.random.default_rng(5), {}
    for layer in range(2):
        for module, (rows, columns) in SHAPES_OF[shapes].items():
            name = f"base_model.model.{module.format(n=layer)}"
            arrays[f"{name}.lora_A.weight"] = generator.standard_normal((RANK, columns), np.float32)
            arrays[f"{name}.lora_B.weight"] = generator.standard_normal((rows, RANK), np.float32)
    base = config_folder(tmp_path / "base", config)
    source = peft(tmp_path / "lora", arrays, {**ADAPTER, "fan_in_fan_out": stated})
    squish.convert(source, tmp_path / "lora.gguf", f"gguf:keep={keep}", assets=base)
    with squish.open(tmp_path / "lora.gguf") as file:
        if shapes == "gpt2":
            name = "base_model.model.transformer.h.1.mlp.c_proj"
            for suffix in "AB":
                stored = file[f"blk.1.ffn_down.weight.lora_{suffix.lower()}"].numpy()
                np.testing.assert_array_equal(stored, arrays[f"{name}.lora_{suffix}.weight"])
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", "hf", assets=base)
    with squish.open(tmp_path / "back") as back:
        assert set(back) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name].numpy(), array)
    written = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    assert written["fan_in_fan_out"] == (stated if keep == "yes" else shapes == "gpt2")


@pytest.mark.parametrize(("projection", "rows", "columns"), [("q_a_proj", 16, 32), ("kv_a_proj_with_mqa", 40, 32)])
def test_an_adapter_that_llama_cpp_ignores_is_refused(projection: str, rows: int, columns: int, tmp_path: Path) -> None:
    module = f"base_model.model.model.layers.1.self_attn.{projection}"
    arrays = {f"{module}.lora_A.weight": np.zeros((RANK, columns), np.float32)}
    arrays[f"{module}.lora_B.weight"] = np.zeros((rows, RANK), np.float32)
    base = config_folder(tmp_path / "base", DEEPSEEK)
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    assert (caught.value.code, caught.value.tensor) == ("adapter", module)
    assert not (tmp_path / "lora.gguf").exists()


def test_an_adapter_of_a_matrix_that_gguf_splits_is_refused_both_ways(tmp_path: Path) -> None:
    base = config_folder(tmp_path / "base", DEEPSEEK)
    module = "base_model.model.model.layers.0.self_attn.kv_b_proj"
    arrays = {f"{module}.lora_A.weight": np.zeros((RANK, 32), np.float32)}
    arrays[f"{module}.lora_B.weight"] = np.zeros((224, RANK), np.float32)
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    assert (caught.value.code, caught.value.tensor) == ("unmapped", f"{module}.lora_A.weight")
    meta = {
        "general.architecture": "deepseek2", "general.type": "adapter", "adapter.type": "lora",
        "adapter.lora.alpha": Typed("f32", 4.0),
    }  # fmt: skip
    names = [f"blk.0.attn_kv_b.weight.lora_{suffix}" for suffix in "ab"]
    squish.save(tmp_path / "own.gguf", dict(zip(names, arrays.values())), metadata=meta)
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(tmp_path / "own.gguf", tmp_path / "back", "hf", assets=base)
    assert (caught.value.code, caught.value.tensor) == ("unmapped", names[0])
    assert not (tmp_path / "lora.gguf").exists()
    assert not (tmp_path / "back").exists()


def test_an_adapter_without_its_base_models_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(peft(tmp_path / "lora", matrices()), tmp_path / "lora.gguf")
    assert caught.value.code == "adapter"
    assert not (tmp_path / "lora.gguf").exists()


def test_a_matrix_without_its_other_half_is_refused(base: Path, tmp_path: Path) -> None:
    arrays = matrices()
    del arrays["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    assert (caught.value.code, caught.value.tensor) == ("adapter", module)


def test_a_tensor_that_is_no_adapters_is_refused(base: Path, tmp_path: Path) -> None:
    arrays = {**matrices(), "base_model.model.model.layers.0.mlp.other.weight": np.zeros((64, 32), np.float32)}
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(peft(tmp_path / "lora", arrays), tmp_path / "lora.gguf", assets=base)
    assert (caught.value.code, caught.value.tensor) == ("unmapped", "base_model.model.model.layers.0.mlp.other.weight")


def test_a_base_model_of_another_architecture_is_refused(base: Path, tmp_path: Path) -> None:
    squish.convert(peft(tmp_path / "lora", matrices()), tmp_path / "lora.gguf", assets=base)
    with squish.open(tmp_path / "lora.gguf") as file:
        arrays = {name: file[name].numpy() for name in file}
        meta = {**file.index.meta, "general.architecture": Typed("str", "qwen2")}
        squish.save(tmp_path / "other.gguf", arrays, metadata=meta)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "other.gguf", tmp_path / "back", FOLDER, assets=base)
    assert caught.value.code == "contradiction"


def test_an_adapter_is_not_written_for_other_engines(base: Path, tmp_path: Path) -> None:
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(peft(tmp_path / "lora", matrices()), tmp_path / "out", "mlx", assets=base)
    assert caught.value.code == "adapter"


@pytest.mark.parametrize(("name", "data"), [("adapter_config.json", b'{"r": 4'), ("config.json", b"[]")])
@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_an_adapter_with_a_file_that_cannot_be_parsed_is_refused(
    to: str, name: str, data: bytes, base: Path, tmp_path: Path
) -> None:
    source = peft(tmp_path / "lora", matrices())
    (base if name == "config.json" else source).joinpath(name).write_bytes(data)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "out", to, assets=base)
    assert (caught.value.code, caught.value.part) == ("json", name)
    assert not (tmp_path / "out").exists()
