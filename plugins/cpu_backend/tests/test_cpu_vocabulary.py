"""The vocabulary and merges of a tokenizer.json: what the library reads is what Python's json reads, and it writes what
json.dumps writes. It may leave any file to Python, but no usual one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_cpu.api import ScannedVocabulary, check_vocabulary, read_vocabulary, write_vocabulary
from squish_testing import mutant

from squish_core.api import SquishError, parse_object

PARTS = st.text(st.characters(exclude_characters=" \0", exclude_categories=["Cs"]), min_size=1, max_size=9)
LAYOUTS = (
    {"ensure_ascii": False}, {"ensure_ascii": False, "indent": 2}, {"ensure_ascii": False, "separators": (",", ":")},
    {"ensure_ascii": False, "indent": "\t"},
)  # fmt: skip
BEFORE = {
    "version": "1.0", "added_tokens": [{"id": 1, "content": '"vocab": {"merges": ['}], "normalizer": None,
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{N}|\\s+\"'"}}, "scores": [1.5e-3, True, -0.0, {}, []],
}  # fmt: skip


def tokenizer(pairs: list[tuple[str, str]], others: list[str], *, as_text: bool = False) -> dict[str, Any]:
    """A tokenizer.json with these merges and other tokens."""
    tokens = dict.fromkeys((*others, *(text for left, right in pairs for text in (left, right, left + right))))
    merges = [" ".join(pair) if as_text else list(pair) for pair in pairs]
    model = {"type": "BPE", "unk_token": None, "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges}
    return {**BEFORE, "model": model}


def encoded(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\0" for text in texts).encode()


def check(scanned: ScannedVocabulary, data: bytes) -> None:
    """Compare with Python's parser, and with the rules for merges."""
    document = parse_object(data, "tokenizer.json")
    model = document["model"]
    assert scanned.tokens == encoded(model["vocab"])
    assert [*model["vocab"].values()] == [*range(len(model["vocab"]))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    assert scanned.merges == encoded(merges)
    for merge in merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= model["vocab"].keys()
    assert parse_object(scanned.rest, "rest") == {**document, "model": {**model, "vocab": {}, "merges": []}}


@settings(deadline=None)
@given(
    st.lists(st.tuples(PARTS, PARTS), max_size=9),
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
    st.sampled_from(LAYOUTS),
    st.booleans(),
)
def test_usual_files_are_read(pairs: list[tuple[str, str]], others: list[str], layout: Any, as_text: bool) -> None:
    document = tokenizer(pairs, others, as_text=as_text)
    data = json.dumps(document, **layout).encode()
    scanned = read_vocabulary(data)
    if scanned is None:
        assert b"\\u" in data
    else:
        check(scanned, data)


@settings(deadline=None)
@given(
    st.lists(st.tuples(PARTS, PARTS), max_size=9),
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
)
def test_what_is_written_is_what_json_writes(pairs: list[tuple[str, str]], others: list[str]) -> None:
    model = tokenizer(pairs, others)["model"]
    vocab, merges = write_vocabulary(encoded(model["vocab"]), encoded(map(" ".join, pairs)))
    assert vocab == json.dumps(model["vocab"], ensure_ascii=False).encode()
    assert merges == json.dumps(model["merges"], ensure_ascii=False).encode()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_damage_is_left_to_python(layout: Any) -> None:
    """Whatever a damaged file is read as, Python reads it as the same."""
    document = tokenizer([("a", "b"), ("\u0120", "ab"), ('"', "\\"), ("]]", "},{")], ["<|end|>", "", " ", "\t\u20ac"])
    data, read = json.dumps(document, **layout).encode(), 0
    for number in range(2000):
        damaged = mutant(data, number, seed=12)
        scanned = read_vocabulary(damaged)
        if scanned is not None:
            try:
                check(scanned, damaged)
                read += 1
            except SquishError:  # in what Python still parses
                with pytest.raises((SquishError, UnicodeDecodeError)):
                    parse_object(scanned.rest, scanned.tokens.decode())
    assert read > 10


@pytest.mark.parametrize(
    "model",
    [
        '{"vocab": {"a": 0, "a": 1}, "merges": []}',
        '{"vocab": {"a": 1}, "merges": []}',
        '{"vocab": {"a": 00}, "merges": []}',
        '{"vocab": {"a": 0.0}, "merges": []}',
        '{"vocab": {"a": 0 0}, "merges": []}',
        '{"vocab": {"a": 0,}, "merges": []}',
        '{"vocab": {"\\u0061": 0}, "merges": []}',
        '{"vocab": {"a\nb": 0}, "merges": []}',
        '{"vocab": {"a": 0, "aa": 1}, "merges": [["a"]]}',
        '{"vocab": {"a": 0, "aa": 1}, "merges": [["a", "a", "a"]]}',
        '{"vocab": {"a": 0, "aa": 1}, "merges": [["a", "a"],]}',
        '{"vocab": {"a": 0, "aa": 1}, "merges": ["aa"]}',
        '{"vocab": {"a": 0, "aa": 1}, "merges": ["a a a"]}',
        '{"vocab": {"a": 0, " ": 1, "a ": 2}, "merges": [["a", " "]]}',
        '{"vocab": {"": 0, "a": 1}, "merges": [["", "a"]]}',
        '{"vocab": {"a": 0}, "merges": [["a", "a"]]}',
        '{"vocab": {"a": 0, "aa": 1}, "merges": [["a", "b"]]}',
        '{"vocab": {"a": 0}}',
        '{"merges": [], "vocab": {"a": 0}}',
        '{"vocab": {"a": 0}, "vocab": {"a": 0}, "merges": []}',
        '{"vocab": {"a": 0}, "merges": [], "merges": []}',
        '{"vocab": ["a"], "merges": []}',
        "[]",
    ],
)
def test_vocabularies_that_are_left_to_python(model: str) -> None:
    assert read_vocabulary(f'{{"model": {model}}}'.encode()) is None


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"{}", b'{"model": {"vocab": {"a', b'{"model": {"vocab": {"a": 0}, "merges": []}',
        b'{"model": {"vocab": {"a": 0}, "merges": []}} {}',
        b'{"x": ' + b"[" * 100_000,
    ],
    ids=lambda data: data[:60].decode(errors="replace"),
)  # fmt: skip
def test_files_that_are_left_to_python(data: bytes) -> None:
    assert read_vocabulary(data) is None


