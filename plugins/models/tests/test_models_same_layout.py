"""Conversions that keep the layout of a model: it is checked like one that is mapped, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_models import gguf_files
from squish_testing import model_arrays, write_model
from test_models_bad_input import FIRST, family_of
from test_models_unreadable_files import FILES, LLAMA, damaged

import squish_core as squish
from squish_core.model import Typed

K_PROJ = "model.layers.0.self_attn.k_proj.weight"
Keys = dict[str, Any]
Arrays = dict[str, np.ndarray]
Change = Callable[[Keys, Arrays], Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in each format that an engine opens; `foreign.gguf` was written without Squish's keys."""
    base = tmp_path_factory.mktemp("models")
    write_model(base / "hf", "llama", LLAMA, dtype="f32", files=FILES)
    squish.convert(base / "hf", base / "mlx", "mlx", "int4:group_size=32")
    squish.convert(base / "hf", base / "uqff", "uqff", "q8_0")
    squish.convert(base / "hf", base / "own.gguf")
    squish.convert(base / "hf", base / "foreign.gguf", "gguf:keep=no")
    return base


def refusal(source: Path, to: str) -> squish.SquishError:
    before = sorted(source.parent.iterdir())
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, source.with_name("out"), to)
    assert sorted(source.parent.iterdir()) == before
    assert caught.value.file == str(source)
    return caught.value


def tokenizer(change: Callable[[dict[str, Any]], Any]) -> bytes:
    stored = json.loads(TOKENIZER["tokenizer.json"])
    change(stored)
    return json.dumps(stored).encode()


def added(number: int, text: str = "<|new|>") -> bytes:
    return tokenizer(lambda stored: stored["added_tokens"].append({"id": number, "content": text, "special": True}))


@pytest.mark.parametrize("form", ["mlx", "uqff"])
@pytest.mark.parametrize(
    ("settings", "code", "place"),
    [
        ({"num_attention_heads": 8}, "contradiction", K_PROJ),
        ({"num_attention_heads": 3}, "config", "config.json hidden_size"),
        ({"num_hidden_layers": 2}, "unmapped", "model.layers.1.input_layernorm.weight"),
        ({"vocab_size": 32}, "contradiction", "lm_head.weight"),
        ({"rope_theta": float("nan")}, "config", "config.json rope_theta"),
    ],
)
def test_a_config_that_contradicts_the_tensors_of_a_folder_is_refused(
    form: str, settings: dict[str, Any], code: str, place: str, models: Path, tmp_path: Path
) -> None:
    config = {**json.loads((models / form / "config.json").read_text()), **settings}
    error = refusal(damaged(models / form, tmp_path / "model", "config.json", json.dumps(config).encode()), form)
    assert (error.code, error.tensor or error.part) == (code, place)


@pytest.mark.parametrize("form", ["hf", "mlx", "uqff"])
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (tokenizer(lambda stored: stored["model"]["vocab"].update(zz=1)), "tokenizer"),
        (tokenizer(lambda stored: stored["model"]["vocab"].update(zz=64)), "tokenizer"),
        (tokenizer(lambda stored: stored["model"]["vocab"].update(zz=10**12)), "count"),
        (tokenizer(lambda stored: stored.update(model=[])), "tokenizer"),
        (added(1), "tokenizer"),
        (added(10**12), "count"),
        (b"hello", "json"),
    ],
)
def test_a_tokenizer_that_contradicts_itself_is_refused(
    form: str, data: bytes, code: str, models: Path, tmp_path: Path
) -> None:
    error = refusal(damaged(models / form, tmp_path / "model", "tokenizer.json", data), form)
    assert (error.code, error.part) == (code, "tokenizer.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"merges": [["a", "b"], ["q", "r"]]},
        {"merges": [["a", "b", "ab"]]},
        {"merges": [["a", "b"], ["q", "r"]], "byte_fallback": True},
    ],
)
def test_merges_are_checked_towards_gguf(changes: dict[str, Any], models: Path, tmp_path: Path) -> None:
    data = tokenizer(lambda stored: stored["model"].update(changes))
    error = refusal(damaged(models / "hf", tmp_path / "model", "tokenizer.json", data), "gguf")
    assert (error.code, error.part) == ("tokenizer", "tokenizer.json")


@pytest.mark.parametrize("to", ["hf", "mlx", "uqff", "gguf"])
def test_an_added_token_without_an_embedding_is_noted(to: str, models: Path, tmp_path: Path) -> None:
    """As in Gemma 3 of 1B, whose tokenizer has a token for images."""
    model = damaged(models / "hf", tmp_path / "model", "tokenizer.json", added(64))
    report = squish.convert(model, tmp_path / "out", to)
    assert "<|new|>" in "\n".join(report.notes)


def test_an_end_token_without_an_embedding_is_refused(models: Path, tmp_path: Path) -> None:
    model = damaged(models / "hf", tmp_path / "model", "tokenizer.json", added(64))
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|new|>"}')
    assert refusal(model, "hf").code == "tokenizer"


