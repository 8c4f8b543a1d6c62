"""Headers longer than a piece of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

import squish_core as squish


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
