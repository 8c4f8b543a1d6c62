"""Forms of tensors that occur in files besides the usual ones, and layouts of experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping import tensors
from squish_convert.mapping.mapped import MappedFile, map_file, naming_of
from squish_convert.mapping.pairing import compared_as
from squish_convert.mapping.tensors import fits
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.errors import SquishError

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip
MOE = {
    **SIZES, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "head_dim": 16, "norm_topk_prob": True,
}  # fmt: skip
MIXTRAL = {**SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA = {
    **SIZES, "model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True,
    "sliding_window": 64,
}  # fmt: skip
FAMILIES = {"qwen3moe": MOE, "mixtral": MIXTRAL, "gemma3": GEMMA, "llama": {**SIZES, "model_type": "llama"}}
EXPERTS = "model.layers.{}.mlp.experts"


def opened(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> squish.File:
    return in_memory(arrays, assets={"config.json": json.dumps(config).encode(), **TOKENIZER})


def mapped(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], layout: str) -> MappedFile:
    file = opened(arrays, config)
    return map_file(file, layout, {}, naming_of(file))


def weights(family: str) -> dict[str, np.ndarray]:
    return model_arrays(family, FAMILIES[family], "f32")


def test_fused_experts_are_taken_apart() -> None:
    """As early versions of transformers 5 write them."""
    arrays = weights("qwen3moe")
    fused = {name: values for name, values in arrays.items() if ".experts." not in name}
    for layer in range(2):
        gate, up, down = (
            np.stack([arrays[f"{EXPERTS.format(layer)}.{e}.{name}_proj.weight"] for e in range(4)])
            for name in ("gate", "up", "down")
        )
        fused[f"{EXPERTS.format(layer)}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        fused[f"{EXPERTS.format(layer)}.down_proj"] = down
    expected, actual = mapped(arrays, MOE, "gguf"), mapped(fused, MOE, "gguf")
    assert set(actual) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(actual[name].numpy(), expected[name].numpy(), name)


def test_a_mapped_file_names_what_its_tensors_are_built_from() -> None:
    file = opened(weights("llama"), FAMILIES["llama"])
    other = map_file(file, "gguf", {}, naming_of(file))
    assert other.original is file.original is file
    assert other.sources("blk.0.attn_q.weight") == ("model.layers.0.self_attn.q_proj.weight",)
    assert file.sources("model.norm.weight") == ("model.norm.weight",)
    assert (file.dropped, file.dtypes) == ((), {})
    assert compared_as(file) == ""
    assert compared_as(file, other) == f"compared as llama: {file.name} mapped from hf to gguf"


def test_values_are_read_once_to_find_the_dtype_of_a_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**FAMILIES["llama"], "torch_dtype": "bfloat16"}
    source = write_model(tmp_path / "source", "llama", config, files=TOKENIZER)
    squish.convert(source, tmp_path / "model.gguf")
    checked: list[str] = []
    monkeypatch.setattr(tensors, "CACHED", 0)
    monkeypatch.setattr(tensors, "fits", lambda file, spec, dtype: checked.append(spec.name) or fits(file, spec, dtype))
    with squish.open(tmp_path / "model.gguf") as file:
        target = map_file(file, "hf", {}, naming_of(file))
        specs = [target.index.tensors[name] for _ in range(2) for name in target]
    norms = {spec.name for spec in specs if len(spec.shape) == 1}
    assert sorted(checked) == sorted(norms)
    assert norms == target.dtypes.keys()
    assert set(target.dtypes.values()) == {"bf16"}


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_fused_projections_of_gguf_are_split(family: str) -> None:
    config, arrays = FAMILIES[family], weights(family)
    there = mapped(arrays, config, "gguf")
    tensors = {name: there[name].numpy() for name in there}
    for layer in range(2):
        parts = [tensors.pop(f"blk.{layer}.attn_{letter}.weight") for letter in "qkv"]
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
        if family == "qwen3moe":
            halves = [tensors.pop(f"blk.{layer}.ffn_{name}_exps.weight") for name in ("gate", "up")]
            tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(halves, axis=1)
    fused = in_memory(tensors, dict(there.index.meta))
    back = map_file(fused, "hf", {}, naming_of(fused))
    assert set(back) == set(arrays)
    for name, values in arrays.items():
        np.testing.assert_array_equal(back[name].numpy(), values, name)


@pytest.mark.parametrize("encode", [None, "q8_0"])
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_fused_and_stacked_tensors_of_compressed_files_are_split(
    family: str, encode: str | None, tmp_path: Path
) -> None:
    there = mapped(weights(family), FAMILIES[family], "gguf")
    tensors = {name: there[name].numpy() for name in there}
    for layer in range(2):
        parts = [tensors.pop(f"blk.{layer}.attn_{letter}.weight") for letter in "qkv"]
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
    squish.save(tmp_path / "m.gguf", tensors, metadata=dict(there.index.meta), encode=encode)
    squish.convert(tmp_path / "m.gguf", tmp_path / "m.zt", "ztensor:encoding=zstd")
    for source in ("m.gguf", "m.zt"):
        squish.convert(tmp_path / source, tmp_path / f"{source}.hf.zt", "ztensor", rename="hf")
    difference = squish.diff(tmp_path / "m.gguf.hf.zt", tmp_path / "m.zt.hf.zt")
    assert {item.state for item in difference.tensors} <= {"bytes", "values"}


def test_one_slice_of_an_expert_reads_its_rows_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "qwen3moe", MOE, files=TOKENIZER)
    squish.convert(folder, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        back = map_file(file, "hf", {}, naming_of(file))
        (segment,) = back[f"{EXPERTS.format(1)}.3.up_proj.weight"].spec.encodings[0].parts["data"].segments
        assert segment.length == 32 * 32 * 2


@pytest.mark.parametrize("family", ["qwen3moe", "mixtral"])
@pytest.mark.parametrize("to", ["mlx", "uqff"])
@pytest.mark.parametrize("encode", [None, "q8_0"])
def test_experts_go_from_gguf_to_other_engines_and_back(
    family: str, to: str, encode: str | None, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m", family, FAMILIES[family], dtype="f16", files=TOKENIZER)
    squish.convert(folder, tmp_path / "m.gguf", encode=encode)
    squish.convert(tmp_path / "m.gguf", tmp_path / to, to)
    squish.convert(tmp_path / to, tmp_path / "back.gguf")
    difference = squish.diff(tmp_path / "m.gguf", tmp_path / "back.gguf")
    assert {item.state for item in difference.tensors} == {"bytes"}, str(difference)


@pytest.mark.parametrize("family", ["qwen3moe", "mixtral"])
@pytest.mark.parametrize("through", ["mlx", "uqff"])
def test_experts_come_back_from_other_engines_under_the_names_of_hugging_face(
    family: str, through: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m", family, FAMILIES[family], dtype="f16", files=TOKENIZER)
    squish.convert(folder, tmp_path / through, through)
    squish.convert(tmp_path / through, tmp_path / "back", "safetensors:max_shard_size=1GB")
    difference = squish.diff(folder, tmp_path / "back", rename="keep")
    assert {item.state for item in difference.tensors} == {"bytes"}, str(difference)


def test_the_text_part_of_a_multimodal_model_is_written_and_the_rest_is_listed(tmp_path: Path) -> None:
    arrays = {name.replace("model.", "model.language_model.", 1): values for name, values in weights("gemma3").items()}
    vision = {"model.vision_tower.patch.weight": np.ones((8, 8), np.float32)}
    config = {"model_type": "gemma3", "text_config": GEMMA, "architectures": ["Gemma3ForConditionalGeneration"]}
    report = squish.convert(opened({**arrays, **vision}, config), tmp_path / "m.gguf", dry_run=True)
    (left,) = [item for item in report.dropped if item.kind == "tensor"]
    assert left.name == "model.vision_tower.patch.weight"
    assert "256 bytes" in left.reason
    assert {step.name for step in report.steps} >= {"token_embd.weight", "blk.1.post_ffw_norm.weight"}


def test_a_tied_head_is_left_out_and_an_untied_one_must_be_there() -> None:
    arrays = weights("llama")
    config = FAMILIES["llama"]
    tied = {**arrays, "lm_head.weight": arrays["model.embed_tokens.weight"].astype(np.float32)}
    assert "output.weight" not in mapped(tied, {**config, "tie_word_embeddings": True}, "gguf")
    with pytest.raises(SquishError) as caught:
        mapped(arrays, {**config, "tie_word_embeddings": True}, "gguf")
    assert (caught.value.code, caught.value.tensor) == ("contradiction", "lm_head.weight")
    del arrays["lm_head.weight"]
    with pytest.raises(SquishError) as caught:
        mapped(arrays, config, "gguf")
    assert (caught.value.code, caught.value.tensor) == ("unmapped", "lm_head.weight")


def test_a_tensor_twice_is_refused() -> None:
    arrays = weights("qwen3moe")
    stack = np.stack([arrays[f"{EXPERTS.format(0)}.{e}.up_proj.weight"] for e in range(4)])
    with pytest.raises(SquishError) as caught:
        mapped({**arrays, "model.layers.0.mlp.switch_mlp.up_proj.weight": stack}, MOE, "gguf")
    assert caught.value.code == "doubled"


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_codes_that_are_packed_across_rows_keep_their_values_under_a_permutation(method: str, tmp_path: Path) -> None:
    """GPTQ and AWQ store matrices transposed, and zero points of eight rows in a word."""
    folder = write_model(tmp_path / "m", "llama", FAMILIES["llama"], dtype="f16", files=TOKENIZER)
    rule = "affine:bits=4,group_size=32,offset=zero_point,offset_dtype=packed,word=i32,scale_dtype=f16"
    squish.convert(folder, tmp_path / "q", f"hf:method={method}", encode={"*_proj.weight": rule})
    report = squish.convert(tmp_path / "q", tmp_path / "q.gguf", encode={"*_proj.weight": "f32"}, requantize=True)
    assert {step.target for step in report.steps if step.name == "blk.0.attn_q.weight"} == {"f32"}
    difference = squish.diff(tmp_path / "q", tmp_path / "q.gguf")
    assert {item.state for item in difference.tensors} <= {"bytes", "values"}, str(difference)


def test_symmetric_codes_of_a_permuted_matrix_become_blocks(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "llama", FAMILIES["llama"], dtype="f16", files=TOKENIZER)
    squish.convert(folder, tmp_path / "q4.gguf", encode="q4_0")
    squish.convert(
        tmp_path / "q4.gguf", tmp_path / "gptq", "hf:method=gptq", encode={"*embed*": "f16", "lm_head*": "f16"}
    )
    squish.convert(tmp_path / "gptq", tmp_path / "back.gguf")
    with squish.open(tmp_path / "q4.gguf") as one, squish.open(tmp_path / "back.gguf") as other:
        for name in ("blk.0.attn_q.weight", "blk.1.attn_k.weight"):
            assert other[name].codec in ("ggml.q4_0", "ggml.q4_1")
            np.testing.assert_array_equal(other[name].numpy(), one[name].numpy())


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
@pytest.mark.parametrize("family", ["mixtral", "qwen3moe"])
def test_codes_of_quantized_experts_are_stacked(method: str, family: str, tmp_path: Path) -> None:
    """Of a checkpoint that stores experts transposed, GGUF and MLX have the codes of a stack."""
    folder = write_model(tmp_path / "m", family, FAMILIES[family], dtype="f16", files=TOKENIZER)
    rules = {"*embed*": "f16", "lm_head*": "f16", "*gate.weight": "f16"}
    squish.convert(folder, tmp_path / "q4.gguf", encode="q4_0")
    squish.convert(tmp_path / "q4.gguf", tmp_path / "q", f"hf:method={method}", encode=rules)
    with squish.open(tmp_path / "q") as file:
        assert any(
            name.endswith((".up_proj.weight", ".w3.weight")) and ".0." in name and ".experts.3." in name
            for name in file
        )
    report = squish.convert(tmp_path / "q", tmp_path / "back.gguf")
    kinds = {step.name: step.action for step in report.steps}
    assert kinds["blk.1.ffn_down_exps.weight"] == "repack"
    with squish.open(tmp_path / "q4.gguf") as one, squish.open(tmp_path / "back.gguf") as other:
        for name in ("blk.0.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"):
            assert other[name].codec in ("ggml.q4_0", "ggml.q4_1")
            np.testing.assert_array_equal(other[name].numpy(), one[name].numpy())
            np.testing.assert_array_equal(other[name][1:3, 2:5], one[name].numpy()[1:3, 2:5])
    squish.convert(tmp_path / "q", tmp_path / "mlx", "mlx")
    difference = squish.diff(tmp_path / "mlx", tmp_path / "q")
    assert {item.state for item in difference.tensors} <= {"bytes", "values", "codes"}, str(difference)


def test_rows_of_compressed_tensors_are_permuted_too(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "llama", FAMILIES["llama"], files=TOKENIZER)
    squish.convert(folder, tmp_path / "m.zt", "ztensor:encoding=zstd")
    squish.convert(tmp_path / "m.zt", tmp_path / "m.gguf")
    squish.convert(folder, tmp_path / "plain.gguf")
    difference = squish.diff(tmp_path / "m.gguf", tmp_path / "plain.gguf")
    assert {item.state for item in difference.tensors} == {"bytes"}
