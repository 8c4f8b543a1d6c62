"""A tokenizer.json and the keys of a GGUF have the same vocabulary and merges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from squish_models.tokenizer import gguf_keys, huggingface_files, read_gguf, read_huggingface
from squish_testing import write_model

import squish_core as squish
from squish_core.api import SquishError

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


def document(**changes: Any) -> dict[str, Any]:
    model = {"type": "BPE", "byte_fallback": False, "vocab": VOCAB, "merges": MERGES} | changes
    return {"version": "1.0", "added_tokens": ADDED, "pre_tokenizer": BYTE_LEVEL, "model": model}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("merges", [MERGES, [" ".join(pair) for pair in MERGES], []], ids=["pairs", "texts", "none"])
def test_keys_have_the_tokens_and_merges_of_the_file(layout: dict[str, Any], merges: list[Any]) -> None:
    tokenizer = read_huggingface({NAME: json.dumps(document(merges=merges), **layout).encode()}, {"vocab_size": 13})
    assert tokenizer is not None
    keys = gguf_keys(tokenizer)
    assert list(keys["tokenizer.ggml.tokens"].value) == [*VOCAB, "<|end|>", "[PAD11]", "[PAD12]"]
    assert list(keys["tokenizer.ggml.merges"].value) == [" ".join(pair) for pair in merges and MERGES]
    again = read_gguf(keys)
    assert again is not None
    assert again.tokens == tokenizer.tokens
    assert [*map(tuple, again.merges)] == [*map(tuple, tokenizer.merges)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"vocab": {"a": 0, "b": 0}}, "tokenizer"), ({"vocab": {**VOCAB, "c": 99}}, "tokenizer"),
        ({"vocab": {"a": 0, "b": "1"}}, "tokenizer"), ({"vocab": ["a"]}, "tokenizer"),
        ({"merges": [["a", "c"]]}, "tokenizer"), ({"merges": [["c", "a"]]}, "tokenizer"),
        ({"merges": [["b", "a"]]}, "tokenizer"), ({"merges": [["a"]]}, "tokenizer"),
        ({"merges": [["a", "b", "a"]]}, "tokenizer"), ({"merges": {"a": "b"}}, "tokenizer"),
        ({"merges": ["a b a"]}, "tokenizer"), ({"merges": [["a", 1]]}, "tokenizer"),
        ({"merges": [["a", ["b"]]]}, "tokenizer"), ({"type": "Unigram"}, "tokenizer"),
    ],
    ids=str,
)  # fmt: skip
def test_a_vocabulary_that_contradicts_itself_is_an_error(changes: dict[str, Any], code: str) -> None:
    files = {NAME: json.dumps(document(**changes), ensure_ascii=False).encode()}
    with pytest.raises(SquishError) as caught:
        read_huggingface(files, {"vocab_size": 11})
    assert (caught.value.code, caught.value.part) == (code, NAME)


def test_the_first_wrong_merge_is_named_in_the_message() -> None:
    files = {NAME: json.dumps(document(merges=[*MERGES, ["b", "a"], ["a", 1]])).encode()}
    with pytest.raises(SquishError, match=r"merge 3 joins or produces .*'b' 'a'"):
        read_huggingface(files, {"vocab_size": 11})


def test_a_file_is_written_on_one_line() -> None:
    tokenizer = read_huggingface({NAME: json.dumps(document()).encode()}, {"vocab_size": 11})
    assert tokenizer is not None
    data = huggingface_files(tokenizer)[NAME]
    assert json.dumps(json.loads(data), ensure_ascii=False).encode() == data
    model = json.loads(data)["model"]
    assert (model["merges"], model["vocab"]) == (MERGES, VOCAB | {"<|end|>": 10})


def test_a_whole_model_comes_back_byte_for_byte(tmp_path: Path) -> None:
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