def test_another_kind_of_tokenizer_is_copied(models: Path, tmp_path: Path) -> None:
    data = tokenizer(lambda stored: stored.update(model={"type": "Unigram", "vocab": [["a", 0.0]]}))
    assert squish.convert(damaged(models / "hf", tmp_path / "model", "tokenizer.json", data), tmp_path / "out", "hf")


def test_a_pre_tokenizer_that_gguf_cannot_express_is_copied(models: Path, tmp_path: Path) -> None:
    data = tokenizer(lambda stored: stored.update(pre_tokenizer={"type": "Whitespace"}))
    model = damaged(models / "hf", tmp_path / "model", "tokenizer.json", data)
    assert squish.convert(model, tmp_path / "out", "hf").notes == ()
    assert refusal(model, "gguf").code == "tokenizer"


@pytest.mark.parametrize("form", ["mlx", "uqff"])
def test_a_folder_without_its_tokenizer_is_noted(form: str, models: Path, tmp_path: Path) -> None:
    model = damaged(models / form, tmp_path / "model", "tokenizer.json", b"")
    (model / "tokenizer.json").unlink()
    assert "tokenizer" in "\n".join(squish.convert(model, tmp_path / "out", form).notes)


def changed(source: Path, target: Path, change: Change) -> Path:
    """A GGUF with other keys and tensors."""
    with squish.open(source) as file:
        keys, arrays = dict(file.index.meta), {name: file[name].numpy() for name in file}
    change(keys, arrays)
    target.parent.mkdir(exist_ok=True)
    squish.save(target, arrays, metadata=keys)
    return target


def key(name: str, value: Any) -> Change:
    """A change of a key's value; None removes it."""

    def change(keys: Keys, arrays: Arrays) -> None:
        stored = keys.pop(name)
        if value is not None:
            keys[name] = Typed(stored.type, value(stored.value) if callable(value) else value)

    return change


def tensor(name: str, value: Any) -> Change:
    return lambda keys, arrays: arrays.update({name: np.ones(value, np.float32)}) if value else arrays.pop(name)


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        (key("llama.attention.head_count", 8), "contradiction", "blk.0.attn_output.weight"),
        (key("llama.attention.head_count", 3), "config", "llama.attention.head_count"),
        (key("llama.block_count", 2), "unmapped", "blk.1.attn_norm.weight"),
        (key("llama.block_count", 0), "contradiction", "blk.0.attn_norm.weight"),
        (key("llama.feed_forward_length", 65), "contradiction", "blk.0.ffn_down.weight"),
        (key("llama.rope.freq_base", -1.0), "config", "llama.rope.freq_base"),
        (tensor("blk.0.attn_q.bias", (7,)), "contradiction", "blk.0.attn_q.bias"),
        (tensor("output.weight", (65, 32)), "contradiction", "output.weight"),
        (tensor("token_embd.weight", (65, 32)), "tokenizer", "tokenizer.ggml.tokens"),
        (key("tokenizer.ggml.tokens", lambda each: list(each)[1:]), "tokenizer", "tokenizer.ggml.tokens"),
        (key("tokenizer.ggml.tokens", lambda each: ["b", *list(each)[1:]]), "tokenizer", "tokenizer.ggml.tokens"),
        (key("tokenizer.ggml.merges", lambda each: [*each, "q r"]), "tokenizer", "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.merges", None), "tokenizer", "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.token_type", lambda each: [9] * 64), "tokenizer", "tokenizer.ggml.token_type"),
    ],
)  # fmt: skip
def test_keys_of_a_gguf_that_contradict_each_other_or_the_tensors_are_noted(
    change: Change, code: str, place: str, models: Path, tmp_path: Path
) -> None:
    def both(keys: Keys, arrays: Arrays) -> None:
        change(keys, arrays)
        if place == "tokenizer.ggml.tokens" and len(arrays["token_embd.weight"]) == 65:
            arrays["output.weight"] = np.ones((65, 32), np.float32)

    model = changed(models / "foreign.gguf", tmp_path / "model.gguf", both)
    for dry_run in (True, False):
        (note,) = squish.convert(model, tmp_path / "out.gguf", dry_run=dry_run).notes
        assert note.startswith(f"copied unchanged, but llama.cpp may not load it: {place}: ")
    with squish.open(model) as before, squish.open(tmp_path / "out.gguf") as after:
        assert before.index.meta == after.index.meta
        assert [*before] == [*after]
    assert squish.convert(model, tmp_path / "kept.gguf", rename="keep").notes == ()
    with pytest.raises(squish.SquishError) as caught:  # a conversion that maps the model
        squish.convert(model, tmp_path / "folder", "hf")
    assert (caught.value.code, caught.value.tensor or caught.value.part) == (code, place)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (key("llama.context_length", None), "llama.context_length is missing"),
        (tensor("blk.0.attn_k_scale", (4,)), "blk.0.attn_k_scale"),
        (tensor("output_norm.weight", None), "model.norm.weight is missing"),
        (lambda keys, arrays: [keys.pop(each) for each in list(keys) if "tokenizer" in each], "will lack tokenizer"),
    ],
)
def test_what_a_gguf_lacks_is_noted(change: Change, note: str, models: Path, tmp_path: Path) -> None:
    model = changed(models / "foreign.gguf", tmp_path / "model.gguf", change)
    assert note in "\n".join(squish.convert(model, tmp_path / "out.gguf").notes)


