"""DeepSeek 4: layers of three kinds, tables of experts by token, experts whose codes are those of MXFP4."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_convert.mapping.names import fill
from squish_models.api import check_model

import squish_core as squish
from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.model import Typed

Config = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
PUBLISHED: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "compress_ratios": [0, 0, 4, 128, 0], "compress_rope_theta": 160000.0, "eos_token_id": 1, "hc_eps": 1e-06,
    "hc_mult": 2, "hc_sinkhorn_iters": 20, "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
    "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4, "max_position_embeddings": 512,
    "model_type": "deepseek_v4", "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hash_layers": 2,
    "num_hidden_layers": 4, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 2, "o_lora_rank": 8,
    "q_lora_rank": 24, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 32, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 16,
    "swiglu_limit": 10.0, "tie_word_embeddings": False, "topk_method": "noaux_tc", "torch_dtype": "float32",
    "vocab_size": 64,
}  # fmt: skip
"""The config of DeepSeek-V4-Flash with small sizes; its last ratio is that of the layer that predicts a token."""
OURS = ("compress_ratios", "num_hash_layers", "qk_rope_head_dim", "compress_rope_theta", "rope_scaling", "topk_method")
TRANSFORMERS: dict[str, Any] = {
    **{key: value for key, value in PUBLISHED.items() if key not in OURS},
    "layer_types": [
        *["sliding_attention"] * 2, "compressed_sparse_attention", "heavily_compressed_attention",
    ],
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"], "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "main": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
        "compress": {
            **PUBLISHED["rope_scaling"], "rope_theta": 160000.0, "rope_type": "yarn", "attention_factor": 1.0,
            "partial_rotary_factor": 0.25,
        },
    },
}  # fmt: skip
FAMILY = squish.registry().implementation("family", "deepseek4")


def weights() -> Arrays:
    """A tensor of the right shape for each that the published config calls for."""
    with in_memory({}, assets={"config.json": json.dumps(PUBLISHED).encode()}) as file:
        settings = FAMILY.settings(_model(file))
    sizes, absent, generator = FAMILY.sizes(settings), FAMILY.absent(settings), np.random.default_rng(0)
    arrays: Arrays = {}
    for tensor in FAMILY.tensors:
        for layer in range(4 if "{n}" in tensor.name else 1):
            for expert in range(4 if "{e}" in tensor.name else 1):
                name = fill(tensor.name, {"n": layer, "e": expert})
                if tensor.required and name not in absent:
                    shape = [sizes.get(each, -1) for each in tensor.shape]
                    arrays[name] = generator.standard_normal(whole(name, layer, shape), np.float32)
    for layer in range(2):
        arrays[f"layers.{layer}.ffn.gate.tid2eid"] = generator.integers(0, 4, (64, 2), np.int64)
    return arrays


def _model(file: File) -> Any:
    from squish_convert.mapping.mapped import model_of

    return model_of(file, FAMILY, "hf")


def whole(name: str, layer: int, shape: list[int]) -> list[int]:
    """The shape of a tensor of a compressor, which depends on the ratio."""
    ratio = PUBLISHED["compress_ratios"][layer]
    rows = (16 if ".indexer." in name else 32) * (2 if ratio == 4 else 1)
    return [ratio, rows] if name.endswith(".ape") else [rows if size == -1 else size for size in shape]


def opened(arrays: Arrays, config: Config = PUBLISHED) -> File:
    return in_memory(arrays, assets={"config.json": json.dumps(config).encode(), **TOKENIZER})


def gguf_of(arrays: Arrays, config: Config = PUBLISHED) -> File:
    file = opened(arrays, config)
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    return in_memory({name: mapped[name].numpy() for name in mapped}, dict(mapped.index.meta))


def prefixed(arrays: Arrays) -> Arrays:
    """The tensors under the names with which Transformers saves them."""
    renamed = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    renamed |= {f"hc_head_{part}": f"model.hc_head.hc_{part}" for part in ("fn", "base", "scale")}
    return {
        renamed.get(name, f"model.{name}" if name.startswith("layers.") else name).replace(".kv_norm.", ".norm."): each
        for name, each in arrays.items()
    }


def test_a_published_model_goes_to_gguf_and_back() -> None:
    arrays = weights()
    gguf = gguf_of(arrays)
    back = map_file(gguf, "hf", {}, naming_of(gguf))
    assert set(back) == set(arrays)
    assert all(np.array_equal(back[name].numpy(), values) for name, values in arrays.items())
    assert back["layers.0.ffn.gate.tid2eid"].numpy().dtype == np.int64
    config = json.loads(bytes(back.assets["config.json"].raw))
    left = (
        "eos_token_id",
        "attention_dropout",
        "topk_method",
        "torch_dtype",
        "num_nextn_predict_layers",
        "rope_scaling",
    )
    assert {key: config.get(key) for key in PUBLISHED if key not in left} == {
        key: value for key, value in PUBLISHED.items() if key not in left
    }
    assert config["rope_scaling"].items() >= {"factor": 16.0, "original_max_position_embeddings": 32}.items()


def test_the_spelling_of_transformers_gives_the_same_gguf() -> None:
    one, other = gguf_of(weights()), gguf_of(prefixed(weights()), TRANSFORMERS)
    ratios = "deepseek4.attention.compress_ratios"
    assert one.metadata.keys() == other.metadata.keys()
    differing = [name for name, value in one.metadata.items() if not np.array_equal(value, other.metadata[name])]
    assert differing == [ratios]
    assert [*other.metadata[ratios]] == PUBLISHED["compress_ratios"][:4]
    assert set(one) == set(other)
    assert all(np.array_equal(one[name].numpy(), other[name].numpy()) for name in one)


def test_codes_of_experts_become_those_of_mxfp4(tmp_path: Path) -> None:
    arrays, generator, packed = weights(), np.random.default_rng(1), {}
    for name in [each for each in arrays if ".ffn.experts." in each]:
        rows, columns = arrays.pop(name).shape
        packed[name] = generator.integers(0, 256, (rows, columns // 2), np.uint8)
        arrays[name] = packed[name].view(np.int8)
        exponents = generator.integers(110, 130, (rows, columns // 32), np.uint8)
        arrays[name.replace(".weight", ".scale")] = exponents.view(ml_dtypes.float8_e8m0fnu)
    declared = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    with opened(arrays, {**PUBLISHED, "expert_dtype": "fp4", "quantization_config": declared}) as file:
        squish.convert(file, tmp_path / "m", "safetensors:max_shard_size=1GB", rename="keep")
    squish.convert(tmp_path / "m", tmp_path / "m.gguf")
    with squish.open(tmp_path / "m") as source, squish.open(tmp_path / "m.gguf") as gguf:
        stack = gguf["blk.2.ffn_down_exps.weight"]
        assert stack.codec == "ggml.mxfp4"
        names = [f"layers.2.ffn.experts.{expert}.w2.weight" for expert in range(4)]
        np.testing.assert_array_equal(stack.numpy(), [source[name].numpy() for name in names])
        assert gguf["blk.0.ffn_gate_tid2eid.weight"].spec.dtype == "i32"
    assert check_model(tmp_path / "m.gguf", "llama.cpp").problems == ()


def test_what_predicts_tokens_and_unused_biases_are_left_out_and_reported() -> None:
    more = {"mtp.0.e_proj.weight": np.zeros((4, 4), np.float32), "layers.1.ffn.gate.bias": np.zeros(4, np.float32)}
    file = opened(weights() | more)
    mapped = map_file(file, "gguf", {}, naming_of(file))
    assert {each.name for each in mapped.dropped} == set(more)


NAMES = (
    "head.weight", "hc_head_fn", "layers.0.ffn.gate.tid2eid", "layers.2.ffn.gate.bias", "layers.1.attn.attn_sink",
    "layers.2.attn.indexer.wq_b.weight", "layers.3.attn.compressor.ape", "layers.3.ffn.experts.3.w2.weight",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(name: str) -> None:
    arrays = weights()
    del arrays[name]
    file = opened(arrays)
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert (caught.value.code, caught.value.tensor) == ("unmapped", name)


@pytest.mark.parametrize("name", [*NAMES, "layers.2.attn.indexer.compressor.wkv.weight", "layers.3.attn.wo_a.weight"])
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    arrays = weights()
    arrays[name] = np.concatenate([arrays[name]] * 2)
    file = opened(arrays)
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert (caught.value.code, caught.value.tensor) == ("contradiction", name)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"compress_ratios": [0, 0, 4]}, "config.json compress_ratios"),
        ({"compress_ratios": [0, 0, 4, 64]}, "config.json compress_ratios"),
        ({"compress_ratios": None}, "config.json compress_ratios"),
        ({"scoring_func": "sigmoid"}, "config.json"), ({"o_groups": 3}, "config.json o_groups"),
        ({"hc_mult": "2"}, "config.json hc_mult"), ({"index_topk": None}, "config.json"),
        ({"num_key_value_heads": 2}, "config.json num_key_value_heads"),
        ({"num_hash_layers": -1}, "config.json num_hash_layers"),
        ({"swiglu_limit": None}, "config.json clamps"),
    ],
)  # fmt: skip
def test_a_config_that_llama_cpp_computes_otherwise_is_refused(settings: Config, part: str) -> None:
    file = opened(weights(), {**PUBLISHED, **settings})
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert (caught.value.code, caught.value.part) == ("config", part)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("swiglu_clamp_exp", Typed("array:f32", np.array([10, 10, 9, 10], np.float32))),
        ("attention.compress_ratios", Typed("array:i32", np.array([0, 0, 4], np.int32))),
        ("expert_gating_func", Typed("u32", 2)),
    ],
)  # fmt: skip
def test_keys_that_no_config_expresses_are_refused(key: str, value: Typed) -> None:
    gguf = gguf_of(weights())
    arrays = {name: gguf[name].numpy() for name in gguf}
    damaged = in_memory(arrays, {**gguf.index.meta, f"deepseek4.{key}": value})
    with pytest.raises(SquishError) as caught:
        map_file(damaged, "hf", {}, naming_of(damaged))
    assert caught.value.part == f"deepseek4.{key}"


def test_a_table_with_a_number_beyond_32_bits_is_refused() -> None:
    arrays = weights()
    arrays["layers.1.ffn.gate.tid2eid"][3, 1] = 1 << 40
    file = opened(arrays)
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))["blk.1.ffn_gate_tid2eid.weight"]
    assert (caught.value.code, caught.value.found) == ("values", 1 << 40)
