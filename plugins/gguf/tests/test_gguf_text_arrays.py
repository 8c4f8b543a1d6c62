"""Vocabularies as arrays of GGUF."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_gguf.api import text_array
from squish_gguf.values import GgufArray

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@settings(deadline=None)
@given(TEXTS)
def test_a_packed_array_has_its_texts(texts: list[str]) -> None:
    array = text_array(texts)
    assert len(array) == len(texts)
    assert list(array) == list(GgufArray("str", len(texts), array.raw)) == texts


def test_texts_that_utf_8_cannot_hold() -> None:
    with pytest.raises(UnicodeEncodeError):
        text_array(["\ud800"])
