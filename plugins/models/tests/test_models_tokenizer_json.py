"""A tokenizer.json is read and written the same with the compiled library and without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from squish_models.tokenizer import gguf_keys, huggingface_files, read_gguf, read_huggingface
from squish_models.tokenizer.json_file import Merges, TokenIds, dump_tokenizer, parse_tokenizer
from squish_testing import write_model

import squish_core as squish
from squish_core.api import SquishError, parse_object

NAME = "tokenizer.json"
LAYOUTS: tuple[dict[str, Any], ...] = ({}, {"ensure_ascii": False}, {"ensure_ascii": False, "indent": 2})
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
VOCAB = {
    text: number for number, text in enumerate(["a", "b", "ab", "\u0120", "\u0120ab", '"', "\\", '"\\', "]]", "x "])
}
MERGES = [["a", "b"], ["\u0120", "ab"], ['"', "\\"]]
ADDED = [{"id": 10, "content": "<|end|>", "special": True}, {"id": 9, "content": "x ", "special": False}]
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 11, "rope_theta": 1e4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 10,
}  # fmt: skip


@pytest.fixture(params=["compiled", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled library, and without it."""
    if request.param == "python":
        monkeypatch.setitem(sys.modules, "squish_cpu.api", None)
    else:
        pytest.importorskip("squish_cpu")
    return str(request.param)


def ids(tokens: list[str]) -> TokenIds:
    return TokenIds(tokens, "".join(f"{token}\0" for token in tokens).encode())


def document(**changes: Any) -> dict[str, Any]:
    model = {"type": "BPE", "byte_fallback": False, "vocab": VOCAB, "merges": MERGES} | changes
    return {"version": "1.0", "added_tokens": ADDED, "pre_tokenizer": BYTE_LEVEL, "model": model}


def test_the_compiled_library_reads_a_usual_file() -> None:
    pytest.importorskip("squish_cpu")
    model = parse_tokenizer(json.dumps(document(), ensure_ascii=False).encode(), NAME)["model"]
    assert isinstance(model["vocab"], TokenIds)
    assert isinstance(model["merges"], Merges)
    assert model["vocab"] == VOCAB
    assert [*map(list, model["merges"])] == MERGES
    assert model["merges"][-1] == ('"', "\\")
    assert model["merges"][:2] == [("a", "b"), ("\u0120", "ab")]
    assert len(model["merges"]) == 3
    assert model["merges"] == [*map(tuple, MERGES)]
    assert model["merges"] != [("a", "b")]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("merges", [MERGES, [" ".join(pair) for pair in MERGES], []], ids=["pairs", "texts", "none"])
def test_both_ways_give_the_same_keys(
    layout: dict[str, Any], merges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {NAME: json.dumps(document(merges=merges), **layout).encode()}
    keys = []
    for is_compiled in (True, False):
        if not is_compiled:
            monkeypatch.setitem(sys.modules, "squish_cpu.api", None)
        tokenizer = read_huggingface(files, {"vocab_size": 13})
        assert tokenizer is not None
        keys.append(
            {
                key: list(value.value) if value.type.startswith("array") else value.value
                for key, value in gguf_keys(tokenizer).items()
            }
        )
        again = read_gguf(gguf_keys(tokenizer))
        assert again is not None
        assert again.tokens == tokenizer.tokens
        assert [*map(tuple, again.merges)] == [*map(tuple, tokenizer.merges)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab": {"a": 0, "b": 0}}, {"vocab": {**VOCAB, "c": 99}}, {"vocab": {"a": 0, "b": "1"}}, {"vocab": ["a"]},
        {"merges": [["a", "c"]]}, {"merges": [["b", "a"]]}, {"merges": [["a"]]}, {"merges": {"a": "b"}},
        {"merges": ["a b a"]}, {"merges": [["a", 1]]}, {"type": "Unigram"},
    ],
    ids=str,
)  # fmt: skip
def test_both_ways_give_the_same_error(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    files = {NAME: json.dumps(document(**changes), ensure_ascii=False).encode()}
    with pytest.raises(SquishError) as first:
        read_huggingface(files, {"vocab_size": 11})
    monkeypatch.setitem(sys.modules, "squish_cpu.api", None)
    with pytest.raises(SquishError) as second:
        read_huggingface(files, {"vocab_size": 11})
    assert str(first.value) == str(second.value)
    assert first.value.code == second.value.code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"]}}", end) for end in
        (b']}, "x": tru}', b']}, "x": "\xff"}', b']}, "x": 1, "x": 2}', b"]}}} {}", b']}, "model": 1}')
    ] + [(b'"ab"', b'"a\xff"'), (b'"ab": 2', b'"ab": 2, "\xff": 3'), (b"1.0", b"\xff")],
)  # fmt: skip
def test_both_ways_name_the_same_place(old: bytes, new: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps(document(), ensure_ascii=False).encode().replace(old, new)
    with pytest.raises(SquishError) as first:
        parse_tokenizer(data, NAME)
    monkeypatch.setitem(sys.modules, "squish_cpu.api", None)
    with pytest.raises(SquishError) as second:
        parse_tokenizer(data, NAME)
    assert str(first.value) == str(second.value)
    assert first.value.offset == second.value.offset


@pytest.mark.parametrize(
    "content",
    [
        document(), document(merges=[]), document(vocab=ids([*VOCAB]), merges=Merges("a b\0\u0120 ab\0".encode())),
        document(vocab=ids([*VOCAB]), merges=[("a", "b")]), {**document(), "model": {"vocab": {}, "merges": []}},
    ],
)  # fmt: skip
def test_a_file_is_written_as_json_writes_it(content: dict[str, Any]) -> None:
    if isinstance(content["model"]["merges"], Merges):
        pytest.importorskip("squish_cpu")
    model = content["model"]
    builtin = {**content, "model": {**model, "vocab": dict(model["vocab"]), "merges": [*model["merges"]]}}
    assert dump_tokenizer(content) == json.dumps(builtin, ensure_ascii=False).encode()


def test_a_whole_model_comes_back_byte_for_byte(way: str, tmp_path: Path) -> None:
    family = squish.registry().implementation("family", "llama")
    tokenizer = read_huggingface({NAME: json.dumps(document()).encode()}, LLAMA)
    assert tokenizer is not None
    for name, data in (
        ("own", huggingface_files(tokenizer)[NAME]),
        ("other", json.dumps(document(), indent=1).encode()),
    ):
        source = write_model(tmp_path / name, family, LLAMA, files={NAME: data})
        squish.convert(source, tmp_path / f"{name}.gguf")
        with squish.open(tmp_path / f"{name}.gguf") as file:
            assert (f"squish.hf.{NAME}" in file.meta) == (name == "other")
        squish.convert(tmp_path / f"{name}.gguf", tmp_path / f"{name}-back", "hf")
        assert (tmp_path / f"{name}-back" / NAME).read_bytes() == data


def test_a_library_that_cannot_be_loaded_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("squish_cpu.api")

    def broken(data: bytes) -> None:
        raise SquishError("cannot load the compiled kernels", code="library")

    monkeypatch.setattr(api, "read_vocabulary", broken)
    data = json.dumps(document()).encode()
    assert parse_tokenizer(data, NAME) == parse_object(data, NAME)
