"""The files of a GGUF under transformers' names: config first, the vocabulary when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_tokenizer import TOKENIZER
from squish_convert.api import with_names
from squish_models import gguf_files
from squish_models.tokenizer.gguf import NONE
from squish_testing import write_model

import squish_core as squish
from squish_core.model import Typed

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"tokenizer.json": TOKENIZER["tokenizer.json"]}
    return write_model(tmp_path / "llama", "llama", LLAMA, files=files)


def gguf(folder: Path, target: Path, **keys: Typed) -> Path:
    """The model as a GGUF with these keys of its tokenizer, without the files of its folder."""
    squish.convert(folder, target.with_suffix(".own.gguf"), "gguf:keep=no")
    with squish.open(target.with_suffix(".own.gguf")) as file:
        meta = {**file.index.meta, **{f"tokenizer.ggml.{name}": value for name, value in keys.items()}}
        squish.save(target, {name: file[name].numpy() for name in file}, metadata=meta)
    return target


@pytest.fixture
def vocabulary_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that read a whole vocabulary, once for each call."""
    calls: list[str] = []
    for name in ("read_gguf", "huggingface_content", "read_content"):
        original = getattr(gguf_files, name)

        def counted(*arguments: Any, _name: str = name, _original: Any = original, **options: Any) -> Any:
            calls.append(_name)
            return _original(*arguments, **options)

        monkeypatch.setattr(gguf_files, name, counted)
    return calls


def test_config_and_generation_config_need_no_vocabulary(
    folder: Path, tmp_path: Path, vocabulary_reads: list[str]
) -> None:
    path = gguf(folder, tmp_path / "m.gguf", eos_token_id=Typed("u32", 2))
    vocabulary_reads.clear()
    with squish.open(path) as file:
        mapped = with_names(file)
        config = json.loads(bytes(mapped.assets["config.json"].raw))
        assert config["hidden_size"] == 32
        assert config["eos_token_id"] == [2, 3]  # 3 is known by its text
        assert "lm_head.weight" in mapped
        assert "adapter_config.json" not in mapped.assets
        generation = bytes(mapped.assets["generation_config.json"].raw)
        assert vocabulary_reads == []
        names = set(mapped.assets)
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    assert vocabulary_reads == ["read_gguf", "huggingface_content", "read_content"]
    squish.convert(path, tmp_path / "hf", "safetensors:max_shard_size=1GB")
    assert (tmp_path / "hf" / "generation_config.json").read_bytes() == generation