def test_an_empty_vocabulary_is_read_and_written() -> None:
    scanned = read_vocabulary(b'{"model": {"vocab": {}, "merges": []}}')
    assert scanned == ScannedVocabulary(b"", b"", b'{"model": {"vocab": {}, "merges": []}}')
    assert write_vocabulary(b"", b"") == (b"{}", b"[]")


def test_a_zero_after_the_last_text_may_be_absent() -> None:
    assert write_vocabulary(b"a\0b", b"a b") == (b'{"a": 0, "b": 1}', b'[["a", "b"]]')
    assert check_vocabulary(b"a\0aa", b"a a")


@settings(deadline=None)
@given(st.lists(st.tuples(PARTS, PARTS), max_size=9), st.lists(PARTS), st.randoms())
def test_merges_are_checked(pairs: list[tuple[str, str]], others: list[str], random: Any) -> None:
    tokens = [*tokenizer(pairs, others)["model"]["vocab"]]
    merges = encoded(map(" ".join, pairs))
    assert check_vocabulary(encoded(tokens), merges)
    if tokens:
        assert not check_vocabulary(encoded([*tokens, random.choice(tokens)]), merges)
    if pairs:
        used = {text for left, right in pairs for text in (left, right, left + right)}
        missing = random.choice(sorted(used))
        assert not check_vocabulary(encoded(token for token in tokens if token != missing), merges)


@pytest.mark.parametrize("merge", ["a", "a ", " a", "a  a", "a a a", "", "a a\0", "aa", "a b"])
def test_texts_that_are_no_merges(merge: str) -> None:
    tokens = encoded(["a", "aa", "", " ", "a a"])
    assert not check_vocabulary(tokens, encoded([merge]))
    assert not check_vocabulary(tokens, encoded(["a a", merge, "a a"]))


def test_merges_in_another_order_than_their_tokens() -> None:
    tokens = encoded(["a", "b", "ab", "ba", "aab", "abb"])
    merges = ["b a", "a ab", "a b", "ab b", "a b"]
    assert check_vocabulary(tokens, encoded(merges))
    assert not check_vocabulary(tokens, encoded([*merges, "b b"]))


def test_many_tokens_are_left_to_python() -> None:
    vocab = {f"{number:x}": number for number in range((1 << 20) + 1)}
    assert read_vocabulary(json.dumps({"model": {"vocab": vocab, "merges": []}}).encode()) is None
