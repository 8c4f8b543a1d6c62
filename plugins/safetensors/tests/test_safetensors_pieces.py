"""The header is read in pieces: where they are cut makes no difference to what is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_safetensors import strict_json

import squish_core as squish
from squish_core.errors import SquishError
from squish_core.limits import DEFAULT

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read(raw: bytes, piece: int) -> dict[str, Any] | None:
    """The object, read in pieces of so many bytes; None when it is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "PIECE", piece)
        try:
            return strict_json.loads(memoryview(raw), "text", DEFAULT)
        except SquishError:
            return None


@settings(max_examples=150, deadline=None)
@given(
    found=st.dictionaries(st.text(max_size=9), VALUES, max_size=9), piece=st.integers(1, 200),
    indent=st.sampled_from([None, 1]), ascii_only=st.booleans(),
)  # fmt: skip
def test_every_cut_gives_the_same_object_or_refuses_it(
    found: dict[str, Any], piece: int, indent: int | None, ascii_only: bool
) -> None:
    raw = json.dumps(found, indent=indent, ensure_ascii=ascii_only).encode()
    assert read(raw, piece) in (found, None)
    assert read(raw, len(raw) + 9) == found


@settings(max_examples=150, deadline=None)
@given(
    found=st.dictionaries(st.text(max_size=5), VALUES, max_size=5), piece=st.integers(1, 99),
    at=st.integers(0, 10_000), new=st.sampled_from([b"", b"{", b"}", b'"', b",", b"\\", b"\xff", b" ", b"0", b"e"]),
)  # fmt: skip
def test_a_damaged_object_is_read_as_json_reads_it_or_refused(
    found: dict[str, Any], piece: int, at: int, new: bytes
) -> None:
    raw = bytearray(json.dumps(found).encode())
    raw[at % len(raw) : at % len(raw) + 1] = new
    found = read(bytes(raw), piece)
    assert found is None or found == json.loads(raw)


def sized(header: dict[str, Any], data: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


@pytest.mark.parametrize(
    "metadata",
    [
        {"long": "x" * 1_000_000},
        {f"key {i}": "value" for i in range(20_000)},
        {"a": "\u00e9" * 70_000, "b": '{["' * 50_000},
    ],
    ids=["one long text", "many keys", "text of brackets"],
)  # fmt: skip
def test_metadata_longer_than_a_piece_is_read(metadata: dict[str, str]) -> None:
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    with squish.open(sized({"before": entry, "__metadata__": metadata}, b"a")) as file:
        assert list(file) == ["before"]
        assert file.meta == metadata


def test_thousands_of_tensors_are_read_in_several_pieces() -> None:
    header = {f"w{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(3000)}
    with squish.open(sized(header, bytes(3000))) as file:
        assert list(file) == list(header)
