"""Tokenizers between tokenizer.json, tokenizer.model and GGUF's keys, and those that contradict themselves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from squish_models.tokenizer import (
    Kind,
    Tokenizer,
    Vocabulary,
    gguf_keys,
    huggingface_content,
    huggingface_files,
    read_content,
    read_gguf,
    read_huggingface,
    sentencepiece,
)
from squish_models.tokenizer.pretokenizers import BY_NAME, PRETOKENIZERS
from squish_models.tokenizer.vocabulary import SPACE, merges_of_scores, scores_of_merges

from squish_core.api import FormatError, LimitError, SquishError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def byte_level(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of the kind of SmolLM2's, of seven tokens."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120ab": 4},
             "merges": ["a b", ["\u0120", "ab"]], "byte_fallback": False}  # fmt: skip
    added = [{"id": 5, "content": "<|end|>", "special": True}, {"id": 6, "content": f"x{SPACE}", "special": False}]
    steps = [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]
    root = {"model": model, "added_tokens": added, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    return root | changes


def sentencepiece_json() -> dict[str, Any]:
    """A tokenizer.json of the kind of Llama 2's, with byte tokens."""
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{number:02X}>" for number in range(256)),
        SPACE,
        "a",
        "b",
        "ab",
        f"{SPACE}ab",
    ]
    model = {"type": "BPE", "vocab": {text: number for number, text in enumerate(texts)}, "byte_fallback": True,
             "unk_token": "<unk>", "merges": [["a", "b"], [SPACE, "ab"]]}  # fmt: skip
    added = [{"id": number, "content": texts[number], "special": True} for number in range(3)]
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}]}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}
    return {
        "model": model,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": template,
    }


def files(**contents: Any) -> dict[str, bytes]:
    named = {name.replace("_json", ".json"): content for name, content in contents.items()}
    return {name: json.dumps(content).encode() for name, content in named.items()}


def same(one: Tokenizer | None, other: Tokenizer | None) -> None:
    assert one is not None
    assert other is not None
    for name in ("model", "tokens", "pre", "special", "space_prefix", "chat_templates"):
        assert getattr(one, name) == getattr(other, name), name
    assert [*map(tuple, one.merges)] == [*map(tuple, other.merges)]
    np.testing.assert_array_equal(one.kinds, other.kinds)
    assert (one.scores is None) == (other.scores is None)
    if one.scores is not None:
        np.testing.assert_array_equal(one.scores, other.scores)


def test_a_byte_level_tokenizer_becomes_ggufs_keys() -> None:
    options = {"eos_token": "<|end|>", "pad_token": {"content": "<|end|>"}, "chat_template": "{{ x }}"}
    source = files(
        tokenizer_json=byte_level(), tokenizer_config_json=options, generation_config_json={"eos_token_id": [5, 2]}
    )
    tokenizer = read_huggingface(source, {"vocab_size": 9, "bos_token_id": 0})
    assert tokenizer is not None
    assert tokenizer.end_ids == (5, 2)
    keys = {key: value.value for key, value in gguf_keys(tokenizer).items()}
    kinds = keys.pop("tokenizer.ggml.token_type")
    assert kinds.tolist() == [1, 1, 1, 1, 1, Kind.CONTROL, Kind.USER_DEFINED, Kind.UNUSED, Kind.UNUSED]
    assert keys == {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "\u0120", "\u0120ab", "<|end|>", "x ", "[PAD7]", "[PAD8]"],
        "tokenizer.ggml.merges": ["a b", "\u0120 ab"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.padding_token_id": 5,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": "{{ x }}",
    }


def test_a_sentencepiece_tokenizer_without_scores_gets_those_of_its_merges() -> None:
    tokenizer = read_huggingface(files(tokenizer_json=sentencepiece_json()), {})
    assert tokenizer is not None
    assert (tokenizer.model, tokenizer.space_prefix) == ("spm", True)
    assert dict(tokenizer.special) == {"unk": 0}
    assert tokenizer.kinds[:5].tolist() == [2, 3, 3, 6, 6]
    assert tokenizer.scores is not None
    assert tokenizer.scores[-5:].tolist() == [0, 0, 0, -1, -2]


