"""Vocabularies as arrays of GGUF, and as texts in UTF-8 with a zero after each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_gguf.api import encode_texts, text_array
from squish_gguf.values import GgufArray

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@settings(deadline=None)
@given(TEXTS)
def test_an_array_has_its_texts_however_it_is_made(texts: list[str]) -> None:
    encoded = encode_texts(texts)
    assert list(text_array(texts)) == texts
    assert encode_texts(text_array(texts)) == encoded
    if any("\0" in text for text in texts):
        assert encoded is None
    else:
        assert encoded is not None
        array = text_array(encoded)
        assert array.raw == text_array(texts).raw
        assert list(array) == list(text_array(encoded, texts)) == texts
        assert len(array) == len(texts)


def test_texts_that_were_read_are_not_decoded() -> None:
    array = GgufArray("str", 2, text_array(["a", "bc"]).raw.replace(b"b", b"\xff"))
    assert array[1] == b"\xffc"
    assert encode_texts(array) == b"a\0\xffc\0"


def test_texts_that_utf_8_cannot_hold() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_texts(["\ud800"])
