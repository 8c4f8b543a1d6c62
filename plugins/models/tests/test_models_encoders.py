"""Encoders between folders and GGUF: token types, positions, pooling, classes, tokenizers of several kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_models import add_adapters, encoder, of_others, sentence_files
from squish_convert.arrays import in_memory
from squish_models.api import check_model

import squish_core as squish
from squish_core.errors import FormatError, SquishError
from squish_core.model import Typed

KINDS = {
    "all-MiniLM-L6-v2": "words", "ms-marco-MiniLM-L6-v2": "words", "all-distilroberta-v1": "bytes",
    "nli-distilroberta-base": "bytes", "bge-m3": "pieces", "bge-reranker-v2-m3": "pieces",
}  # fmt: skip
ROWS = "squish.rows.position_embd.weight"


def save_folder(folder: Path, arrays: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write a folder with tensors of any names."""
    with in_memory(arrays, {"format": "pt"}, files) as file:
        squish.convert(file, folder, "safetensors:max_shard_size=1GB", rename="keep")


def contents(folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of a folder besides the weights, and the bytes of its tensors."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "safetensors" not in path.name]
    with squish.open(folder) as file:
        tensors = {name: file[name].numpy().tobytes() for name in file}
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}, tensors


@pytest.mark.parametrize(("model", "kind"), KINDS.items())
def test_a_folder_comes_back_byte_for_byte(model: str, kind: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", model, kind, sentence_files())
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert contents(tmp_path / "back") == contents(source)
    assert check_model(tmp_path / "m.gguf", "llama.cpp").problems == ()
    assert check_model(tmp_path / "back", "transformers").problems == ()


@pytest.mark.parametrize(("model", "kind"), KINDS.items())
def test_a_gguf_of_others_becomes_the_same_model(model: str, kind: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", model, kind, sentence_files({"pooling_mode_cls_token": True}))
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(of_others(tmp_path / "m.gguf"), tmp_path / "back", "hf")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "back"))
    names = ("max_position_embeddings", "type_vocab_size", "pad_token_id", "id2label", "model_type", "vocab_size")
    assert {name: after.get(name) for name in names} == {name: before.get(name) for name in names}
    cut = 2 if kind != "words" else 0
    with squish.open(source) as one, squish.open(tmp_path / "back") as other:
        assert {*one} == {*other}
        for name in one:
            first = cut if name.endswith("position_embeddings.weight") else 0
            np.testing.assert_array_equal(one[name].numpy()[first:], other[name].numpy()[first:])
            assert not other[name].numpy()[:first].any()
    with squish.open(tmp_path / "m.gguf") as file:
        ranks = "bert.classifier.output_labels" in file.meta
        assert file.meta["bert.pooling_type"] == (4 if ranks else 2)
        assert (file.meta["bert.context_length"], file["position_embd.weight"].shape[0]) == (40, 40)
    assert (tmp_path / "back" / "modules.json").exists() != ranks
    assert not (tmp_path / "back" / "generation_config.json").exists()


@pytest.mark.parametrize(("model", "kind"), [("bge-m3", "words"), ("all-MiniLM-L6-v2", "pieces")])
def test_a_tokenizer_of_another_model_changes_no_positions(model: str, kind: str, tmp_path: Path) -> None:
    """Multilingual E5 of the size "small" is a BERT with XLM-RoBERTa's tokenizer, and some RoBERTas have words."""
    source = encoder(tmp_path / "hf", model, kind)
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert contents(tmp_path / "back") == contents(source)


def test_the_rows_of_no_token_are_kept_in_a_key(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "bge-m3", "pieces")
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(source, tmp_path / "n.gguf", "gguf:keep=no")
    with (
        squish.open(source) as file,
        squish.open(tmp_path / "m.gguf") as own,
        squish.open(tmp_path / "n.gguf") as other,
    ):
        rows = file["embeddings.position_embeddings.weight"].numpy()
        np.testing.assert_array_equal(np.reshape(own.index.meta[ROWS].value, (2, 32)), rows[:2])
        np.testing.assert_array_equal(own["position_embd.weight"].numpy(), rows[2:])
        assert ROWS not in other.meta