@pytest.mark.parametrize("form", [byte_level, sentencepiece_json])
def test_the_way_there_and_back_is_the_identity(form: Any) -> None:
    options = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": [
        {"name": "default", "template": "d"}, {"name": "tools", "template": "t"}]}  # fmt: skip
    source = files(tokenizer_json=form(), tokenizer_config_json=options)
    tokenizer = read_huggingface(source, {"bos_token_id": 1, "eos_token_id": 2})
    assert tokenizer is not None
    keys = read_gguf(gguf_keys(tokenizer))
    same(tokenizer, keys)
    assert keys is not None
    config = {"vocab_size": len(keys.tokens)}
    back = read_huggingface(huggingface_files(keys), config)
    same(tokenizer, back)
    same(tokenizer, read_content(huggingface_content(keys), config))
    assert back is not None
    assert back.add == tokenizer.add


def test_gemmas_runs_of_spaces_are_marks_in_a_folder_and_spaces_in_gguf() -> None:
    tokens = ("<unk>", "<bos>", SPACE, "  ", "a")
    kinds = np.array([2, 3, 1, 4, 1], np.int32)
    gemma = Tokenizer(
        model="spm",
        vocabulary=Vocabulary(tokens=tokens, kinds=kinds, scores=np.zeros(5, np.float32)),
        special={"unk": 0, "bos": 1},
        space_prefix=False,
        add={"bos": True, "eos": False},
    )
    written = huggingface_files(gemma, gemma=True)
    assert json.loads(written["tokenizer.json"])["model"]["vocab"][SPACE * 2] == 3
    assert sentencepiece.parse(written["tokenizer.model"]).tokens[3] == SPACE * 2
    same(gemma, read_huggingface(written, {"vocab_size": 5}))


@pytest.mark.parametrize(
    "pretokenizer", [each for each in PRETOKENIZERS if not each.spelled], ids=lambda each: each.names[0]
)
def test_every_pretokenizer_is_known_by_its_steps(pretokenizer: Any) -> None:
    vocabulary = Vocabulary(tokens=("a",), kinds=np.ones(1, np.int32))
    tokenizer = Tokenizer(model="bpe", vocabulary=vocabulary, pre=pretokenizer.names[-1])
    back = read_huggingface(huggingface_files(tokenizer), {})
    assert back is not None
    assert back.pre is not None
    assert BY_NAME[back.pre].steps == pretokenizer.steps
    assert BY_NAME[back.pre].ignore_merges == pretokenizer.ignore_merges


@pytest.mark.parametrize("stated", [None, False])
def test_roberta_puts_a_separator_between_texts(stated: bool | None) -> None:
    keys: dict[str, Any] = {
        "model": "gpt2", "pre": "roberta-bpe", "tokens": ["<s>", "</s>", "a", "b", "ab"], "merges": ["a b"],
        "token_type": [3, 3, 1, 1, 1], "bos_token_id": 0, "eos_token_id": 1, "seperator_token_id": 1,
        "add_bos_token": True, "add_eos_token": True,
    }  # fmt: skip
    if stated is not None:
        keys["add_sep_token"] = stated
    tokenizer = read_gguf({f"tokenizer.ggml.{name}": value for name, value in keys.items()})
    assert tokenizer is not None
    pair = json.loads(huggingface_files(tokenizer)["tokenizer.json"])["post_processor"]["pair"]
    texts = [step.get("SpecialToken", step.get("Sequence"))["id"] for step in pair]
    assert texts == ["<s>", "A", "</s>", "</s>" if stated is None else "<s>", "B", "</s>"]


