"""JSON is read in pieces: where they are cut makes no difference to what is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squish_core.api import SquishError, load_json
from squish_core.formats import json as json_reader
from squish_core.limits import DEFAULT

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read(raw: bytes, piece: int) -> dict[str, Any] | None:
    """The object, read in pieces of so many bytes; None when it is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "JSON_PIECE", piece)
        try:
            return load_json(memoryview(raw), "text", DEFAULT)
        except SquishError:
            return None


@settings(max_examples=150, deadline=None)
@given(
    value=st.dictionaries(st.text(max_size=9), VALUES, max_size=9),
    piece=st.integers(1, 200),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_every_cut_gives_the_same_object_or_refuses_it(
    value: dict[str, Any], piece: int, indent: int | None, ascii_only: bool
) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert read(raw, piece) in (value, None)
    assert read(raw, len(raw) + 9) == value


@settings(max_examples=150, deadline=None)
@given(
    value=st.dictionaries(st.text(max_size=5), VALUES, max_size=5),
    piece=st.integers(1, 99),
    at=st.integers(0, 10_000),
    new=st.sampled_from([b"", b"{", b"}", b'"', b",", b"\\", b"\xff", b" ", b"0", b"e"]),
)
def test_a_damaged_object_is_read_as_json_reads_it_or_refused(
    value: dict[str, Any], piece: int, at: int, new: bytes
) -> None:
    raw = bytearray(json.dumps(value).encode())
    raw[at % len(raw) : at % len(raw) + 1] = new
    result = read(bytes(raw), piece)
    assert result is None or result == json.loads(raw)