@pytest.mark.parametrize(
    "value", [Typed("array:f32", [1.0]), Typed("array:i32", [0] * 32), Typed("str", "x"), Typed("u32", 1)]
)
def test_a_key_without_such_rows_is_ignored(value: Typed, tmp_path: Path) -> None:
    squish.convert(encoder(tmp_path / "hf", "bge-m3", "pieces"), tmp_path / "m.gguf")
    squish.convert(of_others(tmp_path / "m.gguf", **{ROWS: value}), tmp_path / "back", "hf")
    with squish.open(tmp_path / "back") as file:
        assert file["embeddings.position_embeddings.weight"].shape == (42, 32)


@pytest.mark.parametrize(
    ("pooling", "number"),
    [
        ({"pooling_mode": "cls"}, 2),
        ({"pooling_mode": ["mean"]}, 1),
        ({"pooling_mode_mean_tokens": True, "pooling_mode": "mean"}, 1),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": False}, 3),
    ],
)
def test_poolings_are_read_in_both_spellings(pooling: dict[str, Any], number: int, tmp_path: Path) -> None:
    squish.convert(encoder(tmp_path / "hf", "bge-small-en-v1.5", "words", sentence_files(pooling)), tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.meta["bert.pooling_type"] == number


@pytest.mark.parametrize("model", ["bge-m3", "nli-distilroberta-base", "nomic-embed-text-v2-moe"])
def test_a_folder_and_its_gguf_are_the_same(model: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", model, "bytes" if "roberta" in model else "pieces")
    squish.convert(source, tmp_path / "m.gguf")
    for one, other in (("hf", "m.gguf"), ("m.gguf", "hf")):
        difference = squish.diff(tmp_path / one, tmp_path / other)
        states = {each.name: each.state for each in difference.tensors if each.state != "bytes"}
        assert {*states.values()} <= {"values"}  # of the transposed stacks
        assert all("w2" in name or "ffn_down_exps" in name for name in states)
        assert difference.assets == ()


def test_small_tables_stay_as_they_are_where_matrices_become_codes(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "bge-small-en-v1.5", "words", intermediate_size=64)
    squish.convert(source, tmp_path / "m.gguf", encode="q8_0")
    squish.convert(tmp_path / "m.gguf", tmp_path / "again.gguf", encode="q4_0", requantize=True)
    for path in (tmp_path / "m.gguf", tmp_path / "again.gguf"):
        with squish.open(path) as file:
            matrices = [spec for spec in file.index.tensors.values() if len(spec.shape) > 1]
        dense = {spec.name for spec in matrices if spec.encodings[0].codec.id == "dense"}
        assert dense == {"position_embd.weight", "token_types.weight"}
        assert check_model(path, "llama.cpp").loads


def test_names_of_norms_in_old_files_are_read(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "bert-base-uncased", "words")
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(source) as file:
        arrays = {f"bert.{name}": file[name].numpy() for name in file}
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in arrays.items()
    }
    heads = {name: np.zeros(3, np.float32) for name in ("cls.predictions.bias", "cls.seq_relationship.weight")}
    buffer = {"bert.embeddings.position_ids": np.arange(40)[None]}
    files = {path.name: path.read_bytes() for path in source.glob("*.*") if "safetensors" not in path.name}
    save_folder(tmp_path / "old", {**old, **heads, **buffer}, files)
    report = squish.convert(tmp_path / "old", tmp_path / "old.gguf")
    with squish.open(tmp_path / "m.gguf") as one, squish.open(tmp_path / "old.gguf") as other:
        assert {*one} == {*other}
        assert all(np.array_equal(one[name].numpy(), other[name].numpy()) for name in one)
    assert [*heads] == [name for each in report.left_out for name in each.tensors]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (sentence_files(modules=("models.Transformer", "models.Pooling", "models.Dense")), "modules.json"),
        (sentence_files({"pooling_mode_max_tokens": True}), "1_Pooling/config.json"),
        (sentence_files({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}), "1_Pooling/config.json"),
        (sentence_files({"pooling_mode": ["mean", "cls"]}), "1_Pooling/config.json"),
        (sentence_files({"pooling_mode": "max"}), "1_Pooling/config.json"),
    ],
)
def test_what_llama_cpp_does_not_pool_is_refused(files: dict[str, bytes], place: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "bge-small-en-v1.5", "words", files)
    with pytest.raises(FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("config", place)
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    ("model", "changes", "setting"),
    [
        ("bge-small-en-v1.5", {"hidden_act": "relu"}, "hidden_act"),
        ("bge-small-en-v1.5", {"is_decoder": True}, "is_decoder"),
        ("bge-small-en-v1.5", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bge-small-en-v1.5", {"id2label": {"1": "a"}}, "id2label"),
        ("bge-small-en-v1.5", {"type_vocab_size": 0}, "type_vocab_size"),
        ("bge-m3", {"pad_token_id": None}, "pad_token_id"),
        ("bge-m3", {"pad_token_id": 41}, "pad_token_id"),
    ],
)
def test_the_message_names_a_setting_that_llama_cpp_lacks(
    model: str, changes: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    source = encoder(tmp_path / "hf", model, "words")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "config"
    assert setting in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"bert.attention.causal": None}, "bert.attention.causal"),
        ({"bert.attention.causal": Typed("bool", True)}, "bert.attention.causal"),
        ({"tokenizer.ggml.token_type_count": None}, "tokenizer.ggml.token_type_count"),
        ({"tokenizer.ggml.token_type_count": Typed("u32", 3)}, "token_types.weight"),
        ({"bert.context_length": Typed("u32", 41)}, "position_embd.weight"),
        ({"bert.pooling_type": Typed("u32", 4)}, "bert.pooling_type"),
    ],
)
def test_a_key_that_a_folder_cannot_express_is_refused(keys: dict[str, Any], place: str, tmp_path: Path) -> None:
    squish.convert(encoder(tmp_path / "hf", "bge-small-en-v1.5", "words"), tmp_path / "m.gguf")
    with pytest.raises(SquishError) as caught:
        squish.convert(of_others(tmp_path / "m.gguf", **keys), tmp_path / "back", "hf")
    assert place in (caught.value.part, caught.value.tensor)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("keys", "code", "loads"),
    [
        ({}, "", True),
        ({"tokenizer.ggml.token_type_count": None}, "engine-key", False),
        ({"tokenizer.ggml.token_type_count": Typed("u32", 3)}, "contradiction", False),
        ({"bert.context_length": Typed("u32", 41)}, "contradiction", False),
        ({"bert.attention.layer_norm_epsilon": None}, "engine-key", False),
        ({"tokenizer.ggml.bos_token_id": None}, "tokenizer", False),
        ({"tokenizer.ggml.seperator_token_id": Typed("u32", 900)}, "tokenizer", False),
    ],
)
def test_the_check_follows_llama_cpps_loader(keys: dict[str, Any], code: str, loads: bool, tmp_path: Path) -> None:
    squish.convert(encoder(tmp_path / "hf", "bge-small-en-v1.5", "words"), tmp_path / "m.gguf")
    check = check_model(of_others(tmp_path / "m.gguf", **keys), "llama.cpp")
    assert check.loads == loads
    assert not code or code in {each.code for each in check.problems}


