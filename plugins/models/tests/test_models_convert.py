"""Whole models through `convert`: from a folder to GGUF and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_cli import main
from squish_testing import write_model

import squish_core as squish
from squish_core.model import Typed

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
FILES = {"tokenizer.json": TOKENIZER["tokenizer.json"]}
FOLDER = "safetensors:max_shard_size=1GB"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_model(tmp_path / "llama", "llama", LLAMA, files=FILES)


def test_a_folder_becomes_a_gguf_with_the_keys_that_llama_cpp_reads(llama: Path, tmp_path: Path) -> None:
    report = squish.convert(llama, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file, squish.open(llama) as source:
        assert {key: value for key, value in file.meta.items() if not key.startswith(("squish.", "tokenizer."))} == {
            "general.architecture": "llama",
            "general.type": "model",
            "llama.context_length": 128,
            "llama.embedding_length": 32,
            "llama.block_count": 2,
            "llama.feed_forward_length": 64,
            "llama.attention.head_count": 4,
            "llama.attention.head_count_kv": 2,
            "llama.rope.dimension_count": 8,
            "llama.attention.key_length": 8,
            "llama.attention.value_length": 8,
            "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
            "llama.rope.freq_base": 10000.0,
            "llama.vocab_size": 64,
            "general.file_type": 32,
            "general.quantization_version": 2,
            "general.size_label": "23K",
        }
        rows = source["model.layers.0.self_attn.q_proj.weight"].numpy()
        expected = rows.reshape(4, 2, 4, 32).swapaxes(1, 2).reshape(32, 32)
        np.testing.assert_array_equal(file["blk.0.attn_q.weight"].numpy(), expected)
        assert {file[name].dtype for name in file if "norm" in name} == {"f32"}
    moved = [step.name for step in report.steps if step.note == "rows reordered within heads"]
    assert sorted(moved) == [f"blk.{layer}.attn_{kind}.weight" for layer in (0, 1) for kind in "kq"]
    assert "mapped as llama from hf to gguf names" in report.notes


def test_a_folder_comes_back_from_gguf_bit_for_bit(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", FOLDER)
    difference = squish.diff(llama, tmp_path / "back")
    assert {item.state for item in difference.tensors} == {"bytes"}
    assert (tmp_path / "back" / "config.json").read_bytes() == (llama / "config.json").read_bytes()


OPTIONS = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "own": 1}


@pytest.mark.parametrize(
    "files",
    [
        FILES,
        TOKENIZER,
        {**TOKENIZER, "tokenizer_config.json": json.dumps(OPTIONS).encode()},
        {**FILES, "tokenizer_config.json": json.dumps({**OPTIONS, "chat_template": "{{ messages }}"}).encode()},
        {**TOKENIZER, "generation_config.json": b'{"eos_token_id": 3, "temperature": 0.6}'},
        {**TOKENIZER, "special_tokens_map.json": b'{"eos_token": "<|end|>"}', "chat_template.jinja": b"{{ messages }}"},
        {**TOKENIZER, "tokenizer.json": json.dumps(json.loads(TOKENIZER["tokenizer.json"]), indent=1).encode()},
        {**FILES, "chat_template.jinja": b"d", **{f"additional_chat_templates/{name}.jinja": b"t" for name in "ab"}},
        {**TOKENIZER, "merges.txt": b"a b", "vocab.json": b"{}", "notes.txt": b"any other file"},
    ],
)
def test_the_files_of_a_folder_come_back_from_gguf_byte_for_byte(files: dict[str, bytes], tmp_path: Path) -> None:
    family = squish.registry().implementation("family", "llama")
    source = write_model(tmp_path / "source", family, {**LLAMA, "tie_word_embeddings": True}, files=files)
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    contents = [
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and "safetensors" not in path.name
        }
        for folder in (source, tmp_path / "back")
    ]
    assert contents[1] == contents[0]


TEMPLATES = {
    "tokenizer.chat_template": Typed("str", "d"),
    "tokenizer.chat_templates": Typed("array:str", ["rag", "t-1"]),
    "tokenizer.chat_template.rag": Typed("str", "r"),
    "tokenizer.chat_template.t-1": Typed("str", "t"),
}


@pytest.mark.parametrize("to", ["hf", "mlx", "uqff"])
def test_named_chat_templates_of_a_gguf_come_back_from_a_folder(to: str, llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "plain.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "plain.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    squish.save(tmp_path / "m.gguf", arrays, metadata=meta | TEMPLATES)
    report = squish.convert(tmp_path / "m.gguf", tmp_path / "folder", to)
    assert not report.dropped
    squish.convert(tmp_path / "folder", tmp_path / "back.gguf")
    with squish.open(tmp_path / "back.gguf") as file:
        assert {key: value for key, value in file.meta.items() if "chat" in key} == {
            key: value.value for key, value in TEMPLATES.items()
        }


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, "p"),
        ({"tokenizer_config.json": b'{"chat_template": "c"}'}, "c"),
        ({"tokenizer_config.json": b'{"chat_template": "c"}', "chat_template.jinja": b"j"}, "j"),
    ],
)
def test_a_chat_template_in_a_file_wins_as_in_transformers_and_a_processors_is_the_last(
    others: dict[str, bytes], expected: str, tmp_path: Path
) -> None:
    files = {**FILES, "chat_template.json": b'{"chat_template": "p"}', **others}
    source = write_model(tmp_path / "source", "llama", LLAMA, files=files)
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.meta["tokenizer.chat_template"] == expected
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    for name, data in files.items():
        assert (tmp_path / "back" / name).read_bytes() == data


def test_named_chat_templates_of_a_folder_become_keys(tmp_path: Path) -> None:
    named = {"chat_template.jinja": b"d", "additional_chat_templates/rag.jinja": b"r",
             "additional_chat_templates/t-1.jinja": b"t"}  # fmt: skip
    source = write_model(tmp_path / "source", "llama", LLAMA, files={**FILES, **named})
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert {key: value for key, value in file.meta.items() if key.startswith("tokenizer.chat")} == {
            key: value.value for key, value in TEMPLATES.items()
        }
        changed = {name: file[name].numpy() for name in file}, {**file.index.meta, "tokenizer.chat_template.rag": "new"}
    squish.save(tmp_path / "changed.gguf", changed[0], metadata=changed[1])
    squish.convert(tmp_path / "changed.gguf", tmp_path / "out", "hf")
    assert not (tmp_path / "out" / "additional_chat_templates").exists()  # the old ones, which would win
    templates = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["chat_template"]
    assert {each["name"]: each["template"] for each in templates} == {"default": "d", "rag": "new", "t-1": "t"}


def test_permuted_rows_are_written_in_large_pieces(llama: Path, tmp_path: Path) -> None:
    pieces: list[str] = []
    squish.convert(llama, tmp_path / "m.gguf", progress=lambda name, done, total: pieces.append(name))
    assert pieces.count("blk.0.attn_q.weight") == 1


def test_block_codes_survive_the_way_there_and_back(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "q8.gguf", encode=["q8_0"])
    squish.convert(tmp_path / "q8.gguf", tmp_path / "q8.zt", rename="hf")
    with squish.open(tmp_path / "q8.zt") as file:
        assert file["model.layers.1.self_attn.k_proj.weight"].codec == "ggml.q8_0"
    squish.convert(tmp_path / "q8.zt", tmp_path / "again.gguf")
    difference = squish.diff(tmp_path / "q8.gguf", tmp_path / "again.gguf")
    assert {item.state for item in difference.tensors} == {"bytes"}
    assert not difference.meta


def changed(folder: Path, **settings: Any) -> Path:
    """The folder with another config.json."""
    path = folder / "config.json"
    config = {key: value for key, value in {**json.loads(path.read_text()), **settings}.items() if value is not ...}
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("settings", "code", "place"),
    [
        ({"num_attention_heads": 8}, "contradiction", "model.layers.0.self_attn.k_proj.weight"),
        ({"num_key_value_heads": 3}, "config", "config.json num_attention_heads"),
        ({"hidden_size": 64}, "contradiction", "lm_head.weight"),
        ({"num_hidden_layers": 1}, "contradiction", "model.layers.1.input_layernorm.weight"),
        ({"num_hidden_layers": 3}, "unmapped", "model.layers.2.input_layernorm.weight"),
        ({"hidden_size": "32"}, "config", "config.json hidden_size"),
        ({"rms_norm_eps": ...}, "config", "config.json"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "rope", "config.json"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused_before_anything_is_written(
    settings: dict[str, Any], code: str, place: str, llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(changed(llama, **settings), tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.tensor or caught.value.part) == (code, place)
    assert not (tmp_path / "m.gguf").exists()


def test_names_are_kept_on_request(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "m.gguf", rename="keep")
    with squish.open(tmp_path / "m.gguf") as file:
        assert "model.embed_tokens.weight" in file
        assert "general.architecture" not in file.meta


def test_a_tokenizer_beside_a_gguf_that_contradicts_its_keys_is_not_taken(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "m.gguf", "gguf:keep=no")
    stored = json.loads(FILES["tokenizer.json"])
    vocabulary = stored["model"]["vocab"]
    first, second, *_ = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "tokenizer.json").write_text(json.dumps(stored))
    squish.convert(tmp_path / "m.gguf", tmp_path / "out", "hf", assets=tmp_path / "beside")
    expected = json.loads(FILES["tokenizer.json"])["model"]["vocab"]
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]["vocab"] == expected


def test_a_gguf_with_unchanged_names_has_the_files_and_is_mapped_later(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "kept.gguf", rename="keep")
    difference = squish.diff(llama, tmp_path / "kept.gguf")
    assert {item.state for item in difference.tensors} == {"bytes"}
    assert not difference.assets
    squish.convert(tmp_path / "kept.gguf", tmp_path / "mapped.gguf")
    squish.convert(llama, tmp_path / "direct.gguf")
    assert (tmp_path / "mapped.gguf").read_bytes() == (tmp_path / "direct.gguf").read_bytes()
    squish.convert(tmp_path / "kept.gguf", tmp_path / "back", FOLDER)
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (llama / name).read_bytes()


def test_the_command_names_its_own_option_for_names(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(llama), str(tmp_path / "m.gguf"), "--names", "keep", "-q"]) == 0
    note = " ".join(capsys.readouterr().out.split())
    assert "names are unchanged, so llama.cpp will not load this: --names keep" in note


def test_patterns_match_names_of_the_source_and_of_the_target(llama: Path, tmp_path: Path) -> None:
    rules = {"model.layers.0.mlp.up_proj.weight": "q8_0", "blk.1.ffn_up.weight": "f16"}
    squish.convert(llama, tmp_path / "m.gguf", encode=rules)
    with squish.open(tmp_path / "m.gguf") as file:
        assert file["blk.0.ffn_up.weight"].codec == "ggml.q8_0"
        assert file["blk.1.ffn_up.weight"].dtype == "f16"


def test_a_setting_that_gguf_has_no_key_for_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(changed(llama, hidden_act="gelu"), tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("config", "config.json")


def test_models_of_one_family_are_compared_through_the_map(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "m.gguf")
    difference = squish.diff(llama, tmp_path / "m.gguf")
    assert difference.same
    assert "compared as llama" in str(difference).splitlines()[0]
    assert {item.name for item in difference.tensors} >= {"model.embed_tokens.weight"}
    backwards = squish.diff(tmp_path / "m.gguf", llama)
    assert backwards.same
    assert "since they describe the storage: general.file_type" in backwards.mapped
    kept = squish.diff(llama, tmp_path / "m.gguf", rename="keep")
    assert {item.state for item in kept.tensors} == {"only in a", "only in b"}


@pytest.mark.parametrize("to", ["mlx", "uqff", "hf:method=gptq"])
def test_settings_are_compared_in_one_spelling_and_without_their_storage(to: str, llama: Path, tmp_path: Path) -> None:
    stated = json.loads((llama / "config.json").read_text())
    del stated["rope_theta"], stated["torch_dtype"]
    newer = {**stated, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "float32"}
    (llama / "config.json").write_text(json.dumps(newer))
    squish.convert(llama, tmp_path / "out", to, "*_proj.weight=int4:group_size=32")
    squish.convert(tmp_path / "out", tmp_path / "same", "mlx")
    for one, other in ((tmp_path / "out", tmp_path / "same"), (tmp_path / "same", tmp_path / "out")):
        difference = squish.diff(one, other)
        assert (difference.meta, difference.assets) == ((), ())
    floats = squish.diff(llama, tmp_path / "out")
    assert (floats.meta, floats.assets) == ((), ())
    (llama / "config.json").write_text(json.dumps({**newer, "rms_norm_eps": 0.5}))
    assert squish.diff(llama, tmp_path / "out").assets == ("config.json: differs",)


def test_a_source_is_deleted_once_its_map_holds_all_of_it(llama: Path, tmp_path: Path) -> None:
    report = squish.convert(llama, tmp_path / "m.gguf", delete_source=True)
    assert [Path(name).suffix for name in report.deleted] == [".safetensors"]
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", FOLDER)
    assert (tmp_path / "back" / "config.json").read_bytes() == (llama / "config.json").read_bytes()


def test_a_gguf_without_the_kept_files_gives_settings_that_say_the_same(llama: Path, tmp_path: Path) -> None:
    report = squish.convert(llama, tmp_path / "m.gguf", "gguf:keep=no")
    assert [item.name for item in report.dropped if item.kind == "asset"] == ["config.json"]
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    same = {key: value for key, value in LLAMA.items() if config.get(key) != value}
    assert same == {}


def test_an_edited_gguf_does_not_get_its_old_config_back(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays = {name: file[name].numpy() for name in file}
        meta = {**file.index.meta, "llama.context_length": Typed("u32", 4096)}
        squish.save(tmp_path / "edited.gguf", arrays, metadata=meta)
    squish.convert(tmp_path / "edited.gguf", tmp_path / "back", FOLDER)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["max_position_embeddings"] == 4096


@pytest.mark.parametrize(("family", "layout", "engine"), [("gemma2", "mlx", "mlx-lm"), ("phi3", "gguf", "llama.cpp")])
def test_an_engine_that_ignores_the_sliding_window_is_named(
    family: str, layout: str, engine: str, tmp_path: Path
) -> None:
    config = {**LLAMA, "model_type": family, "sliding_window": 32, "head_dim": 8, "query_pre_attn_scalar": 8}
    config |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    source = write_model(tmp_path / "model", family, {**config, "tie_word_embeddings": True}, files=FILES)
    for target in ("mlx", "gguf"):
        report = squish.convert(source, tmp_path / target, target, dry_run=True)
        named = any(f"{engine} ignores the sliding window of 32" in note for note in report.notes)
        assert named == (target == layout)


def test_a_scaling_that_llama_cpp_does_not_apply_to_the_family_is_refused(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    config = {**LLAMA, "model_type": "qwen2", "rope_scaling": scaling}
    source = write_model(tmp_path / "model", "qwen2", config)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("rope", "config.json")


@pytest.mark.parametrize("keep", ["yes", "no"])
def test_a_scaling_that_begins_beyond_the_context_is_left_out_of_gguf(keep: str, tmp_path: Path) -> None:
    config = {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    source = write_model(tmp_path / "model", "llama", config, files=FILES)
    report = squish.convert(source, tmp_path / "m.gguf", "gguf" if keep == "yes" else "gguf:keep=no")
    assert any("llama.cpp has no dynamic RoPE scaling: it differs beyond 128 tokens" in note for note in report.notes)
    with squish.open(tmp_path / "m.gguf") as file:
        assert not [key for key in file.meta if ".rope.scaling." in key]
        assert file.meta["llama.context_length"] == 128
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", FOLDER)
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert back.get("rope_scaling") == (config["rope_scaling"] if keep == "yes" else None)


def test_mlx_gets_a_dynamic_scaling(tmp_path: Path) -> None:
    config = {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    source = write_model(tmp_path / "model", "llama", config, files=FILES)
    report = squish.convert(source, tmp_path / "mlx", "mlx")
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["rope_scaling"] == config["rope_scaling"]
    assert not any("dynamic" in note for note in report.notes)


def test_the_text_part_comes_back_from_gguf_as_a_model_of_its_own(tmp_path: Path) -> None:
    scaling = {"type": "mrope", "mrope_section": [1, 1, 2]}
    config = {**LLAMA, "model_type": "qwen2_5_vl", "rope_scaling": scaling, "vision_config": {"depth": 1}}
    source = write_model(tmp_path / "model", "qwen2vl", config, files=FILES)
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert list(file.meta["qwen2vl.rope.dimension_sections"]) == [1, 1, 2, 0]
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", FOLDER)
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (back["model_type"], back["architectures"], back["rope_scaling"]) == ("qwen2", ["Qwen2ForCausalLM"], None)
    assert "vision_config" not in back


LFM2 = {
    **{key: value for key, value in LLAMA.items() if key != "rms_norm_eps"}, "model_type": "lfm2", "norm_eps": 1e-5,
    "tie_word_embeddings": True, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "code", "place"),
    [
        (["full_attention", "conv"], "contradiction", "model.layers.0.conv."),
        (["conv", "conv"], "contradiction", "model.layers.1.self_attn."),
        (["conv"], "config", "config.json layer_types"),
        (["conv", "mamba"], "config", "config.json layer_types"),
        ("conv", "config", "config.json layer_types"),
    ],
)
def test_a_layer_of_another_kind_is_refused(kinds: object, code: str, place: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", "lfm2", LFM2)
    with pytest.raises(squish.FormatError if code == "config" else squish.TensorError) as caught:
        squish.convert(changed(source, layer_types=kinds), tmp_path / "m.gguf")
    assert caught.value.code == code
    assert (caught.value.part or caught.value.tensor).startswith(place)


@pytest.mark.parametrize("heads", [[0], [0, 0], [1, 2], [0, -1], "two"])
def test_heads_of_layers_that_say_no_kinds_are_refused(heads: object, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", "lfm2", LFM2)
    squish.convert(source, tmp_path / "m.gguf", rename="gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays = {name: file[name].numpy() for name in file}
        stored = Typed("str", heads) if isinstance(heads, str) else Typed("array:i32", heads)
        meta = {**file.index.meta, "lfm2.attention.head_count_kv": stored}
        squish.save(tmp_path / "other.gguf", arrays, metadata=meta)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "other.gguf", tmp_path / "back", FOLDER, rename="hf")
    assert (caught.value.code, caught.value.part) == ("config", "lfm2.attention.head_count_kv")


def test_a_vision_model_without_sections_of_positions_is_refused(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {"depth": 1}}
    source = write_model(tmp_path / "model", "qwen2vl", config, files=FILES)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("config", "config.json rope_scaling")


def test_a_gguf_without_embeddings_or_vocab_size_is_refused(llama: Path, tmp_path: Path) -> None:
    squish.convert(llama, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays = {name: file[name].numpy() for name in file if name != "token_embd.weight"}
        meta = {key: value for key, value in file.index.meta.items() if key != "llama.vocab_size"}
        squish.save(tmp_path / "none.gguf", arrays, metadata=meta)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "none.gguf", tmp_path / "back", FOLDER, rename="hf")
    assert (caught.value.code, caught.value.part) == ("unmapped", "token_embd.weight")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("to", ["gguf", "mlx", "uqff"])
def test_a_model_without_a_tokenizer_is_refused_before_anything_is_written(
    to: str, llama: Path, tmp_path: Path
) -> None:
    for name in FILES:
        (llama / name).unlink()
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(llama, tmp_path / "out", to)
    assert caught.value.code == "tokenizer"
    assert not (tmp_path / "out").exists()
    rename = "gguf" if to == "gguf" else "hf"
    assert f"rename='{rename}'" in (caught.value.hint or "")
    squish.convert(llama, tmp_path / "out", to, rename=rename)


def test_a_model_without_a_tokenizer_is_written_on_request(llama: Path, tmp_path: Path) -> None:
    for name in FILES:
        (llama / name).unlink()
    report = squish.convert(llama, tmp_path / "m.gguf", rename="gguf")
    assert any("llama.cpp will lack tokenizer" in note for note in report.notes)


def test_the_report_says_that_the_engine_will_lack_tensors(llama: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.gguf", tmp_path / "part.gguf"
    count = len(squish.convert(llama, whole).steps)
    note = f"llama.cpp will lack {count - 1} of {count} tensors"
    for source, name in ((llama, "model.embed_tokens.weight"), (whole, "token_embd.weight")):
        assert note in squish.convert(source, part, only=name, overwrite=True).notes
    for to in ("ztensor", "hf"):
        report = squish.convert(whole, tmp_path / to, to, only=name)
        assert not any("will lack" in note for note in report.notes)


@pytest.mark.parametrize(("like", "target"), [("like.gguf", "out"), ("like", "out.gguf")])
def test_a_recipe_of_the_family_gives_types_under_other_names(
    llama: Path, like: str, target: str, tmp_path: Path
) -> None:
    formats = {"like": "hf", "out": "hf", "like.gguf": "gguf", "out.gguf": "gguf"}
    rules = {"*mlp.up*": "f16", "*mlp.down*": "f32"}
    squish.convert(llama, tmp_path / like, formats[like], rules)
    squish.convert(llama, tmp_path / target, formats[target], recipe=tmp_path / like)
    squish.convert(llama, tmp_path / f"x{target}", formats[target], rules)
    with squish.open(tmp_path / target) as found, squish.open(tmp_path / f"x{target}") as expected:
        assert {name: found[name].dtype for name in found if found[name].ndim == 2} == {
            name: expected[name].dtype for name in expected if expected[name].ndim == 2
        }
        assert {tensor.dtype for tensor in found.values()} >= {"f16", "f32", "bf16"}