@pytest.mark.parametrize(
    ("model", "pre", "normalizers", "adds_bos"),
    [("gemma4", None, 1, True), ("gpt2", "sarvam-moe", 1, False), ("gpt2", "mmbert", 2, False),
     ("gpt2", "granite-embed-multi-311m", 1, True)],
)  # fmt: skip
def test_merges_of_texts_with_marks_for_spaces_are_written(
    model: str, pre: str | None, normalizers: int, adds_bos: bool
) -> None:
    tokens = ["<bos>", "<0x0A>", SPACE, "a", f"{SPACE}a"]
    keys: dict[str, Any] = {
        "model": model, "tokens": tokens, "merges": [f"{SPACE} a"], "token_type": [3, 6, 1, 1, 1], "bos_token_id": 0,
    }  # fmt: skip
    if pre is not None:
        keys["pre"] = pre
    tokenizer = read_gguf({f"tokenizer.ggml.{name}": value for name, value in keys.items()})
    assert tokenizer is not None
    assert tokenizer.pre == (pre or "gemma4")
    stored = json.loads(huggingface_files(tokenizer)["tokenizer.json"])
    assert len(stored["normalizer"].get("normalizers", [stored["normalizer"]])) == normalizers
    assert stored["model"]["byte_fallback"]
    assert stored["model"]["merges"] in ([[SPACE, "a"]], [f"{SPACE} a"])
    assert (stored["post_processor"] is not None) == adds_bos
    assert gguf_keys(tokenizer)["tokenizer.ggml.model"].value == model


def test_scores_and_merges_say_the_same() -> None:
    tokens = ("a", "b", "c", "ab", "bc", "abc")
    merges = (("a", "b"), ("b", "c"), ("ab", "c"))
    scores = scores_of_merges(tokens, merges)
    assert scores.tolist() == [0, 0, 0, -1, -2, -3]
    assert merges_of_scores(tokens, np.ones(6, np.int32), scores) == (*merges[:2], ("a", "bc"), merges[2])