def test_a_head_that_is_not_of_whole_texts_is_refused(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "ms-marco-MiniLM-L6-v2", "words")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "architectures": ["BertForTokenClassification"]}))
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.tensor) == ("unmapped", "classifier.bias")


@pytest.mark.parametrize("to", ["mlx", "uqff"])
def test_engines_without_encoders_are_refused(to: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "bge-m3", "pieces")
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "target", to)
    assert caught.value.code == "engine"


@pytest.mark.parametrize("model", ["nomic-embed-text-v2-moe", "jina-embeddings-v2-small-en", "nomic-embed-text-v1.5"])
def test_what_engines_do_not_compute_is_left_out(model: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", model, "words")
    with squish.open(source) as file:
        arrays = {name: file[name].numpy() for name in file}
        files = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    others = {
        "nomic-embed-text-v2-moe": {"encoder.layers.1.mlp.experts.bias": np.ones(32, np.float32)},
        "jina-embeddings-v2-small-en": {"pooler.dense.weight": np.ones((32, 32), np.float32)},
        "nomic-embed-text-v1.5": {"cls.predictions.bias": np.ones(64, np.float32)},
    }[model]
    save_folder(tmp_path / "more", arrays | others, files)
    report = squish.convert(tmp_path / "more", tmp_path / "m.gguf")
    assert [*others] == [name for each in report.left_out for name in each.tensors]
    assert any("biases of experts" in note for note in report.notes) == (model == "nomic-embed-text-v2-moe")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert contents(tmp_path / "back") == contents(source)
    assert check_model(tmp_path / "m.gguf", "llama.cpp").problems == ()


JINA3 = "jina-embeddings-v3"


def test_adapters_of_jina_embeddings_3_are_left_out_and_the_base_comes_back_byte_for_byte(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", JINA3, "pieces", sentence_files())
    report = squish.convert(add_adapters(source, tmp_path / "more"), tmp_path / "m.gguf")
    left = {each.part: each.tensors for each in report.left_out}
    assert {name.rpartition(".")[2] for name in left["adapters"]} == {"lora_A", "lora_B"}
    assert len(left["adapters"]) == 22
    assert [name for part, names in left.items() if part != "adapters" for name in names] == [
        "roberta.pooler.dense.bias",
        "roberta.pooler.dense.parametrizations.weight.original",
    ]
    assert any("retrieval.query, retrieval.passage, separation" in note for note in report.notes)
    assert check_model(tmp_path / "m.gguf", "llama.cpp").problems == ()
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert contents(tmp_path / "back") == contents(source)


def test_a_gguf_of_jina_embeddings_3_of_others_becomes_the_published_model(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", JINA3, "pieces", sentence_files())
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(of_others(tmp_path / "m.gguf"), tmp_path / "back", "hf")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "back"))
    names = (
        "architectures", "lora_adaptations", "max_position_embeddings", "model_type", "pad_token_id",
        "position_embedding_type", "rotary_emb_base", "type_vocab_size", "vocab_size",
    )  # fmt: skip
    assert {name: after.get(name) for name in names} == {name: before[name] for name in names}
    assert contents(tmp_path / "back")[1] == contents(source)[1]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"use_reg_tokens": True}, "config"),
        ({"hidden_act": "relu"}, "config"),
        ({"is_decoder": True}, "config"),
        ({"pad_token_id": 41}, "config"),
        ({"rotary_emb_base": "x"}, "config"),
        ({"position_embedding_type": "absolute"}, "engine"),
    ],
)
def test_jina_embeddings_3_that_llama_cpp_does_not_compute_is_refused(
    changes: dict[str, Any], code: str, tmp_path: Path
) -> None:
    source = encoder(tmp_path / "hf", JINA3, "pieces")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == code
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("encoding", ["q8_0", "q4_0"])
def test_codes_of_experts_come_back_as_values(encoding: str, tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "nomic-embed-text-v2-moe", "words", n_inner=64)
    squish.convert(source, tmp_path / "m.gguf", encode=encoding)
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf", encode="f32")
    with squish.open(tmp_path / "m.gguf") as file, squish.open(tmp_path / "back") as other:
        stack = file["blk.1.ffn_down_exps.weight"].numpy()
        rows = other["encoder.layers.1.mlp.experts.mlp.w2"].numpy()
    np.testing.assert_array_equal(rows, stack.swapaxes(1, 2).reshape(-1, 32))


def test_a_model_that_llama_cpp_lacks_is_called_by_its_name_in_the_message(tmp_path: Path) -> None:
    source = encoder(tmp_path / "hf", "all-MiniLM-L6-v2", "words", model_type="bert")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "mpnet"}))
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "family"
    assert "mpnet" in str(caught.value)