@pytest.mark.parametrize("kind", ["bert", "none"])
def test_a_gguf_with_another_kind_of_tokenizer_is_copied(kind: str, models: Path, tmp_path: Path) -> None:
    model = changed(models / "foreign.gguf", tmp_path / "model.gguf", key("tokenizer.ggml.model", kind))
    notes = squish.convert(model, tmp_path / "out.gguf").notes
    assert notes == (() if kind == "bert" else ("llama.cpp will lack tokenizer",))


@pytest.mark.parametrize("form", ["hf", "mlx", "uqff", "own.gguf", "foreign.gguf"])
def test_a_model_that_fits_has_no_notes(form: str, models: Path, tmp_path: Path) -> None:
    to = form.rpartition(".")[2]
    assert squish.convert(models / form, tmp_path / f"out.{to}", to).notes == ()


@pytest.mark.parametrize(("name", "reads"), [("own.gguf", 0), ("foreign.gguf", 1)])
def test_a_vocabulary_that_was_checked_is_not_read_again(
    name: str, reads: int, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Mapping[str, Any]] = []
    original = gguf_files.read_gguf
    monkeypatch.setattr(gguf_files, "read_gguf", lambda meta: calls.append(meta) or original(meta))
    squish.convert(models / name, tmp_path / "out.gguf")
    assert len(calls) == reads


def test_a_change_of_a_checked_vocabulary_is_found(models: Path, tmp_path: Path) -> None:
    change = key("tokenizer.ggml.merges", lambda each: [*each, "q r"])
    model = changed(models / "own.gguf", tmp_path / "model.gguf", change)
    assert "tokenizer.ggml.merges: merge" in "\n".join(squish.convert(model, tmp_path / "out.gguf").notes)
    assert refusal(model, "hf").code == "tokenizer"


NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (tensor("blk.0.attn_norm.weight", (1, 32)), "blk.0.attn_norm.weight"),
        (tensor("blk.0.attn_q.weight", (1, 32, 32)), "blk.0.attn_q.weight"),
        (tensor("blk.7.attn_q.weight", (32, 32)), "blk.7.attn_q.weight"),
        (key("tokenizer.ggml.token_type", [0] * 64), "tokenizer.ggml.token_type"),
        (key("tokenizer.ggml.token_type", [-1] * 64), "tokenizer.ggml.token_type"),
        (key("tokenizer.ggml.token_type", [1] * 3), "tokenizer.ggml.token_type"),
        (key("tokenizer.ggml.merges", lambda each: ["ab"]), "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.merges", lambda each: ["a b c"]), "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.merges", lambda each: [""]), "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.tokens", lambda each: [b"\xff", *list(each)[1:]]), "tokenizer.ggml.tokens"),
        (key("llama.rope.freq_base", NAN), "llama.rope.freq_base"),
        (key("llama.rope.freq_base", float("inf")), "llama.rope.freq_base"),
        (key("llama.attention.layer_norm_rms_epsilon", NAN), "llama.attention.layer_norm_rms_epsilon"),
        (key("llama.block_count", 4_000_000_000), "llama.block_count"),
        (lambda keys, arrays: keys.update({"tokenizer.chat_template": Typed("u32", 7)}), "tokenizer.chat_template"),
        (lambda keys, arrays: keys.update({"llama.attention.head_count": Typed("str", "four")}),
         "llama.attention.head_count"),
        (lambda keys, arrays: keys.update({"llama.rope.scaling.type": Typed("u32", 3)}), "llama.rope.scaling.type"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("encode", [None, "q8_0", "q4_k_m"])
def test_a_gguf_is_copied_whatever_its_keys_mean(
    change: Change, place: str, encode: str | None, models: Path, tmp_path: Path
) -> None:
    model = changed(models / "foreign.gguf", tmp_path / "model.gguf", change)
    notes = squish.convert(model, tmp_path / "out.gguf", encode=encode).notes
    assert f"copied unchanged, but llama.cpp may not load it: {place}: " in "\n".join(notes)
    with squish.open(model) as before, squish.open(tmp_path / "out.gguf") as after:
        changing = ("general.file_type", "general.quantization_version")
        old, new = (
            {key: repr(value) for key, value in file.index.meta.items() if key not in changing}
            for file in (before, after)
        )
        assert old == new
        assert [spec.shape for spec in before.index.tensors.values()] == [
            spec.shape for spec in after.index.tensors.values()
        ]


def test_kept_names_are_not_checked_where_tensors_would_be_transposed(tmp_path: Path) -> None:
    """gpt-oss has tensors that Hugging Face transposes where they are dense."""
    config = {**FIRST["gpt-oss"], "num_key_value_heads": 7}
    assets = {"config.json": json.dumps(config).encode()}
    with in_memory(model_arrays(family_of("gpt-oss"), FIRST["gpt-oss"]), assets=assets) as file:
        assert squish.convert(file, tmp_path / "out", "safetensors:max_shard_size=1GB", rename="keep").notes == ()