def test_a_folder_or_file_without_a_tokenizer_has_none() -> None:
    assert read_huggingface({}, {}) is None
    assert read_gguf({}) is None


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "more tokens than the config": (byte_level(), {"vocab_size": 4}, "tokenizer"),
    "an id with two tokens": (byte_level(added_tokens=[{"id": 0, "content": "z"}]), {}, "tokenizer"),
    "a token with two ids": (byte_level(added_tokens=[{"id": 9, "content": "a"}]), {}, "tokenizer"),
    "an added token without an id": (byte_level(added_tokens=[{"content": "z"}]), {}, "tokenizer"),
    "a negative id": (byte_level(added_tokens=[{"id": -1, "content": "z"}]), {}, "count"),
    "ten million tokens": (byte_level(added_tokens=[{"id": 10**7, "content": "z"}]), {}, "count"),
    "a pre-tokenizer without a name": (byte_level(pre_tokenizer={"type": "Whitespace"}), {}, "tokenizer"),
    "another model": (byte_level(model={"type": "WordLevel", "vocab": {}}), {}, "tokenizer"),
    "a vocabulary of text": (byte_level(model={"type": "BPE", "vocab": {"a": "b"}}), {}, "tokenizer"),
    "a merge of no token": (byte_level(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}), {}, "tokenizer"),
    "a merge of three": (byte_level(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}), {}, "tokenizer"),
    "an end token out of range": (byte_level(), {"eos_token_id": 99}, "tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_tokenizers_that_contradict_themselves_are_refused(case: str) -> None:
    stored, config, code = WRONG[case]
    with pytest.raises(SquishError) as caught:
        read_huggingface(files(tokenizer_json=stored), config)
    assert caught.value.code == code


@pytest.mark.parametrize(("text", "code"), [
    (b"{", "json"), (b"[]", "json"), (b'{"a": "\xff"}', "json"), (b"[" * 100_000, "json"),
    (b'{"a": 1, "a": 2}', "duplicate"), (b"[" + b"[]," * (5 << 20), "count"),
])  # fmt: skip
def test_files_that_are_no_json_are_refused(text: bytes, code: str) -> None:
    with pytest.raises(SquishError) as caught:
        read_huggingface({"tokenizer.json": text}, {})
    assert (caught.value.code, caught.value.part) == (code, "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [("tokenizer_config.json", b"{", "json"), ("chat_template.jinja", b"\xff", "encoding")],
)
def test_the_file_beside_the_vocabulary_that_is_wrong_is_named(name: str, data: bytes, code: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_huggingface({**files(tokenizer_json=byte_level()), name: data}, {})
    assert (caught.value.code, caught.value.part) == (code, name)


GGUF_WRONG: dict[str, dict[str, Any]] = {
    "another model": {"model": "rwkv"}, "no tokens": {"tokens": None}, "no merges": {"merges": None},
    "a token twice": {"tokens": ["a", "a", "ab"]}, "a kind too few": {"token_type": [1, 1]},
    "an unknown kind": {"token_type": [1, 1, 9]}, "a merge of no token": {"merges": ["a c"]},
    "a merge without a space": {"merges": ["ab"]}, "an id below zero": {"bos_token_id": -1},
    "kinds of text": {"token_type": ["a", "b", "c"]}, "tokens of numbers": {"tokens": [1, 2, 3]},
}  # fmt: skip


@pytest.mark.parametrize("case", GGUF_WRONG)
def test_keys_that_contradict_each_other_are_refused(case: str) -> None:
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}
    changed = {key: value for key, value in (keys | GGUF_WRONG[case]).items() if value is not None}
    with pytest.raises(FormatError) as caught:
        read_gguf({f"tokenizer.ggml.{key}": value for key, value in changed.items()})
    assert caught.value.code == "tokenizer"


@pytest.fixture
def tiny() -> Tokenizer:
    kinds = np.array([2, 1, 1], np.int32)
    scores = np.arange(3, dtype=np.float32)
    vocabulary = Vocabulary(tokens=("<unk>", "ab", "\u4e00"), kinds=kinds, scores=scores)
    return Tokenizer(model="spm", vocabulary=vocabulary, space_prefix=True)


def test_tokenizer_model_holds_pieces_scores_and_kinds(tiny: Tokenizer) -> None:
    pieces = sentencepiece.parse(sentencepiece.write(tiny))
    assert (pieces.tokens, pieces.scores.tolist(), pieces.kinds.tolist()) == (tiny.tokens, [0, 1, 2], [2, 1, 1])
    assert pieces.space_prefix


def test_pieces_in_another_form_are_read_too(tiny: Tokenizer) -> None:
    long = "x" * 200
    pieces = [
        b"\x15\x00\x00\x80\x3f\x0a\x02ab",  # the score before the text
        b"\x0a\x01c",  # neither score nor kind
        b"\x0a\xc8\x01" + long.encode() + b"\x15\x00\x00\x00\x40",
        b"\x0a\x01d\x15\x00\x00\x40\x40\x18\x84\x80\x00",  # a kind of three bytes
        b"\x0a\x01e\x18\x03\x15\x00\x00\x80\x40",  # the kind before the score
    ]
    sizes = [bytes([len(piece)]) if len(piece) < 128 else b"\xd0\x01" for piece in pieces]
    data = b"".join(b"\x0a" + size + piece for size, piece in zip(sizes, pieces))
    parsed = sentencepiece.parse(data + sentencepiece.write(tiny))
    assert parsed.tokens == ("ab", "c", long, "d", "e", *tiny.tokens)
    assert parsed.scores.tolist() == [1, 0, 2, 3, 4, 0, 1, 2]
    assert parsed.kinds.tolist() == [1, 1, 1, 4, 3, *tiny.kinds]


def test_a_cut_tokenizer_model_gives_no_piece_that_it_does_not_hold(tiny: Tokenizer) -> None:
    data = sentencepiece.write(tiny)
    for end in range(len(data)):
        try:
            pieces = sentencepiece.parse(data[:end])
        except FormatError:
            continue
        assert pieces.tokens == tiny.tokens[: len(pieces.tokens)]


def test_hostile_protobuf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = b"\x0a\x02\x10\x01", b"\x0a\x03\x12\x01\x00", b"\x0a\x09\x11" + bytes(8)  # numbers, and other lengths
    pieces = b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x08\x01", b"\x0a\x03\x0a\x01\xff", b"\x08\x01"
    for data in (b"\x0b", b"\xff" * 20, *pieces, *scores):
        with pytest.raises(FormatError):
            sentencepiece.parse(data)
    monkeypatch.setattr(sentencepiece, "MAX_TOKENS", 1000)
    with pytest.raises(LimitError) as caught:
        sentencepiece.parse(b"\x0a\x00" * 1001)
    assert caught.value.code == "count"