def indented(folder: Path) -> bytes:
    """Write the folder's tokenizer.json as transformers does, so that a GGUF keeps it."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    return path.read_bytes()


def test_kept_files_are_not_parsed_while_the_keys_are_those_they_came_with(
    folder: Path, tmp_path: Path, vocabulary_reads: list[str]
) -> None:
    stored = indented(folder)
    squish.convert(folder, tmp_path / "m.gguf")
    vocabulary_reads.clear()
    squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "safetensors:max_shard_size=1GB")
    assert vocabulary_reads == []
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == stored
    assert not (tmp_path / "hf" / "squish.gguf.json").exists()


def with_key(folder: Path, target: Path, value: Typed) -> Path:
    """The model as a GGUF with one key more."""
    squish.convert(folder, target.with_suffix(".own.gguf"))
    with squish.open(target.with_suffix(".own.gguf")) as file:
        meta = {**file.index.meta, "my.key": value}
        squish.save(target, {name: file[name].numpy() for name in file}, metadata=meta)
    return target


def test_arrays_of_arrays_in_a_gguf_survive_a_folder(folder: Path, tmp_path: Path) -> None:
    source = with_key(folder, tmp_path / "m.gguf", Typed("array:array:i32", [[1, 2], [3]]))
    squish.convert(source, tmp_path / "hf", "hf")
    squish.convert(tmp_path / "hf", tmp_path / "back.gguf")
    with squish.open(tmp_path / "back.gguf") as file:
        assert [list(each) for each in file.metadata["my.key"]] == [[1, 2], [3]]


@pytest.mark.parametrize("value", [Typed("str", b"\xff"), Typed("array:str", ["a", b"\xff"])])
def test_text_that_is_not_utf_8_is_refused_with_its_key(value: Typed, folder: Path, tmp_path: Path) -> None:
    source = with_key(folder, tmp_path / "m.gguf", value)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, tmp_path / "hf", "hf")
    assert (caught.value.code, caught.value.part) == ("encoding", "my.key")
    assert not (tmp_path / "hf").exists()


def test_an_unchanged_vocabulary_is_read_once(folder: Path, tmp_path: Path, vocabulary_reads: list[str]) -> None:
    (folder / "tokenizer_config.json").write_text('{"model_max_length":128}')  # kept, with a digest of the tokenizer
    squish.convert(folder, tmp_path / "m.gguf")
    vocabulary_reads.clear()
    squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "hf")
    assert vocabulary_reads == ["read_gguf", "huggingface_content"]
    assert {path.name for path in (tmp_path / "hf").glob("*.json")} == {path.name for path in folder.glob("*.json")}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (folder / name).read_bytes()


def edited(source: Path, target: Path, **keys: Typed) -> Path:
    """A GGUF with other keys of its tokenizer, and the files that it kept."""
    with squish.open(source) as file:
        meta = {**file.index.meta, **{f"tokenizer.ggml.{name}": value for name, value in keys.items()}}
        squish.save(target, {name: file[name].numpy() for name in file}, metadata=meta)
    return target


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", Typed("array:str", ["a", "b", "ab", "<|stop|>", *(f"t{number}" for number in range(60))])),
        ("eos_token_id", Typed("u32", 4)),
        ("token_type", Typed("array:i32", [1, 1, 1, 3, 4, *[1] * 59])),
    ],
)
def test_an_edited_gguf_does_not_get_its_old_tokenizer_back(
    folder: Path, tmp_path: Path, key: str, value: Typed
) -> None:
    indented(folder)
    squish.convert(folder, tmp_path / "own.gguf")
    path = edited(tmp_path / "own.gguf", tmp_path / "m.gguf", **{key: value})
    squish.convert(path, tmp_path / "hf", "safetensors:max_shard_size=1GB")
    squish.convert(tmp_path / "hf", tmp_path / "back.gguf")
    with squish.open(tmp_path / "back.gguf") as file:
        assert file.meta[f"tokenizer.ggml.{key}"] == value.value


def test_a_merge_of_a_token_with_a_space_comes_back(folder: Path, tmp_path: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for old, new in (("t0", "c d"), ("t1", "c dab"), ("t2", "c"), ("t3", " d")):
        vocabulary[new] = vocabulary.pop(old)
    tokenizer["model"]["merges"] += [["c", " d"], ["c d", "ab"]]
    path.write_text(json.dumps(tokenizer))
    stored = path.read_bytes()
    squish.convert(folder, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "safetensors:max_shard_size=1GB")
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == stored


def test_a_damaged_vocabulary_is_an_error_where_it_is_read(folder: Path, tmp_path: Path) -> None:
    kinds = Typed("array:i32", [9] * 64)
    path = gguf(folder, tmp_path / "m.gguf", token_type=kinds)
    with squish.open(path) as file:
        mapped = with_names(file)
        assert "config.json" in mapped.assets
        with pytest.raises(squish.FormatError) as caught:
            mapped.assets["tokenizer.json"]
        assert caught.value.code == "tokenizer"
        assert str(caught.value.file).endswith("m.gguf")
        with pytest.raises(squish.FormatError):
            list(mapped.assets)
    with pytest.raises(squish.FormatError):
        squish.convert(path, tmp_path / "hf", "safetensors:max_shard_size=1GB")
    assert not (tmp_path / "hf").exists()


def test_a_special_id_outside_the_vocabulary_is_ignored_as_by_llama_cpp_and_noted(folder: Path, tmp_path: Path) -> None:
    path = gguf(folder, tmp_path / "m.gguf", eos_token_id=Typed("u32", 1 << 20), padding_token_id=Typed("u32", NONE))
    for target in ("hf", "q8.gguf"):
        report = squish.convert(path, tmp_path / target, "hf" if target == "hf" else None)
        note = "tokenizer.ggml.eos_token_id is 1048576, beyond the 64 tokens: ignored, as llama.cpp does"
        assert [each for each in report.notes if "ignored" in each] == [note]
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 3  # known by its text
    assert "pad_token_id" not in generation


def test_a_file_beside_the_gguf_stays_the_part_that_it_is(folder: Path, tmp_path: Path) -> None:
    path = gguf(folder, tmp_path / "m.gguf")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "notes.txt").write_text("notes")
    with squish.open(path, assets=tmp_path / "beside") as file:
        mapped = with_names(file)
        assert mapped.index.assets["notes.txt"] is file.index.assets["notes.txt"]
        assert "nothing" not in mapped.assets
        assert len(mapped.assets) == len(list(mapped.assets))


def with_meta(source: Path, target: Path, meta: dict[str, Any], drop: str = "tokenizer.") -> Path:
    """The same tensors with other keys: those with a prefix are dropped."""
    with squish.open(source) as file:
        kept = {key: value for key, value in file.index.meta.items() if not key.startswith(drop)}
        squish.save(target, {name: file[name].numpy() for name in file}, metadata={**kept, **meta})
    return target


def test_a_tokenizer_json_in_a_key_is_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    stored = (folder / "tokenizer.json").read_text()
    own = gguf(folder, tmp_path / "own.gguf")
    key = {"tokenizer.huggingface.json": Typed("str", stored)}
    path = with_meta(own, tmp_path / "inner.gguf", key)
    squish.convert(path, tmp_path / "hf", "hf")
    assert (tmp_path / "hf" / "tokenizer.json").read_text() == stored
    squish.convert(tmp_path / "hf", tmp_path / "back.gguf")
    with squish.open(tmp_path / "back.gguf") as back, squish.open(own) as file:
        tokens = "tokenizer.ggml.tokens"
        assert list(back.metadata[tokens]) == list(file.metadata[tokens])
        assert back.metadata["tokenizer.huggingface.json"] == stored


@pytest.mark.parametrize("changed", [False, True])
def test_a_tokenizer_json_in_a_key_counts_where_it_agrees_with_the_other_keys(
    folder: Path, tmp_path: Path, changed: bool
) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    if changed:
        token = next(iter(document["model"]["vocab"]))
        document["model"]["vocab"] = {
            f"{name}x" if name == token else name: number for name, number in document["model"]["vocab"].items()
        }
    stored = json.dumps(document, indent=1)
    own = gguf(folder, tmp_path / "own.gguf")
    key = {"tokenizer.huggingface.json": Typed("str", stored)}
    squish.convert(with_meta(own, tmp_path / "m.gguf", key, drop="nothing"), tmp_path / "hf", "hf")
    assert ((tmp_path / "hf" / "tokenizer.json").read_text() == stored) is not changed


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_tokenizer_json_in_a_key_is_a_typed_error(folder: Path, tmp_path: Path, text: str) -> None:
    key = {"tokenizer.huggingface.json": Typed("str", text)}
    path = with_meta(gguf(folder, tmp_path / "own.gguf"), tmp_path / "m.gguf", key)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(path, tmp_path / "hf", "hf")
    assert caught.value.code in ("json", "tokenizer")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("key", ["tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template"])
def test_texts_that_are_not_utf8_are_refused_by_their_key(folder: Path, tmp_path: Path, key: str) -> None:
    path = gguf(folder, tmp_path / "own.gguf")
    with squish.open(path) as file:
        value = file.index.meta[key].value if key in file.index.meta else None
    wrong: Any = b"\xff\xfe" if value is None else [*list(value)[:-1], b"\xff\xfe"]
    path = with_meta(path, tmp_path / "m.gguf", {key: Typed("str" if value is None else "array:str", wrong)}, "nothing")
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(path, tmp_path / "hf", "hf")
    assert (caught.value.code, caught.value.part) == ("tokenizer", key)
    assert "not UTF-8" in caught.value.message
    assert "xff" in str(caught.value.found)
    squish.convert(path, tmp_path / "kept", "hf", rename="keep")  # as the hint says


def test_tensors_of_images_beside_the_text_model_are_left_out_and_listed(folder: Path, tmp_path: Path) -> None:
    own = gguf(folder, tmp_path / "own.gguf")
    with squish.open(own) as file:
        tensors = {name: file[name].numpy() for name in file}
        others = {"v.blk.0.attn_q.weight": tensors["blk.0.attn_q.weight"], "mm.input_projection.weight": tensors[
            "blk.0.attn_q.weight"], "a.conv1d.1.weight": tensors["blk.0.attn_q.weight"]}  # fmt: skip
        squish.save(tmp_path / "m.gguf", {**tensors, **others}, metadata=file.index.meta)
    report = squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "hf")
    assert {item.name for item in report.dropped if item.kind == "tensor"} == set(others)
    assert all("images or audio" in item.reason for item in report.dropped if item.kind == "tensor")
    squish.save(
        tmp_path / "odd.gguf",
        {**tensors, "odd.weight": tensors["blk.0.attn_q.weight"]},
        metadata=squish.open(own).index.meta,
    )
    with pytest.raises(squish.SquishError, match="not a tensor of the family"):
        squish.convert(tmp_path / "odd.gguf", tmp_path / "odd", "hf")


@pytest.mark.parametrize(
    ("outer", "inner", "tied"), [(False, True, False), (True, False, True), (None, True, True), (None, False, False)]
)
def test_whether_embeddings_are_tied_is_a_setting_of_the_whole_model(
    outer: bool | None, inner: bool, tied: bool
) -> None:
    family: Any = squish.registry().implementation("family", "qwen2vl")
    config = {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": {"tie_word_embeddings": inner}}
    config |= {} if outer is None else {"tie_word_embeddings": outer}
    assert family.spelled(config)["tie_word_embeddings"] is tied
